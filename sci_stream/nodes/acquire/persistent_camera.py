"""A camera that stays open and configured between series."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sci_stream.errors import CameraError, FileFormatError, InputError
from sci_stream.file_guard import read_small
from sci_stream.model import CameraCapabilities, CameraFrame
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Parameter, Value
from sci_stream.ports import AdjustableCamera

log = logging.getLogger(__name__)

# The file is read back from a folder on disk: a damaged one must not fill the memory.
_MOST_FILE_BYTES = 1 << 20

# Time for the driver to release the camera at the end.
_END_S = 30.0


class PersistentCamera:
    """Keep a camera open across series: `close` only stops it, unless the camera failed.

    Opening and configuring takes seconds on some cameras and can disturb their thermal state. Satisfies
    `sci_stream.ports.Camera`; used by one thread at a time.

    Parameters
    ----------
    camera
        Not yet open.
    file
        File that preserves changed settings across a crash of this process, applied when the camera is opened; None for
        none.
    """

    def __init__(self, camera: AdjustableCamera, file: Path | None = None) -> None:
        self._camera = camera
        self._failed = False
        self._is_open = False
        self._file = file
        self._changed: dict[str, Value] = _saved_settings(file)

    def open(self) -> CameraCapabilities:
        """Open the camera if it is closed, and restore its changed settings."""
        with self._noting_failure():
            capabilities = self._camera.open()
            if not self._is_open:
                self._is_open = True
                for name, value in self._changed.items():
                    capabilities = self._restore_setting(name, value, capabilities)
            return capabilities

    def _restore_setting(self, name: str, value: Value, otherwise: CameraCapabilities) -> CameraCapabilities:
        try:
            return self._camera.set(name, value)
        except InputError as error:  # a replaced camera may refuse them: frames with a warning are better than none
            log.error("cannot restore the camera settings: %s", error)
            return otherwise

    def settings(self) -> Sequence[Parameter]:
        """Return the settings that can be changed now."""
        return self._camera.settings()

    def set(self, name: str, value: Value) -> CameraCapabilities:
        """Change one of `settings`, for this series and the following ones."""
        with self._noting_failure():
            capabilities = self._camera.set(name, value)
        self._changed[name] = value
        self._save_settings()
        return capabilities

    def _save_settings(self) -> None:
        if self._file is None:
            return
        new = self._file.with_suffix(".new")
        try:
            new.write_text(json.dumps(self._changed))
            new.rename(self._file)
        except OSError as error:
            log.warning("cannot save the camera settings; a restarted node will not restore them: %s", error)

    def calibration(self) -> Calibration | None:
        """Return the camera's own calibration."""
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
        """Return the driver's counters since the camera was opened."""
        return self._camera.counters()

    def stop(self) -> None:
        """Stop delivering."""
        self._camera.stop()

    def close(self) -> None:
        """Stop and stay open for the next series; a failed camera is closed, so that it can be reopened."""
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


def _saved_settings(file: Path | None) -> dict[str, Value]:
    """Return the settings saved by an earlier process; on a read error log a warning and return none."""
    if file is None or not file.exists():
        return {}
    try:
        saved = json.loads(read_small(file, "saved camera settings", _MOST_FILE_BYTES))
    except (FileFormatError, ValueError, RecursionError) as error:
        log.warning("cannot read the saved camera settings from %s: %s", file, error)
        return {}
    entries = saved.items() if isinstance(saved, dict) else ()
    found = {str(name): value for name, value in entries if isinstance(value, bool | int | float | str)}
    log.warning("camera settings restored: %s", ", ".join(f"{name} = {found[name]}" for name in found))
    return found


def _stop_and_close(camera: AdjustableCamera) -> None:
    camera.stop()
    camera.close()


@contextlib.contextmanager
def kept_open(
    camera: AdjustableCamera, file: Path | None = None, *, resume: bool = False
) -> Iterator[PersistentCamera]:
    """Keep a camera open for all series and close it at the end.

    Parameters
    ----------
    file
        As for `PersistentCamera`; deleted at a clean end.
    resume
        Whether a series is resumed: only then do the saved settings still apply.
    """
    if file is not None and not resume:
        file.unlink(missing_ok=True)
    try:
        yield PersistentCamera(camera, file)
    finally:
        # In a thread of its own: a driver that hangs must not keep the process.
        end = threading.Thread(target=_stop_and_close, args=(camera,), name="camera-end", daemon=True)
        end.start()
        end.join(_END_S)
        if end.is_alive():
            log.error("the camera driver does not return from stop() or close(): ending without it")
    if file is not None:
        file.unlink(missing_ok=True)
