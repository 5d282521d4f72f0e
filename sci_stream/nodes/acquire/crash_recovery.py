"""What the acquire node does so that its own death costs nothing: it keeps what is not yet safe, and takes it up."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from sci_stream.delivery.interval_set import IntervalSet
from sci_stream.errors import StorageError
from sci_stream.model import SeriesInfo, Snapshot
from sci_stream.nodes.acquire.spool.file import set_aside
from sci_stream.nodes.acquire.spool.slots import snapshot_bytes
from sci_stream.nodes.acquire.spool.spool import RecoveredState, Spool, done_path, spool_path

log = logging.getLogger(__name__)


class CrashRecovery:
    """A series' spool over the lives of its acquire node; without a place for one, nothing is kept.

    Parameters
    ----------
    folder, rig
        As for `spool_path`.

    Attributes
    ----------
    left
        What an earlier process left of the series that goes on; None where a new one begins.

    Raises
    ------
    StorageError
        If another acquire node has the spool open, or it cannot be used where the rig names its folder. The
        supervisor's folder is done without, if need be.
    """

    def __init__(self, folder: Path | None, rig: str) -> None:
        self._asked_for = folder is not None
        self._path = spool_path(folder, rig)
        self._done = done_path()
        self.spool: Spool | None = None
        self.left: RecoveredState | None = None
        self._accounted = IntervalSet()
        self._first = 0
        taken = Spool.reopen(self._path) if self._path is not None else None
        if taken is not None:
            self.spool, self.left = taken

    def begin(self, info: SeriesInfo, *, truth: bool, limit_bytes: int) -> SeriesInfo:
        """Return the series that runs from here on: the one that was left, if it fits what is there now, else ``info``.

        What does not fit is moved aside and named in the log: other masks or another format cannot go on with it.
        """
        if self._path is None:
            return info
        if self.left is not None:
            assert self.spool is not None
            if misfit := _misfit(self.left.info, info):
                self.spool.close(over=False)
                set_aside(self._path, misfit)
                self.spool = self.left = None
            else:
                self._first = self.left.confirmed
                self.spool.resume(self.left.epoch + 1)
                log.warning(
                    "series %s goes on at %d in epoch %d: %d snapshots were left, %d places held none any more",
                    *(self.left.info.series, self.left.next_seq, self.left.epoch + 1),
                    *(len(self.left.kept), self.left.torn),
                )
                return self.left.info
        most = snapshot_bytes(info.height_px, info.width_px, info.n_frames if truth else 0)
        try:
            self.spool = Spool.create(self._path, info, most_bytes=most, limit_bytes=limit_bytes)
        except StorageError as error:
            if self._asked_for:
                raise
            # Nobody asked for this place: better a rig without a spool than none.
            with contextlib.suppress(OSError):
                self._path.unlink()
            log.warning("no spool: %s What is not yet safe is lost if this node is killed.", error)
        return info

    def keep(self, snapshot: Snapshot, missed: int) -> None:
        """Keep a snapshot; in the camera's thread."""
        if self.spool is not None:
            self.spool.keep(snapshot, missed)

    def number(self, seq: int, epoch: int, missed: int) -> None:
        """Note a snapshot for which there was no memory; in the camera's thread."""
        if self.spool is not None:
            self.spool.number(seq, epoch, missed)

    def confirm(self, seq: int) -> None:
        """Note that the sink has confirmed a snapshot's outcome."""
        if seq >= self._first and self._accounted.add(seq - self._first) and self.spool is not None:
            self.spool.confirmed(self._first + self._accounted.complete_below)

    def run_since(self, monotonic_ns: int) -> None:
        """Note when the camera was started first."""
        if self.spool is not None:
            self.spool.run_since(monotonic_ns)

    def end(self, reason: str) -> None:
        """Note that the series is being ended."""
        if self.spool is not None:
            self.spool.end(reason)

    def close(self, *, over: bool, last: bool = False) -> None:
        """Close it; the file stays unless the series is ``over`` in order. ``last``: no other was asked for."""
        if over and last and self._done is not None:
            with contextlib.suppress(OSError):
                self._done.touch()
        if self.spool is not None:
            self.spool.close(over=over)
            self.spool = None

    def status(self) -> dict[str, int]:
        """Return what is kept, and what there was no room for."""
        return {} if self.spool is None else {"spooled": self.spool.used, "unspooled": self.spool.unspooled}


def _misfit(left: SeriesInfo, now: SeriesInfo) -> str:
    """Return why a series cannot go on as it was, ``""`` if it can."""
    for name in ("height_px", "width_px", "pixel_format", "n_frames", "calibration_hash", "bayer", "policy"):
        before, after = getattr(left, name), getattr(now, name)
        if before != after:
            return f"{name} was {before} and is {after}"
    return ""
