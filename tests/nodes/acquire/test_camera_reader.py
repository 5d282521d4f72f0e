"""The camera thread: numbering, gap detection and reconnection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from sci_stream.errors import CameraError, CameraLost, InputError, SciStreamError
from sci_stream.model import CameraCapabilities, CameraFrame, FrameIds
from sci_stream.nodes.acquire.camera_reader import CameraReader, Captured
from sci_stream.nodes.acquire.in_flight import _BOOKKEEPING_BYTES, MemoryBudget
from sci_stream.nodes.acquire.managed_camera import ManagedCamera
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Camera
from tests.drivers.camera_kit import simulated

Step = int | Exception | None
"""A frame of this id, a failure, or nothing within the time."""


class ScriptedCamera:
    """Follows a script, then is exhausted."""

    def __init__(self, script: list[Step], *, ids: FrameIds | None = None) -> None:
        self._script = list(script)
        self._ids = ids or FrameIds()
        self.width_px = 4
        self.fails_to_open = 0
        self.calls: list[str] = []

    def open(self) -> CameraCapabilities:
        self.calls.append("open")
        if self.fails_to_open and self.calls.count("open") > 1:
            self.fails_to_open -= 1
            raise CameraError("not there yet")
        return CameraCapabilities(
            "scripted", "1", 2, self.width_px, "Mono8", 8, n_frames=2, frame_ids=self._ids
        )

    def calibration(self) -> Calibration | None:
        return None

    def start(self) -> None:
        self.calls.append("start")

    def read(self, timeout_s: float) -> CameraFrame | None:
        step = self._script.pop(0) if self._script else None
        if step is None:
            time.sleep(timeout_s / 10)
        if isinstance(step, Exception):
            raise step
        return None if step is None else CameraFrame(np.zeros((2, 4), np.uint8), step, None, 1)

    @property
    def exhausted(self) -> bool:
        return not self._script

    def counters(self) -> Mapping[str, int]:
        return {}

    def stop(self) -> None:
        self.calls.append("stop")

    def close(self) -> None:
        self.calls.append("close")


MakeReader = Callable[..., CameraReader[Captured]]


@pytest.fixture
def reader() -> Iterator[MakeReader]:
    made: list[CameraReader[Captured]] = []

    def make(
        camera: Camera, *, ring_bytes: int = 1 << 20, **options: Any
    ) -> CameraReader[Captured]:
        woken = threading.Event()
        new = CameraReader(
            *(
                camera,
                MemoryBudget(ring_bytes),
                woken.set,
                options.pop("keep", lambda captured: captured),
            ),
            **{"read_timeout_s": 0.01, "backoff_s": (0.001, 0.004), **options},
        )
        made.append(new)
        new.open()
        return new

    yield make
    for each in made:
        each.stop()
        each.join(60.0)


def run_to_the_end(reader: CameraReader[Captured]) -> list[Captured]:
    reader.start()
    deadline_s = time.monotonic() + 60
    while not reader.finished:
        assert time.monotonic() < deadline_s
        time.sleep(0.002)
    return list(reader.take())


def test_frames_are_numbered_from_zero(reader: MakeReader) -> None:
    captured = run_to_the_end(reader(ScriptedCamera([10, 11, None, 12])))
    assert [(each.seq, each.epoch, each.missed) for each in captured] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
    ]


def test_no_frame_before_start(reader: MakeReader) -> None:
    camera = ScriptedCamera([1, 2])
    waiting = reader(camera)
    time.sleep(0.05)
    assert "start" not in camera.calls
    assert len(run_to_the_end(waiting)) == 2


def test_gap_in_ids_is_counted_with_next_frame(reader: MakeReader) -> None:
    new = reader(ScriptedCamera([0, 1, 5, 6]))
    assert [each.missed for each in run_to_the_end(new)] == [0, 0, 3, 0]
    assert new.counts["missed"] == 3


def test_wrapped_ids_are_no_gap(reader: MakeReader) -> None:
    new = reader(ScriptedCamera([65534, 65535, 1, 3], ids=FrameIds(1, 65535)))
    assert [each.missed for each in run_to_the_end(new)] == [0, 0, 0, 1]


def test_repeated_frame_is_discarded(reader: MakeReader) -> None:
    new = reader(ScriptedCamera([0, 1, 1, 2]))
    assert [each.seq for each in run_to_the_end(new)] == [0, 1, 2]
    assert new.counts["repeated"] == 1


def frames_of(captured: list[Captured]) -> list[tuple[int | None, int, int]]:
    return [
        (None if each.frame is None else each.frame.frame_id, each.epoch, each.missed)
        for each in captured
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_reset_of_the_frame_counter_starts_an_epoch(
    reader: MakeReader, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    new = reader(ScriptedCamera([500, 501, first, first + 1, first + 3], ids=FrameIds(first)))
    assert frames_of(run_to_the_end(new)) == [
        (500, 0, 0), (501, 0, 0), (first, 1, 0), (first + 1, 1, 0), (first + 3, 1, 1),
    ]  # fmt: skip
    assert (new.counts["counter_resets"], new.counts["missed"], new.epoch) == (1, 1, 1)
    assert f"frame counter jumped from 501 to {first}" in caplog.text


def test_frame_counter_reset_just_after_start_is_detected(reader: MakeReader) -> None:
    new = reader(ScriptedCamera([0, 1, 0, 1, 2]))
    assert [each[:2] for each in frames_of(run_to_the_end(new))] == [
        (0, 0),
        (1, 0),
        (0, 1),
        (1, 1),
        (2, 1),
    ]


def test_reset_to_an_id_just_behind_costs_one_frame(reader: MakeReader) -> None:
    new = reader(ScriptedCamera([10, 11, 5, 6, 7]))
    assert frames_of(run_to_the_end(new)) == [(10, 0, 0), (11, 0, 0), (6, 1, 0), (7, 1, 0)]
    assert new.counts["repeated"] == 1


def test_reset_of_a_counter_of_16_bits_is_no_loss(reader: MakeReader) -> None:
    new = reader(ScriptedCamera([40_000, 40_001, 1, 2], ids=FrameIds(1, 65535)))
    assert frames_of(run_to_the_end(new)) == [(40_000, 0, 0), (40_001, 0, 0), (1, 1, 0), (2, 1, 0)]


@pytest.mark.parametrize("jump", [2**33, 2**62])
def test_counter_that_jumps_ahead_starts_an_epoch(reader: MakeReader, jump: int) -> None:
    new = reader(ScriptedCamera([0, 1, jump, jump + 2]))
    assert frames_of(run_to_the_end(new)) == [(0, 0, 0), (1, 0, 0), (jump, 1, 0), (jump + 2, 1, 1)]
    assert new.counts["missed"] == 1


def test_driver_that_raises_in_stop_does_not_keep_the_reader(reader: MakeReader) -> None:
    camera = ScriptedCamera([0])
    camera.stop = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    new = reader(ManagedCamera(camera, "scripted"))
    assert len(run_to_the_end(new)) == 1
    assert new.failure is None


def test_event_counts_can_be_read_by_another_thread(reader: MakeReader) -> None:
    read = []
    new = reader(
        ScriptedCamera([0, 2, 2, 3, CameraLost("unplugged"), 0]),
        keep=lambda captured: read.append(new.counts) or captured,
    )
    new.resume(5, 1, 4)
    run_to_the_end(new)
    assert read == [
        {"missed": 4},
        {"missed": 5},
        {"missed": 5, "repeated": 1},
        {"missed": 5, "repeated": 1, "lost": 1, "reopened": 1},
    ]


def test_reader_stops_after_requested_number(reader: MakeReader) -> None:
    assert len(run_to_the_end(reader(ScriptedCamera(list(range(10))), most=4))) == 4


def test_frame_without_memory_keeps_its_number(reader: MakeReader) -> None:
    captured = run_to_the_end(
        reader(ScriptedCamera([0, 1, 2]), ring_bytes=2 * (_BOOKKEEPING_BYTES + 8))
    )
    assert [each.frame is None for each in captured] == [False, False, True]
    assert captured[2].seq == 2


def test_lost_camera_is_reopened_in_a_new_epoch(reader: MakeReader) -> None:
    camera = ScriptedCamera([7, CameraLost("unplugged"), 0, 1])
    camera.fails_to_open = 3
    new = reader(camera)
    captured = run_to_the_end(new)
    assert [(each.seq, each.epoch) for each in captured] == [(0, 0), (1, 1), (2, 1)]
    assert [each.missed for each in captured] == [0, 0, 0], "ids of different epochs do not compare"
    assert camera.calls.count("open") == 5
    assert (new.counts["lost"], new.counts["reopened"]) == (1, 1)


def test_camera_lost_before_its_first_start_is_reopened(reader: MakeReader) -> None:
    class LostAtStart(ScriptedCamera):
        def start(self) -> None:
            super().start()
            if self.calls.count("start") == 1:
                raise CameraLost("unplugged since it was opened")

    new = reader(LostAtStart([0, 1]))
    captured = run_to_the_end(new)
    assert new.failure is None
    assert [(each.seq, each.epoch) for each in captured] == [(0, 1), (1, 1)]
    assert (new.counts["lost"], new.counts["reopened"]) == (1, 1)


def test_stop_ends_wait_for_lost_camera(reader: MakeReader) -> None:
    camera = ScriptedCamera([0, CameraLost("unplugged"), 1])
    camera.fails_to_open = 1_000_000
    new = reader(camera)
    new.start()
    time.sleep(0.05)
    new.stop()
    new.join(60.0)
    assert new.finished
    assert new.acquired == 1


def test_reason_why_a_camera_does_not_return_is_logged_once(
    reader: MakeReader, caplog: pytest.LogCaptureFixture
) -> None:
    camera = ScriptedCamera([0, CameraLost("unplugged"), 1])
    camera.fails_to_open = 3
    new = reader(camera)
    deadline_s = time.monotonic() + 60
    while new.capabilities is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.002)
    camera.width_px = 5
    new.start()
    while "Image format changed" not in new.lost:
        assert time.monotonic() < deadline_s
        time.sleep(0.002)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [
        sum(words in text for text in warnings) for words in ("not there yet", "2×5 Mono8")
    ] == [1, 1]
    camera.width_px = 4
    assert len(run_to_the_end(new)) == 2
    assert new.lost == ""


def test_camera_reopened_after_a_stop_is_not_started(reader: MakeReader) -> None:
    opening, may_open = threading.Event(), threading.Event()

    class SlowToReopen(ScriptedCamera):
        def open(self) -> CameraCapabilities:
            if "open" in self.calls:
                opening.set()
                may_open.wait(60.0)
            return super().open()

    camera = SlowToReopen([0, CameraLost("unplugged"), 1])
    new = reader(camera)
    new.start()
    assert opening.wait(60.0)
    new.stop()
    assert new.finished, "the series ends meanwhile"
    may_open.set()
    new.join(60.0)
    assert camera.calls.count("start") == 1


def test_camera_that_cannot_be_opened_is_a_failure(reader: MakeReader) -> None:
    class Broken(ScriptedCamera):
        def open(self) -> CameraCapabilities:
            raise CameraError("no such camera")

    new = reader(Broken([]))
    run_to_the_end(new)
    assert isinstance(new.failure, CameraError)
    assert new.capabilities is None


def test_camera_is_stopped_and_closed_at_the_end(reader: MakeReader) -> None:
    camera = ScriptedCamera([0])
    run_to_the_end(reader(camera))
    assert camera.calls[-2:] == ["stop", "close"]


def test_driver_counters_add_up_within_a_series(reader: MakeReader) -> None:
    class Counting(ScriptedCamera):
        """Counts the frames it delivered since it was opened, as drivers do."""

        delivered = 5
        """Of a series before this one, for which the camera was opened."""

        def open(self) -> CameraCapabilities:
            if "open" in self.calls:
                self.delivered = 0
            return super().open()

        def read(self, timeout_s: float) -> CameraFrame | None:
            frame = super().read(timeout_s)
            self.delivered += frame is not None
            return frame

        def counters(self) -> Mapping[str, int]:
            return {"delivered": self.delivered}

    new = reader(Counting([0, 1, CameraLost("unplugged"), 0, 1, 2]))
    run_to_the_end(new)
    assert new.driver_counts == {"delivered": 5}


# --- settings at run time


def settled(reader: CameraReader[Captured]) -> tuple[str, SciStreamError | None]:
    """Wait for the only answer."""
    deadline_s = time.monotonic() + 60
    while not (answers := list(reader.answered())):
        assert time.monotonic() < deadline_s
        time.sleep(0.002)
    (answer,) = answers
    return answer.request, answer.error


def test_settings_change_between_frames(reader: MakeReader) -> None:
    new = reader(simulated(snapshot_rate_hz=500.0, snapshots=0))
    wait_until_open(new)
    new.change("before", {"exposure": 0.5})
    assert settled(new) == ("before", None)
    new.start()
    new.change("running", {"exposure": 0.6, "snapshot_rate_hz": 250.0})
    assert settled(new) == ("running", None)
    set_to = {entry.name: entry.value for entry in new.settings}
    assert (set_to["exposure"], set_to["snapshot_rate_hz"]) == (0.6, 250.0)
    assert new.capabilities is not None
    assert new.capabilities.frame_period_ns == 4_000_000


def test_refused_setting_is_answered_and_frames_continue(reader: MakeReader) -> None:
    new = reader(simulated(snapshot_rate_hz=500.0, snapshots=0))
    wait_until_open(new)
    new.start()
    new.change("1", {"exposure": 99.0})
    request, error = settled(new)
    assert (request, isinstance(error, InputError)) == ("1", True)
    acquired = new.acquired
    deadline_s = time.monotonic() + 60
    while new.acquired < acquired + 3:
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_request_after_the_end_is_answered(reader: MakeReader) -> None:
    new = reader(simulated())
    wait_until_open(new)
    run_to_the_end(new)
    new.change("late", {"exposure": 0.5})
    request, error = settled(new)
    assert (request, str(error)) == ("late", "The camera has stopped.")


def test_lost_camera_refuses_settings(reader: MakeReader) -> None:
    camera = ScriptedCamera([7, CameraLost("unplugged")])
    camera.fails_to_open = 1_000_000
    new = reader(camera)
    new.start()
    deadline_s = time.monotonic() + 60
    while not new.lost:
        assert time.monotonic() < deadline_s
        time.sleep(0.002)
    new.change("1", {"exposure": 0.5})
    assert str(settled(new)[1]) == "The camera is lost."


def wait_until_open(reader: CameraReader[Captured]) -> None:
    deadline_s = time.monotonic() + 60
    while reader.capabilities is None or not reader.settings:
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_resumed_series_continues_its_numbering(reader: MakeReader) -> None:
    new = reader(ScriptedCamera([0, 3, 4, 5]), most=8)
    new.resume(seq=5, epoch=2, missed=7)
    captured = run_to_the_end(new)
    assert [(each.seq, each.epoch) for each in captured] == [(5, 2), (6, 2), (7, 2)], (
        "the limit includes earlier frames"
    )
    assert captured[0].missed == 0, "counters of an earlier process are unknown"
    assert new.counts["missed"] == 7 + 2


def test_resumed_series_retries_to_open_the_camera(reader: MakeReader) -> None:
    class Late(ScriptedCamera):
        def open(self) -> CameraCapabilities:
            if len(self.calls) < 3:
                self.calls.append("refused")
                raise CameraError("not there yet")
            return super().open()

    camera = Late([0, 1])
    new = CameraReader(
        camera,
        MemoryBudget(1 << 20),
        lambda: None,
        print,
        read_timeout_s=0.01,
        backoff_s=(0.001, 0.004),
    )
    new.open(retry=True)
    assert len(run_to_the_end(new)) == 2
    new.join(60.0)
    assert camera.calls[:4] == ["refused"] * 3 + ["open"]


def test_frame_is_spooled_before_it_counts_as_acquired(reader: MakeReader) -> None:
    kept: list[tuple[int, int]] = []

    def keep(captured: Captured) -> Captured:
        kept.append((captured.seq, new.acquired))
        return captured

    new = reader(ScriptedCamera([0, 1, 2]), keep=keep)
    run_to_the_end(new)
    assert kept == [(0, 0), (1, 1), (2, 2)]
