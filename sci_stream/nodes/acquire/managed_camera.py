"""The camera of an acquire node: open across series, with errors that name its driver, and with an
eye on the clock.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sci_stream.devices.modulated_camera import ModulatedCamera
from sci_stream.errors import CameraError, CameraLost, InputError, SciStreamError
from sci_stream.model import Array, CameraCapabilities, CameraFrame
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Parameter, Value
from sci_stream.ports import AdjustableCamera, Camera

log = logging.getLogger(__name__)

_COUNTS = (np.uint8, np.uint16, np.float32)
# Time within which each call must return: what drivers need at most, and more.
_LIMITS_S = {
    "open": 300.0,
    "calibration": 120.0,
    "start": 60.0,
    "stop": 30.0,
    "close": 30.0,
    "set": 60.0,
}
_LIMIT_S = 30.0
# So many pixels show the range of the counts: one bright pixel in a thousand is enough.
_SAMPLES = 65_536
# Time for the driver to release the camera at the end.
_END_S = 30.0


class ManagedCamera:
    """A camera that stays open across series.

    Satisfies `sci_stream.ports.Camera`; used by one thread at a time.

    Opening and configuring takes seconds on some cameras and can disturb their thermal state:
    `close` only stops the camera, unless it failed. Changed settings are set again when it is
    reopened.

    Any exception that the port does not declare becomes a `CameraError` that names driver and call;
    `stop` and `close` never raise. Shape, type and range of each frame are checked;
    `sci_stream_testing.cameras` tests the rest of the contract. A call that does not return cannot
    be interrupted: `overdue` reports it to another thread. ``driver`` is the driver's name.
    ``other_camera`` allows another serial number or firmware when it is reopened.
    """

    def __init__(self, camera: Camera, driver: str, *, other_camera: bool = False) -> None:
        self._camera = camera
        self._driver = driver
        self._other_camera = other_camera
        self._identity = ""
        self._changed: dict[str, Value] = {}
        self._shape = (0, 0)
        self._bits = 0
        self._dtype: np.dtype[Any] | None = None
        self._is_good = False
        self._is_open = self._failed = self._hangs = False
        self._calls: dict[int, tuple[str, float, float]] = {}
        self.user = threading.Thread()
        """The thread of the last series: in a slow call of the driver, it outlasts that series."""

    # --- the port

    def open(self) -> CameraCapabilities:
        """Connect and configure if it is closed, and restore changed settings; return the
        capabilities.
        """
        with self._call("open"):
            capabilities = self._camera.open()
            self._require_same(capabilities)
            self._shape = (capabilities.height_px, capabilities.width_px)
            self._bits = capabilities.bit_depth
        if not self._is_open:
            self._is_open = True
            self._is_good = False
            for name, value in self._changed.items():
                try:
                    capabilities = self._set(name, value)
                except InputError as error:
                    # a replaced camera may refuse: frames with a warning are better than none
                    log.error("cannot restore the camera settings: %s", error)
        return capabilities

    def _require_same(self, capabilities: CameraCapabilities) -> None:
        """Raise `CameraError` if another camera answers than the first one of this run."""
        identity = f"{capabilities.model} {capabilities.serial} {capabilities.firmware}".strip()
        if self._identity not in ("", identity) and not self._other_camera:
            raise CameraError(
                "Another camera, or other firmware, answers than before",
                expected=self._identity,
                got=identity,
                hint="Connect the camera of this run, or set [calibration] other_camera = true.",
            )
        self._identity = identity

    def settings(self) -> Sequence[Parameter]:
        """Return the settings that can be changed now;
        none if the camera has no adjustable ones.
        """
        if not isinstance(self._camera, AdjustableCamera):
            return ()
        with self._call("settings"):
            return tuple(self._camera.settings())

    def set(self, name: str, value: Value) -> CameraCapabilities:
        """Change one of `settings`, for this series and the following ones."""
        capabilities = self._set(name, value)
        self._changed[name] = value
        return capabilities

    def _set(self, name: str, value: Value) -> CameraCapabilities:
        if not isinstance(self._camera, AdjustableCamera):
            raise InputError("This camera has no adjustable settings")
        with self._call("set"):
            capabilities = self._camera.set(name, value)
            self._shape = (capabilities.height_px, capabilities.width_px)
        return capabilities

    def calibration(self) -> Calibration | None:
        """Return the camera's own calibration."""
        with self._call("calibration"):
            return self._camera.calibration()

    def start(self) -> None:
        """Start delivering frames."""
        with self._call("start"):
            self._camera.start()

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Return the next frame, or None after the timeout."""
        with self._call("read", timeout_s):
            frame = self._camera.read(timeout_s)
            if frame is None:
                return None
            counts = np.ascontiguousarray(frame.counts)
        self._check_format(counts)
        return frame if counts is frame.counts else replace(frame, counts=counts)

    def _check_format(self, counts: Array) -> None:
        """Refuse a frame that is not in the announced format.

        Raises `CameraLost` after right frames: another program has changed the format, and the
        camera is configured again. Otherwise it is an error of the driver.
        """
        got = ""
        if counts.shape != self._shape or counts.dtype not in _COUNTS:
            got = f"{counts.shape} {counts.dtype}"
        elif self._dtype not in (None, counts.dtype):
            got = f"{counts.dtype}, and {self._dtype} before"
        elif counts.dtype.kind == "u":
            got = _out_of_range(counts, self._bits)
        if not got:
            self._is_good = True
            self._dtype = counts.dtype
            return
        self._failed = True
        kind = CameraLost if self._is_good else CameraError
        raise kind(
            f"The camera driver {self._driver!r} delivered another format than it announced",
            expected=f"counts of {self._shape} uint8, uint16 or float32, of {self._bits} bits",
            got=got,
            hint="Another program has changed the format, or this is an error of the driver.",
        )

    @property
    def exhausted(self) -> bool:
        """True once a finite camera has delivered its last frame."""
        with self._call("exhausted"):
            return self._camera.exhausted

    def counters(self) -> Mapping[str, int]:
        """Return the driver's counters since the camera was opened."""
        with self._call("counters"):
            return dict(self._camera.counters())

    @property
    def actions(self) -> Mapping[str, Callable[[], str]]:
        """Actions of an operator on the mask modulator, by name."""
        return self._camera.actions if isinstance(self._camera, ModulatedCamera) else {}

    def observe(self, evidence: Mapping[str, Value]) -> None:
        """Take the evidence of a video about the mask modulator; from any thread."""
        if isinstance(self._camera, ModulatedCamera):
            self._camera.observe(evidence)

    def stop(self) -> None:
        """Stop delivering; log exceptions of the driver."""
        self._call_and_log("stop", self._camera.stop)

    def close(self) -> None:
        """Stop and stay open for the next series; a failed camera is closed, so that it can be
        reopened.
        """
        self.stop()
        if self._failed:
            self._failed = self._is_open = False
            self._call_and_log("close", self._camera.close)

    # --- calls

    def overdue(self, grace_s: float | None = None) -> CameraError | None:
        """Return an error if a call has not returned within its limit, or within ``grace_s`` more
        than it asked for.

        May be called from any thread.
        """
        now_s = time.monotonic()
        for call, began_s, timeout_s in list(self._calls.values()):
            limit_s = timeout_s + (_LIMITS_S.get(call, _LIMIT_S) if grace_s is None else grace_s)
            if now_s - began_s > limit_s:
                self._hangs = True
                return CameraError(
                    f"The camera driver {self._driver!r} does not return from {call}()",
                    expected=f"a return within {limit_s:g} s",
                    hint="The driver or the camera hangs: power-cycle the camera and tell the "
                    "driver's author.",
                )
        return None

    @contextlib.contextmanager
    def _call(self, name: str, timeout_s: float = 0.0) -> Iterator[None]:
        thread = threading.get_ident()
        self._calls[thread] = (name, time.monotonic(), timeout_s)
        try:
            yield
        except CameraError:
            self._failed = True
            raise
        except SciStreamError:
            raise
        except BaseException as error:  # a driver may also call sys.exit()
            if (
                isinstance(error, KeyboardInterrupt)
                and threading.current_thread() is threading.main_thread()
            ):
                raise
            self._failed = True
            log.exception("the camera driver %r failed in %s()", self._driver, name)
            raise CameraError(
                f"The camera driver {self._driver!r} failed in {name}()",
                got=f"{type(error).__name__}: {error}",
                hint="This is an error of the driver; the log has its traceback.",
            ) from error
        finally:
            self._calls.pop(thread, None)

    def _call_and_log(self, name: str, call: Callable[[], None]) -> None:
        if self._hangs and self._calls:
            return  # another thread is in the driver, and would not let this one in
        try:
            with self._call(name):
                call()
        except SciStreamError as error:
            log.error("%s", error)

    def release(self) -> None:
        """Stop and close the camera at the end of the process, whether it failed or not."""
        if self.user.is_alive() and not self._hangs:
            self.user.join()
        self._failed = True
        self.close()


def _out_of_range(counts: Array, bits: int) -> str:
    """Return how counts exceed the range of a format, ``""`` if they do not."""
    sample = counts.reshape(-1)[:: max(1, counts.size // _SAMPLES)]
    top = int(sample.max())
    limit = 2**bits - 1
    if top <= limit:
        return ""
    spare = 8 * counts.itemsize - bits
    got = f"counts up to {top}"
    if not (sample & (2**spare - 1)).any():
        return f"{got}, all multiples of {2**spare}: left-justified values of {bits} bits"
    if sample.byteswap().max() <= limit:
        return f"{got}: the bytes of each value are swapped"
    return got


@contextlib.contextmanager
def managed(camera: Camera, driver: str, *, other_camera: bool = False) -> Iterator[ManagedCamera]:
    """Manage a camera for all series and close it at the end."""
    made = ManagedCamera(camera, driver, other_camera=other_camera)
    try:
        yield made
    finally:
        # In a thread of its own: a driver that hangs must not keep the process.
        end = threading.Thread(target=made.release, name="camera-end", daemon=True)
        end.start()
        end.join(_END_S)
        if end.is_alive():
            log.error("the camera driver does not return: ending without it")
