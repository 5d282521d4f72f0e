"""The contract of every camera, on those that need no device."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict

from sci_stream.errors import CameraError, CameraLost, ConfigError
from sci_stream.model import Array, CameraCapabilities, CameraFrame, FrameIds
from sci_stream.modulation.timing import CameraTrigger
from sci_stream.parameters import Value
from sci_stream.ports import Camera
from sci_stream_drivers.simulated import SimulatedCamera, SimulatedOptions
from sci_stream_testing.cameras import CameraContract
from tests.drivers.camera_kit import SHOTS, B, H, MakeCamera, W, simulated


class TestCameras(CameraContract):
    """Cameras of SHOTS snapshots."""

    n_frames = SHOTS

    @pytest.fixture(autouse=True)
    def _set_maker(self, make_camera: MakeCamera) -> None:
        self._make_camera = make_camera

    def make(self) -> Camera:
        return self._make_camera()


class StrictOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LaxOptions(BaseModel):
    pass


class FlawedCamera:
    """A simulated camera that does not end, with one flaw: other options,
    capabilities or frames.
    """

    Options: ClassVar[type[BaseModel]] = StrictOptions

    def __init__(
        self, frame: Callable[[CameraFrame], CameraFrame], capabilities: dict[str, Any]
    ) -> None:
        self._camera, self._frame, self._capabilities = simulated(snapshots=0), frame, capabilities

    def __getattr__(self, name: str) -> Any:
        return getattr(self._camera, name)

    def open(self) -> CameraCapabilities:
        return replace(self._camera.open(), **self._capabilities)

    def read(self, timeout_s: float) -> CameraFrame | None:
        frame = self._camera.read(timeout_s)
        return None if frame is None else self._frame(frame)


class LaxCamera(FlawedCamera):
    Options = LaxOptions


def in_a_ring_of(size: int) -> Callable[[CameraFrame], CameraFrame]:
    """Return frames whose counts are views of memory that is used again, with the same content."""
    ring: list[Any] = []
    turns = itertools.cycle(range(size))

    def view(frame: CameraFrame) -> CameraFrame:
        ring.extend(np.zeros_like(frame.counts) for _ in range(size - len(ring)))
        return replace(frame, counts=ring[next(turns)][:])

    return view


def same(frame: CameraFrame) -> CameraFrame:
    return frame


def contract_of(
    frame: Callable[[CameraFrame], CameraFrame] = same,
    kind: type[FlawedCamera] = FlawedCamera,
    **capabilities: Any,
) -> CameraContract:
    contract = CameraContract()
    contract.make = lambda: kind(frame, capabilities)  # type: ignore[method-assign]
    return contract


def monotonic(frame: CameraFrame) -> CameraFrame:
    return replace(frame, host_time_ns=time.monotonic_ns())


@pytest.mark.parametrize(
    ("test", "contract", "message"),
    [
        ("options_refuse_unknown_keys", contract_of(kind=LaxCamera), 'extra="forbid"'),
        (
            "capabilities_are_complete",
            contract_of(frame_ids=(0, 65535)),
            "sci_stream.model.FrameIds",
        ),
        (
            "frames_match_the_capabilities",
            contract_of(frame_ids=FrameIds(5, 6)),
            "outside FrameIds",
        ),
        ("frames_match_the_capabilities", contract_of(monotonic), "Unix time of receipt"),
        ("frame_is_unchanged_by_later_reads", contract_of(in_a_ring_of(1)), "must return a copy"),
        ("frame_is_unchanged_by_later_reads", contract_of(in_a_ring_of(16)), "must return a copy"),
    ],
)
def test_suite_refuses_a_flaw(test: str, contract: CameraContract, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        getattr(contract, f"test_{test}")()
    getattr(contract_of(), f"test_{test}")()


class RunningCamera(SimulatedCamera):
    """A simulated camera that does not end, with buffers that fill while no one reads."""

    lost = False
    damaged = 0
    rate_hz = 200.0

    def __init__(self) -> None:
        small = {"width_px": W, "height_px": H, "n_frames": B, "snapshot_rate_hz": self.rate_hz}
        super().__init__(SimulatedOptions.model_validate({**small, "loop_snapshots": 4}))

    def read(self, timeout_s: float) -> CameraFrame | None:
        if self.lost:
            self.lost = False if self.silent_reads == 0 else self.lost
            if not self.lost:
                raise CameraLost("unplugged")
            self.silent_reads -= 1
            self.waited_s += max(timeout_s, self.blocks_s)
            return None
        frame = super().read(timeout_s)
        if frame is not None and self.damaged:
            self.damaged -= 1
            self._counts["incomplete"] += 1
            self._counts["delivered"] -= 1
            return super().read(timeout_s)
        return frame

    silent_reads = 2
    blocks_s = 0.0
    waited_s = 0.0


class KeepsRunningCamera(CameraContract):
    """The contract of the planted errors: with every hook of the suite."""

    def __init__(self, kind: type[RunningCamera] = RunningCamera) -> None:
        self.kind = kind

    def make(self) -> RunningCamera:
        self.camera = self.kind()
        return self.camera

    def unplug(self, camera: RunningCamera) -> None:
        camera.lost = True

    def now_s(self) -> float:
        return self.camera.waited_s

    def spoil(self, camera: RunningCamera) -> None:
        camera.damaged = 1

    def shows(self, frame: CameraFrame) -> Array | None:
        known = RunningCamera()
        with contextlib.closing(known):
            known.open()
            known.start()
            while (shown := known.read(1.0)) is None or shown.frame_id != frame.frame_id:
                pass
            return shown.counts

    def make_refused(self) -> Camera:
        return RefusedCamera()


class RefusedCamera(RunningCamera):
    def open(self) -> CameraCapabilities:
        raise ConfigError("exposure_us is out of range", expected="10 to 1e6", got=5.0)


class SaysEndlessIds(RunningCamera):
    def open(self) -> CameraCapabilities:
        return replace(super().open(), frame_ids=FrameIds())

    def read(self, timeout_s: float) -> CameraFrame | None:
        frame = super().read(timeout_s)
        assert frame is None or frame.frame_id is not None
        return None if frame is None else replace(frame, frame_id=frame.frame_id % 256)


class CountsTicks(RunningCamera):
    rate_hz = 20.0

    def read(self, timeout_s: float) -> CameraFrame | None:
        frame = super().read(timeout_s)
        assert frame is None or frame.camera_time_ns is not None
        return None if frame is None else replace(frame, camera_time_ns=frame.camera_time_ns // 8)


class ArmsWhatWasAsked(RunningCamera):
    def trigger_now(self) -> CameraTrigger:
        now = super().trigger_now()
        return replace(now, exposure_us=now.exposure_us // 8 * 8)


class IgnoresTheSource(RunningCamera):
    def arm(self, trigger: CameraTrigger) -> CameraTrigger:
        return super().arm(replace(trigger, source="free"))


class IgnoresTheExposure(RunningCamera):
    def arm(self, trigger: CameraTrigger) -> CameraTrigger:
        return super().arm(replace(trigger, exposure_us=4000.0))


class KeepsOldFrames(RunningCamera):
    waiting: CameraFrame | None = None

    def stop(self) -> None:
        if self._running:
            self.waiting = self.read(1.0)
        super().stop()

    def read(self, timeout_s: float) -> CameraFrame | None:
        waiting, self.waiting = self.waiting, None
        return waiting or super().read(timeout_s)


class Blocks(RunningCamera):
    blocks_s = 0.8


class DeliversIncompleteFrames(RunningCamera):
    def read(self, timeout_s: float) -> CameraFrame | None:
        self.damaged = 0
        return super().read(timeout_s)


class SwapsBytes(RunningCamera):
    def read(self, timeout_s: float) -> CameraFrame | None:
        frame = super().read(timeout_s)
        return frame and replace(frame, counts=frame.counts[::-1].copy())


class DropsBits(RunningCamera):
    def read(self, timeout_s: float) -> CameraFrame | None:
        frame = super().read(timeout_s)
        return frame and replace(frame, counts=frame.counts >> 4)


class IgnoresSettings(RunningCamera):
    def set(self, *_: str | Value) -> CameraCapabilities:
        return self.open()


class RaisesTheLibrarysError(RunningCamera):
    def read(self, timeout_s: float) -> CameraFrame | None:
        if self.lost:
            raise OSError("library")
        return super().read(timeout_s)


class StaysBusy(RunningCamera):
    busy = False

    def open(self) -> CameraCapabilities:
        if self.busy:
            raise CameraError("The camera is in use")
        return super().open()

    def close(self) -> None:
        self.busy = True
        super().close()


class CountsEverything(RunningCamera):
    def counters(self) -> dict[str, int]:
        counted = dict(super().counters())
        return {**counted, "delivered": counted.get("delivered", 0) + 1}


class Unrefused(KeepsRunningCamera):
    def make_refused(self) -> Camera:
        return RunningCamera()


PLANTED = [
    ("many_frames_are_numbered_and_timed", SaysEndlessIds, "frame_id 0 after 255"),
    ("many_frames_are_numbered_and_timed", CountsTicks, "must be in ns"),
    ("armed_trigger_is_kept_and_read_back", ArmsWhatWasAsked, "read it back"),
    ("armed_trigger_is_kept_and_read_back", IgnoresTheSource, "the trigger is 'free'"),
    ("armed_trigger_is_kept_and_read_back", IgnoresTheExposure, "the exposure is 4000"),
    ("start_delivers_no_frame_from_before", KeepsOldFrames, "empty the buffers"),
    ("lost_camera_is_noticed", Blocks, "must end at its timeout"),
    (
        "incomplete_frame_is_counted_and_not_delivered",
        DeliversIncompleteFrames,
        "counted|delivered",
    ),
    ("frames_have_the_known_counts", SwapsBytes, "other counts than the device showed"),
    ("frames_have_the_known_counts", DropsBits, "other counts than the device showed"),
    ("settings_keep_new_values", IgnoresSettings, "was set to"),
    ("counters_are_counts", CountsEverything, "delivered must count frames"),
]


@pytest.mark.parametrize(("test", "kind", "message"), PLANTED, ids=lambda value: str(value)[-60:])
def test_suite_catches_a_planted_error(test: str, kind: type[RunningCamera], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        getattr(KeepsRunningCamera(kind), f"test_{test}")()


@pytest.mark.parametrize(
    ("test", "kind", "error"),
    [
        ("lost_camera_is_noticed", RaisesTheLibrarysError, OSError),
        ("open_after_close_works", StaysBusy, CameraError),
    ],
)
def test_suite_passes_on_a_planted_exception(
    test: str, kind: type[RunningCamera], error: type[Exception]
) -> None:
    with pytest.raises(error):
        getattr(KeepsRunningCamera(kind), f"test_{test}")()


def test_suite_catches_options_that_are_not_refused() -> None:
    with pytest.raises(AssertionError, match="accepted options"):
        Unrefused().test_impossible_options_are_refused()


@pytest.mark.parametrize("test", sorted({test for test, _, _ in PLANTED}))
def test_right_camera_passes_the_tests_of_planted_errors(test: str) -> None:
    getattr(KeepsRunningCamera(), f"test_{test}")()


def test_suite_refuses_a_camera_that_is_silent_when_it_is_lost() -> None:
    class SilentContract(CameraContract):
        lost_s = 0.2

        def make(self) -> Camera:
            return simulated(snapshots=0)

        def unplug(self, camera: Camera) -> None:
            pass

    with pytest.raises(AssertionError, match="no CameraLost"):
        SilentContract().test_lost_camera_is_noticed()
