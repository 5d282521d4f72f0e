"""A camera that stays open, and configured, from one series to the next."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sci_stream.errors import CameraError, InputError
from sci_stream.model import CameraCapabilities, CameraFrame
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Parameter, Value
from sci_stream.ports import AdjustableCamera, Camera

log = logging.getLogger(__name__)


class PersistentCamera:
    """Hands a camera from series to series: `close` only stops it, unless it failed, in which case it is closed.

    Opening and configuring takes seconds on some cameras, and may change what they were warmed up to. Satisfies
    `sci_stream.ports.Camera`; used by one thread at a time.

    Parameters
    ----------
    camera
        Not yet open.
    memory
        A file in which what was set outlives this process; None for none. What it holds is set when the camera is
        opened.
    """

    def __init__(self, camera: Camera, memory: Path | None = None) -> None:
        self._camera = camera
        self._failed = False
        self._is_open = False
        self._memory = memory
        self._set: dict[str, Value] = _remembered(memory)

    def open(self) -> CameraCapabilities:
        """Open the camera if it is not open, and set again what was set before it was lost."""
        with self._noting_failure():
            capabilities = self._camera.open()
            if not self._is_open:
                self._is_open = True
                for name, value in self._set.items():
                    capabilities = self._set_again(name, value, capabilities)
            return capabilities

    def _set_again(self, name: str, value: Value, otherwise: CameraCapabilities) -> CameraCapabilities:
        assert isinstance(self._camera, AdjustableCamera)
        try:
            return self._camera.set(name, value)
        except InputError as error:  # it came back as another one: better its frames with a warning than none
            log.error("the camera is back without what was set on it: %s", error)
            return otherwise

    def settings(self) -> Sequence[Parameter]:
        """Return what can be set on the camera: nothing, if it takes no settings."""
        return self._camera.settings() if isinstance(self._camera, AdjustableCamera) else ()

    def set(self, name: str, value: Value) -> CameraCapabilities:
        """Set one of `settings`, for this series and those that follow."""
        if not isinstance(self._camera, AdjustableCamera):
            raise InputError("This camera takes no settings while it runs")
        with self._noting_failure():
            capabilities = self._camera.set(name, value)
        self._set[name] = value
        self._remember()
        return capabilities

    def _remember(self) -> None:
        if self._memory is None:
            return
        new = self._memory.with_suffix(".new")
        try:
            new.write_text(json.dumps(self._set))
            new.rename(self._memory)
        except OSError as error:
            log.warning("what is set on the camera is not kept for the next process: %s", error)

    def calibration(self) -> Calibration | None:
        """Return the calibration that the camera itself knows."""
        return self._camera.calibration()

    def start(self) -> None:
        """Begin delivering frames."""
        with self._noting_failure():
            self._camera.start()

    def read(self, timeout_s: float) -> CameraFrame | None:
        """Return the next frame."""
        with self._noting_failure():
            return self._camera.read(timeout_s)

    @property
    def exhausted(self) -> bool:
        """True once a finite camera has delivered its last frame."""
        return self._camera.exhausted

    def counters(self) -> Mapping[str, int]:
        """Return the driver's own counts since the camera was really opened."""
        return self._camera.counters()

    def stop(self) -> None:
        """Stop delivering."""
        self._camera.stop()

    def close(self) -> None:
        """Stop, and stay open for what follows; a camera that failed is closed, so that it can be opened anew."""
        self._camera.stop()
        if self._failed:
            self._failed = self._is_open = False
            self._camera.close()

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except CameraError:
            self._failed = True
            raise


def _remembered(memory: Path | None) -> dict[str, Value]:
    """Return what an earlier process set; nothing, said so, if that cannot be read."""
    if memory is None or not memory.exists():
        return {}
    try:
        told = json.loads(memory.read_text())
    except (OSError, ValueError) as error:
        log.warning("what was set on the camera cannot be read from %s: %s", memory, error)
        return {}
    entries = told.items() if isinstance(told, dict) else ()
    found = {str(name): value for name, value in entries if isinstance(value, bool | int | float | str)}
    log.warning("the camera is set again as it was: %s", ", ".join(f"{name} = {found[name]}" for name in found))
    return found


@contextlib.contextmanager
def kept_open(camera: Camera, memory: Path | None = None, *, goes_on: bool = False) -> Iterator[PersistentCamera]:
    """Keep a camera open for as many series as there will be, and close it at the end.

    Parameters
    ----------
    memory
        As for `PersistentCamera`; gone once this ends in order.
    goes_on
        Whether a series goes on that an earlier process began: only then is what that one set still in force.
    """
    if memory is not None and not goes_on:
        memory.unlink(missing_ok=True)
    try:
        yield PersistentCamera(camera, memory)
    finally:
        camera.stop()
        camera.close()
    if memory is not None:
        memory.unlink(missing_ok=True)
