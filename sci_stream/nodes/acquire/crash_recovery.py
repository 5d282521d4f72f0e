"""Crash recovery for the acquire node: spool unacknowledged snapshots and restore them on restart."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from sci_stream.errors import StorageError
from sci_stream.model import SeriesInfo
from sci_stream.nodes.acquire.spool import RecoveredState, Spool, done_path, quarantine, spool_path

log = logging.getLogger(__name__)


class CrashRecovery:
    """The spool of a series across restarts of its acquire node.

    ``spool`` takes nothing without a folder, and before the series begins; ``recovered`` is the state of a crashed
    predecessor, None if a new series begins.

    Raises
    ------
    StorageError
        If another acquire node has the spool open, or the folder named by the rig is unusable. An unusable folder of
        the supervisor only disables the spool.
    """

    def __init__(self, folder: Path | None, rig: str) -> None:
        self._requested = folder is not None
        self._path = spool_path(folder, rig)
        self._done = done_path()
        self.spool = Spool()
        self.recovered: RecoveredState | None = None
        taken = Spool.reopen(self._path) if self._path is not None else None
        if taken is not None:
            self.spool, self.recovered = taken

    def begin(self, info: SeriesInfo, *, truth: bool, limit_bytes: int) -> SeriesInfo:
        """Return the series to run: the recovered one if it matches the camera and calibration, otherwise ``info``.

        A spool with other masks or another format is quarantined and named in the log.
        """
        if self._path is None:
            return info
        if self.recovered is not None:
            # The spool is quarantined, not deleted: it is the only copy of those snapshots.
            if mismatch := _mismatch(self.recovered.info, info):
                self.spool.close(over=False)
                quarantine(self._path, f"{self.recovered.info.series}: {mismatch}")
                self.spool, self.recovered = Spool(), None
            else:
                self.spool.resume(self.recovered)
                log.warning(
                    "resuming series %s at snapshot %d (epoch %d): %d recovered, %d slots empty or corrupt",
                    *(self.recovered.info.series, self.recovered.next_seq, self.recovered.epoch + 1),
                    *(len(self.recovered.snapshots), self.recovered.corrupt_slots),
                )
                return self.recovered.info
        try:
            self.spool = Spool.create(self._path, info, truth=truth, limit_bytes=limit_bytes)
        except StorageError as error:
            if self._requested:
                raise
            # The user did not configure this folder: run without a spool rather than not at all.
            with contextlib.suppress(OSError):
                self._path.unlink()
            log.warning("spool disabled: %s Unacknowledged snapshots are lost if this node crashes.", error)
        return info

    def progressed(self) -> None:
        """Show a supervisor that is waiting for the end of the series that the sink still confirms."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def close(self, *, over: bool, last: bool = False) -> None:
        """Close the spool; keep the file unless the series is ``over``. ``last``: no further series is requested."""
        if over and last and self._done is not None:
            with contextlib.suppress(OSError):
                self._done.touch()
        self.spool.close(over=over)


def _mismatch(recovered: SeriesInfo, now: SeriesInfo) -> str:
    """Return why a series cannot be resumed, ``""`` if it can."""
    for name in ("height_px", "width_px", "pixel_format", "n_frames", "calibration_hash", "bayer", "policy"):
        before, after = getattr(recovered, name), getattr(now, name)
        if before != after:
            return f"{name} changed from {before} to {after}"
    return ""
