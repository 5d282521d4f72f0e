"""Write one series to its recording and journal, batch by batch, and stop in order when the disk gives out."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sci_stream.delivery.throughput import Rate
from sci_stream.errors import InputError, SciStreamError, StorageError
from sci_stream.model import SeriesInfo
from sci_stream.optics.calibration import Calibration
from sci_stream.storage.journal import Journal
from sci_stream.storage.recording import Compression, RecordingWriter, recording_path
from sci_stream.storage.recording.virtual_dataset import write_whole

_LOG = logging.getLogger(__name__)
_MOST_ROWS_JOINED = 2_000_000
"""Rows of all segments are in memory while a file is laid over them, 300 bytes each: no moment to run out of it."""


class Written(enum.StrEnum):
    """What became of an accepted item."""

    WRITTEN = "written"
    """It is in the file and flushed: it survives the death of this process."""
    DUPLICATE = "duplicate"
    """Its row held it already; nothing was written."""
    LOST = "lost"
    """It is not in the file: the disk refused, or it did not fit the series."""


class RecorderState(enum.StrEnum):
    """What the recorder is doing."""

    IDLE = "idle"
    RECORDING = "recording"
    STOPPED = "stopped"
    """The disk came to its floor; the file was closed in order."""
    FAILED = "failed"
    """Writing failed; the file is readable to its last flush."""


OnDurable = Callable[[Written], None]
"""Called once for each accepted item, on the recorder's thread: it must be quick and must not submit with blocking."""


@dataclass(frozen=True, slots=True)
class RecorderOptions:
    """How to record.

    ``folder`` must exist; the file is named after the series. ``raw`` and ``video`` say what is stored.
    A segment is followed by the next one when it holds ``segment_bytes`` or is ``segment_s`` old; 0 for no limit.
    ``queue_bytes`` bounds what waits, ``batch_items`` what one flush covers and so what a crash can cost.
    Below ``warn_free_bytes`` of disk it warns, below ``floor_free_bytes`` it stops in order.
    """

    folder: Path
    raw: bool = True
    video: bool = True
    compression: Compression = Compression.NONE
    segment_bytes: int = 0
    segment_s: float = 0.0
    queue_bytes: int = 256 << 20
    batch_items: int = 64
    warn_free_bytes: int = 5 << 30
    floor_free_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to write, and whom to tell."""

    n_bytes: int
    write: Callable[[RecordingWriter], bool] | None = None
    on_durable: OnDurable | None = None
    event: Mapping[str, Any] | None = None
    """What the journal is told of it."""
    ledger: Mapping[str, Any] | None = None
    """The account so far, for an item that is one."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What is kept beside the account."""


class SeriesRecording:
    """The recording and journal of one series. Made and used on one thread; its attributes may be read from any.

    Raises
    ------
    StorageError
        If the folder is missing, the disk below its floor, or a file cannot be made.
    InputError
        If the series' name, which may come from afar, is no file name.
    """

    def __init__(
        self,
        info: SeriesInfo,
        calibration: Calibration,
        options: RecorderOptions,
        free: Callable[[Path], int],
    ) -> None:
        self._options = options
        self._free = free
        self.state = RecorderState.RECORDING
        self.reason = ""
        self.warning = ""
        self._path = path = recording_path(options.folder, info.series)
        self._check_folder(path)
        self.writer = RecordingWriter(
            path, info, calibration, raw=options.raw, video=options.video, compression=options.compression
        )
        try:
            self._journal = Journal(path.with_suffix(".journal.jsonl"))
            self._journal.append("series_started", {"series": info.series, "file": self.writer.path.name})
            self._journal.sync()
        except StorageError:
            self.writer.close()
            raise
        self.mb_per_s = 0.0
        self._rate = Rate()
        self._began_s = time.monotonic()
        self._rate.update(self._began_s, 0)
        self.ledger: Mapping[str, Any] | None = None
        self.whole: Path | None = None
        self._closed_bytes = 0
        self._closed_rows = 0
        self._segment_began_s = self._began_s

    @property
    def bytes_written(self) -> int:
        """Bytes of raw counts and video written, all segments together."""
        return self._closed_bytes + self.writer.bytes_written

    @property
    def rows_written(self) -> int:
        """Snapshots of which something is written, all segments together."""
        return self._closed_rows + self.writer.rows_written

    def _check_folder(self, path: Path) -> None:
        folder, floor = self._options.folder, self._options.floor_free_bytes
        if not folder.is_dir():
            raise StorageError(f"The recording folder {folder} does not exist", hint="Make it, or mount it.")
        free = self._free(path)
        if free < floor:
            raise StorageError(
                f"The disk of {folder} has too little space to record",
                expected=f"at least {floor / 1e6:.0f} MB free",
                got=f"{free / 1e6:.0f} MB",
            )

    def write(self, batch: list[Item]) -> None:
        """Write a batch, flush once, and only then tell whoever waits what became of each item."""
        results = [Written.LOST] * len(batch)
        if batch and self.state is RecorderState.RECORDING:
            error = self._write_all(batch, results)
            if error is not None:
                self._stop(RecorderState.FAILED, str(error))
            self._sync()
        for item, result in zip(batch, results, strict=True):
            _call(item.on_durable, result)
        self._measure()
        if self.state is RecorderState.RECORDING:
            self._watch_space()
        if self.state is RecorderState.RECORDING and self._segment_is_full():
            self._begin_segment()

    def _measure(self) -> None:
        """Tell how fast it is written: of late while it goes on, on the whole once it is over."""
        now_s, written = time.monotonic(), self.bytes_written
        self._rate.update(now_s, written)
        if self.state is RecorderState.RECORDING:
            self.mb_per_s = round(self._rate.per_s(now_s) / 1e6, 3)

    def _settle_rate(self) -> None:
        self.mb_per_s = round(self.bytes_written / max(time.monotonic() - self._began_s, 1e-6) / 1e6, 3)

    def _segment_is_full(self) -> bool:
        options = self._options
        full = 0 < options.segment_bytes <= self.writer.bytes_written
        if self.writer.rows_written == 0:
            self._segment_began_s = time.monotonic()
        old = 0 < options.segment_s <= time.monotonic() - self._segment_began_s
        return full or old

    def _begin_segment(self) -> None:
        """Go on in a new file; the one before is closed in order, and names it."""
        last = self.writer
        try:
            self.writer = last.next_segment()
            self._closed_bytes += last.bytes_written
            self._closed_rows += last.rows_written
            last.close(self.ledger, continued=self.writer.path.name)
        except StorageError as error:
            self._stop(RecorderState.FAILED, str(error))
            return
        self._segment_began_s = time.monotonic()
        self._journal.append("segment_started", {"file": self.writer.path.name})
        self._sync()

    def _write_all(self, batch: list[Item], results: list[Written]) -> Exception | None:
        error: Exception | None = None
        try:
            for index, item in enumerate(batch):
                results[index] = self._write_item(item)
        except Exception as failure:  # whatever it is, what was written before it still counts
            error = failure
        try:
            self.writer.flush()
        except Exception as failure:
            results[:] = [Written.LOST if result is Written.WRITTEN else result for result in results]
            error = error or failure
        return error

    def _write_item(self, item: Item) -> Written:
        if item.write is None:
            self.ledger = item.ledger
            self.writer.notes |= item.notes
            self.writer.write_ledger(item.ledger)
            return Written.WRITTEN
        try:
            written = item.write(self.writer)
        except InputError as error:
            # One snapshot that does not fit must not end the recording of all others.
            _LOG.error("not recorded: %s", error)
            self._journal.append("refused", {"error": str(error)})
            return Written.LOST
        if written and item.event is not None:
            self._journal.append("outcome", item.event)
        return Written.WRITTEN if written else Written.DUPLICATE

    def _watch_space(self) -> None:
        free, floor = self._free(self.writer.path), self._options.floor_free_bytes
        if free < floor:
            reason = f"disk full: {free / 1e6:.0f} MB free, floor {floor / 1e6:.0f} MB"
            self._stop(RecorderState.STOPPED, reason)
        elif free < self._options.warn_free_bytes:
            if not self.warning:
                _LOG.warning("%s: disk space is low, %.0f MB free", self.writer.path, free / 1e6)
                self._journal.append("space_low", {"free_bytes": free})
                self._sync()
            self.warning = f"disk space is low: {free / 1e9:.1f} GB free"
        else:
            self.warning = ""

    def _stop(self, state: RecorderState, reason: str) -> None:
        """Stop recording before the series' end, keeping what there is readable."""
        _LOG.error("recording to %s %s: %s", self.writer.path, state, reason)
        self.state, self.reason = state, reason
        self._settle_rate()
        self._journal.append(str(state), {"reason": reason, "file": self.writer.path.name})
        self._sync()
        try:
            self.writer.close()
        except StorageError as error:
            _LOG.error("%s", error)

    def _sync(self) -> None:
        try:
            self._journal.sync()
        except StorageError as error:  # kept, and tried again with the next batch
            _LOG.error("%s", error)

    def finish(self, ledger: Mapping[str, Any] | None) -> StorageError | None:
        """Close recording and journal with the final ledger; return what went wrong unless it was known before."""
        error: StorageError | None = None
        try:
            self.writer.close(ledger)
        except StorageError as failure:
            error = failure
        if error is None and ledger is not None and self.state is RecorderState.RECORDING:
            self._join_segments()
        self._journal.append("series_ended", {"ledger": None if ledger is None else dict(ledger)})
        try:
            self._journal.close()
        except StorageError as failure:
            error = error or failure
        if self.state is not RecorderState.RECORDING:
            return None
        self._settle_rate()
        self.state = RecorderState.IDLE if error is None else RecorderState.FAILED
        self.reason = "" if error is None else str(error)
        return error

    def _join_segments(self) -> None:
        """Lay one file over all segments. That it could not be made costs nothing: ``repair`` makes it later."""
        if self.writer.segment == 0 or self.rows_written > _MOST_ROWS_JOINED:
            return
        try:
            self.whole = write_whole(self._path)
        except SciStreamError as error:
            _LOG.warning("no file over all segments: %s", error)


def _call(on_durable: OnDurable | None, result: Written) -> None:
    if on_durable is None:
        return
    try:
        on_durable(result)
    except Exception:  # a caller's mistake must not end the recording
        _LOG.exception("a callback of the recorder failed")
