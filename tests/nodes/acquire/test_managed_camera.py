"""The camera of an acquire node: open across series, with errors that name its driver; no driver
hangs the node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sci_stream.errors import CameraError, CameraLost, InputError
from sci_stream.model import Array, CameraCapabilities, CameraFrame
from sci_stream.nodes.acquire import managed_camera
from sci_stream.nodes.acquire.camera_reader import CameraReader
from sci_stream.nodes.acquire.in_flight import MemoryBudget
from sci_stream.nodes.acquire.managed_camera import ManagedCamera, managed
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Camera
from sci_stream_drivers.simulated import SimulatedCamera
from tests.drivers.camera_kit import SHOTS, frames, simulated

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


BAD_CAPABILITIES = {"nothing": None, "a tuple": (4, 6)}
BAD_FRAMES = {
    "an array": np.zeros((4, 6), np.uint16),
    "True": True,
    "counts as list": frame(counts=[[0] * 6] * 3),
    "counts of another shape": frame(counts=np.zeros((6, 4), np.uint16)),
    "counts in three dimensions": frame(counts=np.zeros((4, 6, 1), np.uint16)),
    "empty counts": frame(counts=np.zeros((0, 0), np.uint16)),
    "counts as int64": frame(counts=np.zeros((4, 6), np.int64)),
    "counts as float64": frame(counts=np.zeros((4, 6))),
    "counts as objects": frame(counts=np.zeros((4, 6), object)),
    "counts in foreign byte order": frame(
        counts=np.zeros((4, 6), np.dtype(np.uint16).newbyteorder())
    ),
}
BAD_ERRORS = [
    ValueError("no"),
    MemoryError(),
    SystemExit(3),
    KeyboardInterrupt(),
    StopIteration(),
    AttributeError("x"),
]


def managed_driver(**calls: Callable[[], Any]) -> ManagedCamera:
    return ManagedCamera(Driver(**calls), "mine")


@pytest.mark.parametrize("value", BAD_CAPABILITIES.values(), ids=BAD_CAPABILITIES)
def test_bad_capabilities_name_the_driver(value: object) -> None:
    with pytest.raises(CameraError, match=r"driver 'mine' failed in open\(\)"):
        managed_driver(open=returns(value)).open()


@pytest.mark.parametrize("value", BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_bad_frame_names_the_driver(value: object) -> None:
    camera = managed_driver(read=returns(value))
    camera.open()
    with pytest.raises(
        CameraError, match=r"driver 'mine' (delivered another format|failed in read\(\))"
    ):
        camera.read(0.0)


WRONG_LATER = {
    "another type": (np.full((4, 6), 9, np.uint8), "uint8, and uint16 before"),
    "left-justified values": (
        np.full((4, 6), 4095 << 4, np.uint16),
        "multiples of 16: left-justified values of 12 bits",
    ),
    "swapped bytes": (np.full((4, 6), 0xF103, np.uint16), "the bytes of each value are swapped"),
    "values beyond the range": (np.full((4, 6), 4099, np.uint16), "counts up to 4099"),
    "another shape": (np.zeros((2, 6), np.uint16), r"\(2, 6\) uint16"),
}


@pytest.mark.parametrize(("counts", "words"), WRONG_LATER.values(), ids=WRONG_LATER)
def test_format_that_changes_is_named_and_set_again(counts: Array, words: str) -> None:
    script = [frame(), frame(counts=counts), frame(), frame(counts=counts), frame(counts=counts)]
    camera = managed_driver(read=lambda: script.pop(0))
    for kind in (CameraLost, CameraLost, CameraError):
        camera.open()
        if len(script) > 1:
            camera.read(0.0)
        with pytest.raises(CameraError, match=words) as raised:
            camera.read(0.0)
        assert type(raised.value) is kind, "opened again while that helps"
        camera.close()


@pytest.mark.parametrize("error", BAD_ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("call", ["open", "calibration", "start", "read", "exhausted", "counters"])
def test_undeclared_error_names_driver_and_call(call: str, error: BaseException) -> None:
    camera = managed_driver(**{call: raises(error)})
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

    thread = threading.Thread(
        target=use
    )  # as in the acquire node, where Ctrl-C comes to the main thread
    thread.start()
    thread.join(PATIENCE_S)
    assert isinstance(raised[0], CameraError)
    assert f"driver 'mine' failed in {call}()" in str(raised[0])
    assert type(error).__name__ in str(raised[0])


def test_declared_errors_are_passed_on() -> None:
    camera = managed_driver(read=raises(CameraLost("unplugged")))
    camera.open()
    with pytest.raises(CameraLost, match="unplugged"):
        camera.read(0.0)


def test_stop_and_close_never_raise(caplog: pytest.LogCaptureFixture) -> None:
    camera = managed_driver(stop=raises(ValueError("no")), close=raises(SystemExit(1)))
    camera.stop()
    camera.close()
    assert "failed in stop()" in caplog.text
    assert "failed in close()" in caplog.text


def test_camera_without_settings_has_none() -> None:
    camera = ManagedCamera(PlainCamera(), "mine")  # type: ignore[arg-type] # only its settings are asked for
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
def test_hanging_call_is_overdue_and_does_not_keep_the_reader(
    hanging: Callable[[], Any], call: str
) -> None:
    camera = managed_driver(**{call: hanging})
    reader = CameraReader(
        camera, MemoryBudget(1 << 20), lambda: None, lambda captured: captured, read_timeout_s=0.01
    )
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
    monkeypatch.setattr(managed_camera, "_END_S", 0.05)
    with managed(Driver(close=hanging), "mine") as camera:
        camera.open()
    assert "driver does not return" in caplog.text


def test_camera_is_not_released_while_its_reader_uses_it() -> None:
    calls: list[str] = []
    with managed(Driver(close=lambda: calls.append("close")), "mine") as camera:
        camera.user = threading.Thread(target=lambda: (time.sleep(0.05), calls.append("reader")))
        camera.user.start()
    assert calls == ["reader", "close"]


@pytest.mark.parametrize("change", [{"serial": "2"}, {"firmware": "1.1"}, {"model": "another"}])
def test_other_camera_at_a_reopening_is_closed_and_refused(change: dict[str, str]) -> None:
    answers = [GOOD, replace(GOOD, **change), GOOD]
    closed: list[str] = []
    driver = Driver(open=lambda: answers.pop(0), close=lambda: closed.append("close"))
    camera = ManagedCamera(driver, "mine")
    camera.open()
    with pytest.raises(CameraError, match="Another camera, or other firmware"):
        camera.open()
    camera.close()
    assert closed == ["close"], "so that the right one can be found"
    assert camera.open() == GOOD


def test_other_camera_is_accepted_where_the_rig_allows_it() -> None:
    answers = [GOOD, replace(GOOD, serial="2")]
    camera = ManagedCamera(Driver(open=lambda: answers.pop(0)), "mine", other_camera=True)
    assert [camera.open().serial for _ in range(2)] == ["1", "2"]


# --- open across series


class CountingCamera(SimulatedCamera):
    """Counts how often it is opened and closed for real."""

    opens = closes = 0
    is_open = False

    def open(self):  # type: ignore[no-untyped-def]
        self.opens += not self.is_open
        self.is_open = True
        return super().open()

    def close(self) -> None:
        self.closes += self.is_open
        self.is_open = False
        super().close()


def counting_camera(**options: object) -> CountingCamera:
    return CountingCamera(simulated(**options)._options)


def test_managed_camera_satisfies_the_port() -> None:
    assert isinstance(ManagedCamera(simulated(), "simulated"), Camera)


def test_camera_is_opened_once_for_several_series() -> None:
    camera = counting_camera()
    with managed(camera, "simulated") as kept:
        for _ in range(3):
            received = frames(kept)
            assert [frame.frame_id for frame in received] == list(range(SHOTS))
            assert kept.exhausted
            kept.stop()
            kept.close()
        assert (camera.opens, camera.closes) == (1, 0)
        assert kept.counters()["delivered"] == 3 * SHOTS
    assert (camera.opens, camera.closes) == (1, 1)


def test_lost_camera_is_closed_and_reopened() -> None:
    camera = counting_camera(faults={"disconnect_after": 2})
    with managed(camera, "simulated") as kept:
        assert len(frames(kept, 2)) == 2
        with pytest.raises(CameraLost):
            kept.read(1.0)
        kept.stop()
        kept.close()
        assert camera.closes == 1
        assert len(frames(kept, 2)) == 2
        assert camera.opens == 2


def test_camera_that_cannot_be_opened_is_closed() -> None:
    camera = counting_camera(faults={"disconnect_after": 1, "return_after_s": 60.0})
    with managed(camera, "simulated") as kept:
        frames(kept, 1)
        with pytest.raises(CameraLost):
            kept.read(1.0)
        kept.close()
        with pytest.raises(CameraError):
            kept.open()
        kept.close()


def test_settings_persist_across_series_and_reconnects() -> None:
    camera = counting_camera(snapshots=0, snapshot_rate_hz=1000.0, faults={"disconnect_after": 3})
    with managed(camera, "simulated") as kept:
        frames(kept, 1)
        kept.set("snapshot_rate_hz", 500.0)
        kept.close()
        assert kept.open().frame_period_ns == 2_000_000, "the next series"
        kept.start()
        for _ in range(2):  # the first of three was read above
            kept.read(5.0)
        with pytest.raises(CameraLost):
            kept.read(5.0)
        kept.close()
        assert kept.open().frame_period_ns == 2_000_000, "reopened, and set again"
    assert camera.opens == 2
