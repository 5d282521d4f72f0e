"""The contract of every camera, on those that need no device."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict

from sci_stream.model import CameraCapabilities, CameraFrame, FrameIds
from sci_stream.ports import Camera
from sci_stream.testing.cameras import CameraContract
from tests.drivers.camera_kit import SHOTS, MakeCamera, simulated


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


def test_suite_refuses_a_camera_that_is_silent_when_it_is_lost() -> None:
    class SilentContract(CameraContract):
        lost_s = 0.2

        def make(self) -> Camera:
            return simulated(snapshots=0)

        def unplug(self, camera: Camera) -> None:
            pass

    with pytest.raises(AssertionError, match="no CameraLost"):
        SilentContract().test_lost_camera_is_noticed()
