"""Enforce the contract of `sci_stream.ports.Camera`: errors name the driver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np

from sci_stream.errors import CameraError, InputError, SciStreamError
from sci_stream.model import BayerPhase, CameraCapabilities, CameraFrame, FrameIds
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Parameter, Value
from sci_stream.ports import AdjustableCamera, Camera
from sci_stream.wire.payload import MAX_DIM

log = logging.getLogger(__name__)

T = TypeVar("T")

_COUNTS = (np.uint8, np.uint16, np.float32)
_LARGEST = 2**63 - 1
# A driver may return anything: what an error quotes of it stays one line.
_SHOWN = 80
# Time within which each call must return: what drivers need at most, and more.
_LIMITS_S = {"open": 300.0, "calibration": 120.0, "start": 60.0, "stop": 30.0, "close": 30.0, "set": 60.0}
_LIMIT_S = 30.0


class CheckedCamera:
    """A camera whose driver is checked at every call. Satisfies `sci_stream.ports.Camera`.

    Any exception that the port does not declare becomes a `CameraError` that names driver and call; `stop` and `close`
    never raise. What a call returns is checked for type, shape and range. A call that does not return cannot be
    interrupted: `overdue` reports it to another thread.

    Parameters
    ----------
    camera
        Not yet open.
    driver
        Name of its driver.
    """

    def __init__(self, camera: Camera, driver: str) -> None:
        self._camera = camera
        self._driver = driver
        self._capabilities: CameraCapabilities | None = None
        self._calls: dict[int, tuple[str, float, float]] = {}
        self._hangs = False
        self._has_wrapped_ids = False

    # --- the port

    def open(self) -> CameraCapabilities:
        """Connect and configure; return the capabilities."""
        with self._call("open"):
            capabilities = self._camera.open()
        self._capabilities = self._checked_capabilities("open", capabilities)
        return self._capabilities

    def calibration(self) -> Calibration | None:
        """Return the camera's own calibration."""
        with self._call("calibration"):
            calibration = self._camera.calibration()
        return None if calibration is None else self._require("calibration", calibration, Calibration)

    def start(self) -> None:
        """Start delivering frames."""
        with self._call("start"):
            self._camera.start()

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Return the next frame, or None after the timeout."""
        with self._call("read", timeout_s):
            frame = self._camera.read(timeout_s)
        return None if frame is None else self._checked_frame(self._require("read", frame, CameraFrame))

    @property
    def exhausted(self) -> bool:
        """True once a finite camera has delivered its last frame."""
        with self._call("exhausted"):
            return bool(self._camera.exhausted)

    def counters(self) -> Mapping[str, int]:
        """Return the driver's counters; those that are no counts are left out."""
        with self._call("counters"):
            counters = dict(self._mapping("counters", self._camera.counters()))
        return {
            str(name): int(count)
            for name, count in counters.items()
            if isinstance(count, int | np.integer) and -_LARGEST <= count <= _LARGEST
        }

    def stop(self) -> None:
        """Stop delivering; log what the driver raises."""
        self._call_and_log("stop", self._camera.stop)

    def close(self) -> None:
        """Release all resources; log what the driver raises."""
        self._call_and_log("close", self._camera.close)

    def settings(self) -> Sequence[Parameter]:
        """Return the settings that can be changed now; none if the camera has no adjustable ones."""
        if not isinstance(self._camera, AdjustableCamera):
            return ()
        with self._call("settings"):
            found = tuple(self._camera.settings())
        for parameter in found:
            self._require("settings", parameter, Parameter)
        return found

    def set(self, name: str, value: Value) -> CameraCapabilities:
        """Change a setting."""
        if not isinstance(self._camera, AdjustableCamera):
            raise InputError("This camera has no adjustable settings")
        with self._call("set"):
            capabilities = self._camera.set(name, value)
        self._capabilities = self._checked_capabilities("set", capabilities)
        return self._capabilities

    # --- calls

    def overdue(self, grace_s: float | None = None) -> CameraError | None:
        """Return an error if a call has not returned within its limit, or within ``grace_s`` more than it asked for.

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
                    hint="The driver or the camera hangs: power-cycle the camera and tell the driver's author.",
                )
        return None

    @contextmanager
    def _call(self, name: str, timeout_s: float = 0.0) -> Iterator[None]:
        thread = threading.get_ident()
        self._calls[thread] = (name, time.monotonic(), timeout_s)
        try:
            yield
        except SciStreamError:
            raise
        except BaseException as error:  # a driver may also call sys.exit()
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
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

    # --- checks

    def _breach(self, call: str, what: str, expected: object, got: object) -> CameraError:
        return CameraError(
            f"The camera driver {self._driver!r} breaks its contract: {call}() returned {what}",
            expected=expected,
            got=got,
            hint="This is an error of the driver; sci_stream.ports and sci_stream.model describe the contract.",
        )

    def _mapping(self, call: str, value: object) -> Mapping[object, object]:
        if not isinstance(value, Mapping):
            raise self._breach(call, "another type", "a mapping", type(value).__name__)
        return value

    def _require(self, call: str, value: object, kind: type[T]) -> T:
        if not isinstance(value, kind):
            raise self._breach(call, "another type", kind.__name__, type(value).__name__)
        return value

    def _require_integer(
        self, call: str, value: object, name: str, low: int, high: int, *, optional: bool = False
    ) -> None:
        number = getattr(value, name)
        if not (optional and number is None) and not _is_integer(number, low, high):
            raise self._breach(call, f"an invalid {name}", f"an integer from {low} to {high}", repr(number))

    def _checked_capabilities(self, call: str, value: object) -> CameraCapabilities:
        found = self._require(call, value, CameraCapabilities)
        self._require_integer(call, found, "height_px", 1, MAX_DIM)
        self._require_integer(call, found, "width_px", 1, MAX_DIM)
        self._require_integer(call, found, "bit_depth", 1, 64)
        self._require_integer(call, found, "n_frames", 1, MAX_DIM, optional=True)
        self._require_integer(call, found, "frame_period_ns", 0, _LARGEST, optional=True)
        for name in ("model", "serial", "pixel_format", "clock"):
            if not isinstance(getattr(found, name), str):
                raise self._breach(call, f"an invalid {name}", "a text", repr(getattr(found, name))[:_SHOWN])
        if found.bayer is not None:
            self._require(call, found.bayer, BayerPhase)
            if found.height_px % 2 or found.width_px % 2:
                raise self._breach(call, "a Bayer sensor", "even sizes", f"{found.height_px}×{found.width_px}")
        ids = self._require(call, found.frame_ids, FrameIds)
        if not _is_integer(ids.first, 0, _LARGEST) or not (ids.last is None or _is_integer(ids.last, ids.first, 2**64)):
            raise self._breach(call, "invalid frame_ids", "integers first <= last", f"{ids.first!r}, {ids.last!r}")
        self._mapping(call, found.chunks)
        return found

    def _checked_frame(self, frame: CameraFrame) -> CameraFrame:
        capabilities = self._capabilities
        if capabilities is None:
            raise self._breach("read", "a frame", "none before open()", "one")
        counts = self._require("read", frame.counts, np.ndarray)
        shape = (capabilities.height_px, capabilities.width_px)
        if counts.shape != shape:
            raise self._breach("read", "counts of another shape", shape, counts.shape)
        if counts.dtype not in _COUNTS:
            raise self._breach("read", "counts of another type", "uint8, uint16 or float32", counts.dtype)
        self._require_integer("read", frame, "camera_time_ns", 0, _LARGEST, optional=True)
        self._require_integer("read", frame, "host_time_ns", 0, _LARGEST)
        truth: object = frame.truth
        if truth is not None and not (
            isinstance(truth, np.ndarray) and truth.ndim == 3 and truth.shape[1:] == shape and truth.dtype.kind in "uf"
        ):
            raise self._breach("read", "an invalid truth", f"an array (B, {shape[0]}, {shape[1]})", _described(truth))
        return replace(
            frame,
            counts=np.ascontiguousarray(counts),
            frame_id=self._checked_id(frame.frame_id),
            camera_time_ns=None if frame.camera_time_ns is None else int(frame.camera_time_ns),
            host_time_ns=int(frame.host_time_ns),
            chunks=self._checked_chunks(frame.chunks),
        )

    def _checked_id(self, frame_id: object) -> int | None:
        if frame_id is None:
            return None
        if not isinstance(frame_id, int | np.integer) or isinstance(frame_id, bool) or frame_id < 0:
            raise self._breach("read", "an invalid frame_id", "an integer of at least 0, or None", repr(frame_id))
        if frame_id > _LARGEST and not self._has_wrapped_ids:
            self._has_wrapped_ids = True
            log.warning("frame ids of the camera exceed 2^63 − 1: their lower 63 bits are used")
        return int(frame_id) & _LARGEST

    def _checked_chunks(self, chunks: object) -> dict[str, bool | int | float | str]:
        """Return the chunk data as plain values; what is none is left out, since it must not prevent the frame."""
        found = self._mapping("read", chunks)
        plain: dict[str, bool | int | float | str] = {}
        for name, given in found.items():
            value: object = given.item() if isinstance(given, np.generic) else given
            if isinstance(value, bool | float | str) or (isinstance(value, int) and abs(value) <= _LARGEST):
                plain[str(name)] = value
        return plain


def _is_integer(value: object, low: int, high: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(low <= value <= high)


def _described(value: object) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
