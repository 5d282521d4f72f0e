"""Drivers that break the contract of the camera port: each is named in the error, and none hangs the node."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sci_stream.errors import CameraError, CameraLost, InputError
from sci_stream.model import BayerPhase, CameraCapabilities, CameraFrame, FrameIds
from sci_stream.nodes.acquire.camera_reader import CameraReader
from sci_stream.nodes.acquire.checked_camera import CheckedCamera
from sci_stream.nodes.acquire.in_flight import MemoryBudget
from sci_stream.nodes.acquire.persistent_camera import kept_open
from sci_stream.optics.calibration import Calibration

PATIENCE_S = 60.0
GOOD = CameraCapabilities("model", "1", 4, 6, "Mono12", 12)


def frame(**changes: Any) -> CameraFrame:
    return replace(CameraFrame(np.zeros((4, 6), np.uint16), 0, 5, 7), **changes)


class Driver:
    """Keeps the contract except for the given calls."""

    def __init__(self, **calls: Callable[[], Any]) -> None:
        self._calls = calls

    def _call(self, name: str, value: Any = None) -> Any:
        return self._calls[name]() if name in self._calls else value

    def open(self) -> CameraCapabilities:
        return self._call("open", GOOD)

    def calibration(self) -> Calibration | None:
        return self._call("calibration")

    def start(self) -> None:
        self._call("start")

    def read(self, timeout_s: float) -> CameraFrame | None:
        time.sleep(min(timeout_s, 0.01))
        return self._call("read", frame())

    @property
    def exhausted(self) -> bool:
        return self._call("exhausted", False)

    def counters(self) -> Mapping[str, int]:
        return self._call("counters", {})

    def stop(self) -> None:
        self._call("stop")

    def close(self) -> None:
        self._call("close")


def raises(error: BaseException) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


def returns(value: Any) -> Callable[[], Any]:
    return lambda: value


BAD_CAPABILITIES = {
    "nothing": None,
    "a tuple": (4, 6),
    "no height": replace(GOOD, height_px=0),
    "a negative width": replace(GOOD, width_px=-6),
    "a fraction": replace(GOOD, width_px=6.5),
    "too large": replace(GOOD, width_px=2**40),
    "a depth of 0": replace(GOOD, bit_depth=0),
    "a depth as text": replace(GOOD, bit_depth="12"),
    "a model that is no text": replace(GOOD, model=None),
    "bytes as serial": replace(GOOD, serial=b"1"),
    "a period below 0": replace(GOOD, frame_period_ns=-1),
    "a period as fraction": replace(GOOD, frame_period_ns=1e9),
    "a phase as text": replace(GOOD, bayer="RGGB"),
    "Bayer with odd height": replace(GOOD, height_px=5, bayer=BayerPhase.RGGB),
    "ids upside down": replace(GOOD, frame_ids=FrameIds(5, 1)),
    "ids of text": replace(GOOD, frame_ids=FrameIds("a")),  # type: ignore[arg-type]
    "chunks as list": replace(GOOD, chunks=["a"]),
    "no frames": replace(GOOD, n_frames=0),
}
BAD_FRAMES = {
    "an array": np.zeros((4, 6), np.uint16),
    "True": True,
    "counts as list": frame(counts=[[0] * 6] * 4),
    "counts of another shape": frame(counts=np.zeros((6, 4), np.uint16)),
    "counts in three dimensions": frame(counts=np.zeros((4, 6, 1), np.uint16)),
    "empty counts": frame(counts=np.zeros((0, 0), np.uint16)),
    "counts as int64": frame(counts=np.zeros((4, 6), np.int64)),
    "counts as float64": frame(counts=np.zeros((4, 6))),
    "counts as objects": frame(counts=np.zeros((4, 6), object)),
    "counts in foreign byte order": frame(counts=np.zeros((4, 6), np.dtype(np.uint16).newbyteorder())),
    "a negative id": frame(frame_id=-1),
    "an id as fraction": frame(frame_id=1.5),
    "an id as text": frame(frame_id="1"),
    "a time before 1970": frame(host_time_ns=-1),
    "no host time": frame(host_time_ns=None),
    "a time as fraction": frame(host_time_ns=1.5e9),
    "a camera time beyond 63 bits": frame(camera_time_ns=2**63),
    "a truth in two dimensions": frame(truth=np.zeros((4, 6), np.uint8)),
    "chunks as list": frame(chunks=[1]),
}
BAD_ERRORS = [ValueError("no"), MemoryError(), SystemExit(3), KeyboardInterrupt(), StopIteration(), AttributeError("x")]


def checked(**calls: Callable[[], Any]) -> CheckedCamera:
    return CheckedCamera(Driver(**calls), "mine")


@pytest.mark.parametrize("value", BAD_CAPABILITIES.values(), ids=BAD_CAPABILITIES)
def test_bad_capabilities_name_the_driver(value: object) -> None:
    with pytest.raises(CameraError, match=r"driver 'mine' breaks its contract: open\(\) returned"):
        checked(open=returns(value)).open()


@pytest.mark.parametrize("value", BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_bad_frame_names_the_driver(value: object) -> None:
    camera = checked(read=returns(value))
    camera.open()
    with pytest.raises(CameraError, match=r"driver 'mine' breaks its contract: read\(\) returned"):
        camera.read(0.0)


@pytest.mark.parametrize("error", BAD_ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("call", ["open", "calibration", "start", "read", "exhausted", "counters"])
def test_undeclared_error_names_driver_and_call(call: str, error: BaseException) -> None:
    camera = checked(**{call: raises(error)})
    raised: list[BaseException] = []

    def use() -> None:
        try:
            camera.open()
            camera.calibration()
            camera.start()
            camera.read(0.0)
            _ = camera.exhausted
            camera.counters()
        except BaseException as found:
            raised.append(found)

    thread = threading.Thread(target=use)  # as in the acquire node, where Ctrl-C comes to the main thread
    thread.start()
    thread.join(PATIENCE_S)
    assert isinstance(raised[0], CameraError)
    assert f"driver 'mine' failed in {call}()" in str(raised[0])
    assert type(error).__name__ in str(raised[0])


def test_declared_errors_are_passed_on() -> None:
    camera = checked(read=raises(CameraLost("unplugged")))
    camera.open()
    with pytest.raises(CameraLost, match="unplugged"):
        camera.read(0.0)


def test_stop_and_close_never_raise(caplog: pytest.LogCaptureFixture) -> None:
    camera = checked(stop=raises(ValueError("no")), close=raises(SystemExit(1)))
    camera.stop()
    camera.close()
    assert "failed in stop()" in caplog.text
    assert "failed in close()" in caplog.text


def test_good_values_of_numpy_become_plain() -> None:
    chunks = {"Gain": np.float32(1.5), "bad": [1], "n": 2**70}
    given = frame(frame_id=np.uint64(3), host_time_ns=np.int64(9), chunks=chunks)
    camera = checked(read=returns(given))
    camera.open()
    found = camera.read(0.0)
    assert found is not None
    assert (type(found.frame_id), found.frame_id, type(found.host_time_ns)) == (int, 3, int)
    assert found.chunks == {"Gain": 1.5}


def test_ids_beyond_63_bits_are_reduced() -> None:
    ids = iter([2**63 - 1, 2**63, 2**64 - 1])
    camera = checked(read=lambda: frame(frame_id=next(ids)))
    camera.open()
    found = [camera.read(0.0) for _ in range(3)]
    assert [each.frame_id for each in found if each is not None] == [2**63 - 1, 0, 2**63 - 1]


def test_camera_without_settings_has_none() -> None:
    camera = CheckedCamera(PlainCamera(), "mine")  # type: ignore[arg-type] # only its settings are asked for
    assert camera.settings() == ()
    with pytest.raises(InputError, match="no adjustable settings"):
        camera.set("exposure", 1.0)


class PlainCamera:
    """A camera without settings."""


# --- calls that do not return


@pytest.fixture
def hanging() -> Iterator[Callable[[], Any]]:
    released = threading.Event()
    yield lambda: released.wait(PATIENCE_S) and None
    released.set()


@pytest.mark.parametrize("call", ["open", "start", "read"])
def test_hanging_call_is_overdue_and_does_not_keep_the_reader(hanging: Callable[[], Any], call: str) -> None:
    camera = checked(**{call: hanging})
    reader = CameraReader(camera, MemoryBudget(1 << 20), lambda: None, read_timeout_s=0.01)
    reader.open()
    reader.start()
    deadline_s = time.monotonic() + PATIENCE_S
    while (error := camera.overdue(0.05)) is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    reader.abandon(error)
    assert reader.finished
    assert f"'mine' does not return from {call}()" in str(reader.failure)
    camera.stop()  # returns at once: the driver is in use by the thread that hangs
    camera.close()
    assert camera.overdue() is None, "within the limit of the call"


def test_driver_that_hangs_in_close_does_not_keep_the_process(
    hanging: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys.modules[kept_open.__module__], "_END_S", 0.05)
    with kept_open(checked(close=hanging)) as camera:
        camera.open()
    assert "does not return from stop() or close()" in caplog.text
