"""Write one series to its recording and journal in batches,
and stop cleanly when the disk is full.
"""

from __future__ import annotations

import enum
import functools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from sci_stream.config import RecordSection
from sci_stream.delivery.ledger import LedgerCounts
from sci_stream.delivery.rate_limit import TokenBucket
from sci_stream.delivery.throughput import ThroughputMeter
from sci_stream.delivery.trigger_ring import Event
from sci_stream.errors import InputError, StorageError
from sci_stream.model import Json, JsonObject, Reconstruction, SeriesInfo, Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import SettingChange
from sci_stream.recording.journal import Journal
from sci_stream.recording.layout import Compression
from sci_stream.recording.segments import free_bytes, recording_path
from sci_stream.recording.writer import RecordingWriter
from sci_stream.wire.codec import payload_bytes
from sci_stream.wire.messages import Dropped, RawSnapshots

_LOG = logging.getLogger(__name__)
MIB = 1 << 20
# A next segment that cannot be created (too many open files, folder missing) is tried again after
# this time.
_RETRY_SEGMENT_S = 5.0
# Size of a queued item apart from its arrays, so that items without arrays are bounded too.
_ITEM_OVERHEAD_BYTES = 512


class Written(enum.StrEnum):
    """Result of writing an accepted item."""

    WRITTEN = "written"
    """Written and flushed, now or before: it survives a crash of this process."""
    LOST = "lost"
    """Not written, though recording is on: disk error, or it does not fit the series."""
    OFF = "off"
    """Recording is switched off."""


class RecorderState(enum.StrEnum):
    """States of the recorder."""

    IDLE = "idle"
    RECORDING = "recording"
    STOPPED = "stopped"
    """Free disk space fell below the floor; the file was closed cleanly."""
    FAILED = "failed"
    """Writing failed; the file is readable up to its last flush."""
    CLOSING = "closing"
    """The operator has stopped it; accepted items are still being written."""
    OFF = "off"
    """The operator has stopped it, and the file is closed."""


OnDurable = Callable[[Written], None]
"""Called once per accepted item, and for each of `RawSnapshots` in order, in the recorder's thread;
must be fast and must not block."""


@dataclass(frozen=True)
class LedgerNote:
    """The ledger at this moment, so that a crash leaves a recent one in the file, with ``notes``
    next to it.
    """

    ledger: LedgerCounts
    notes: JsonObject = field(default_factory=dict)
    settled_below: int = 0  # snapshots before it need no row in the next segment


@dataclass(frozen=True)
class NotKept:
    """The outcome of a snapshot that no event covers."""

    seq: int


OfSnapshot = Snapshot | RawSnapshots | Reconstruction | Dropped
"""A message that is recorded and counted: raw snapshots, a result, or the outcome of snapshots
without one."""
Recordable = OfSnapshot | NotKept | LedgerNote | SettingChange | Event
"""Such a message, the outcome of a snapshot without one, or a note beside them."""
_WITH_ARRAYS = (Snapshot, RawSnapshots, Reconstruction)


class RawSnapshot(NamedTuple):
    """One of `RawSnapshots`: its counts are its outcome."""

    snapshot: Snapshot


@dataclass(frozen=True)
class Item:
    """Data to write, and its callback."""

    data: Recordable
    on_durable: OnDurable

    @functools.cached_property
    def n_bytes(self) -> int:
        """Its size in the queue."""
        arrays = payload_bytes(self.data) if isinstance(self.data, _WITH_ARRAYS) else 0
        return arrays + _ITEM_OVERHEAD_BYTES

    def parts(self) -> Iterator[Recordable | RawSnapshot]:
        """Yield the data, of `RawSnapshots` each snapshot: one that cannot be written does not
        spoil the others.
        """
        if isinstance(self.data, RawSnapshots):
            yield from map(RawSnapshot, self.data.snapshots())
        else:
            yield self.data


class SeriesRecording:
    """The recording and journal of one series.

    Used in one thread; its attributes may be read from any.

    The folder of ``section``, ``[record]`` of the rig, must exist.

    Raises `StorageError` if the folder is missing, free disk space is below its floor, or a file
    cannot be created; `InputError` if the series name, which may come from the network, is not a
    valid file name.
    """

    def __init__(
        self,
        info: SeriesInfo,
        calibration: Calibration,
        section: RecordSection,
        settled_below: int = 0,
        *,
        picture: bool = False,
    ) -> None:
        self._section = section
        self._floor_bytes = section.min_free_mib * MIB
        self._warn_bytes = 8 * self._floor_bytes
        self.state = RecorderState.RECORDING
        self.reason = ""
        self.warning = ""
        self._path = path = recording_path(section.folder, info.series)
        self._check_folder(path)
        self.writer = RecordingWriter(
            path,
            info,
            calibration,
            raw=section.raw,
            video=section.video,
            picture=picture,
            error=section.error,
            compression=Compression(section.compression),
            video_dtype=section.video_dtype,
            settled_below=settled_below,
        )
        try:
            self._journal = Journal(path.with_suffix(".journal.jsonl"))
            self._journal.append(
                "series_started", {"series": info.series, "file": self.writer.path.name}
            )
            self._journal.sync()
        except StorageError:
            self.writer.close()
            raise
        self.mb_per_s = 0.0
        self._rate = ThroughputMeter()
        self._lines = TokenBucket(1.0, 20)
        self._began_s = time.monotonic()
        self._rate.update(self._began_s, 0)
        self.ledger: LedgerCounts | None = None
        self._closed_bytes = 0
        self._closed_rows = 0
        self._segment_began_s = self._began_s
        self._next_segment_s = float("-inf")
        self._segment_problem = ""

    @property
    def bytes_written(self) -> int:
        """Bytes of raw counts and video written, all segments together."""
        return self._closed_bytes + self.writer.bytes_written

    @property
    def rows_written(self) -> int:
        """Snapshots with written data, all segments together."""
        return self._closed_rows + self.writer.rows_written

    def _check_folder(self, path: Path) -> None:
        folder = self._section.folder
        floor = self._floor_bytes
        if not folder.is_dir():
            raise StorageError(
                f"The recording folder {folder} does not exist", hint="Create or mount it."
            )
        self.free_bytes = free = free_bytes(path)
        if free < floor:
            raise StorageError(
                f"Not enough disk space in {folder}",
                expected=f"at least {floor / 2**20:.0f} MiB free",
                got=f"{free / 2**20:.1f} MiB",
            )

    def write(self, batch: list[Item]) -> None:
        """Write a batch, flush once, then call the callbacks."""
        parts = [(item, part) for item in batch for part in item.parts()]
        results = [Written.LOST] * len(parts)
        if batch and self.state is RecorderState.RECORDING:
            error = self._write_all([part for _, part in parts], results)
            if error is not None:
                self._stop(RecorderState.FAILED, str(error))
            self._sync()
        for (item, _), result in zip(parts, results, strict=True):
            try:
                item.on_durable(result)
            except Exception:  # a caller's error must not end the recording
                _LOG.exception("a callback of the recorder failed")
        self._measure()
        try:
            if self.state is RecorderState.RECORDING and (reason := self.writer.displaced()):
                self._stop(RecorderState.FAILED, reason)  # the rest would be lost without notice
            if self.state is RecorderState.RECORDING:
                self._watch_space()
            if self.state is RecorderState.RECORDING and self._segment_is_full():
                self._begin_segment()
        except (
            Exception
        ) as error:  # the thread of the recorder must go on: the sink waits for its callbacks
            _LOG.exception("the recorder failed")
            self._stop(RecorderState.FAILED, str(error))

    def _measure(self) -> None:
        """Update the write rate, which is the recent one while recording."""
        now_s = time.monotonic()
        written = self.bytes_written
        self._rate.update(now_s, written)
        if self.state is RecorderState.RECORDING:
            self.mb_per_s = round(self._rate.per_s(now_s) / 1e6, 3)

    def _settle_rate(self) -> None:
        """Set the write rate to the average of the whole recording."""
        self.mb_per_s = round(
            self.bytes_written / max(time.monotonic() - self._began_s, 1e-6) / 1e6, 3
        )

    def _segment_is_full(self) -> bool:
        full = 0 < self._section.segment_mib * MIB <= self.writer.bytes_written
        if self.writer.rows_written == 0:
            self._segment_began_s = time.monotonic()
        old = 0 < self._section.segment_minutes * 60 <= time.monotonic() - self._segment_began_s
        return (full or old) and time.monotonic() >= self._next_segment_s

    def _begin_segment(self) -> None:
        """Continue in a new file; close the previous one cleanly, with a reference to it.

        If the file cannot be created, the open one is continued: it needs no further file
        descriptor.
        """
        last = self.writer
        try:
            self.writer = last.next_segment()
        except Exception as error:  # whatever fails, the open segment can still be written
            self._next_segment_s = time.monotonic() + _RETRY_SEGMENT_S
            _LOG.error(
                "%s grows beyond its limit, because the next segment cannot begin: %s",
                last.path,
                error,
            )
            self._segment_problem = f"the next segment cannot begin: {error}"
            return
        self._segment_problem = ""
        self._closed_bytes += last.bytes_written
        self._closed_rows += last.rows_written
        try:
            last.close(self.ledger, continued=self.writer.path.name)
        except Exception as error:  # its rows are flushed; the series continues in the new segment
            _LOG.error(
                "segment %s not closed cleanly, readable up to its last flush: %s", last.path, error
            )
        self._segment_began_s = time.monotonic()
        self._journal.append("segment_started", {"file": self.writer.path.name})
        self._sync()

    def _write_all(
        self, parts: list[Recordable | RawSnapshot], results: list[Written]
    ) -> Exception | None:
        error: Exception | None = None
        try:
            for index, part in enumerate(parts):
                results[index] = self._write_part(part)
        except Exception as failure:  # whatever fails, earlier items are written
            error = failure
        try:
            self.writer.flush()
        except Exception as failure:
            results[:] = [
                Written.LOST if result is Written.WRITTEN else result for result in results
            ]
            error = error or failure
        return error

    def _write_part(self, data: Recordable | RawSnapshot) -> Written:
        try:
            match data:
                case Snapshot():
                    self.writer.write_raw(data)
                case RawSnapshot(snapshot):
                    self.writer.write_raw(snapshot, is_outcome=True)
                case Reconstruction():
                    self.writer.write_reconstruction(data)
                case Dropped():
                    self._write_outcome(data)
                case NotKept():
                    self.writer.write_outcome(data.seq, "not_kept")
                case LedgerNote():
                    self.ledger = data.ledger
                    self.writer.notes |= data.notes
                    self.writer.settled_below = data.settled_below
                    self.writer.write_ledger(data.ledger)
                case SettingChange() | Event():
                    self._journal.append(
                        "changed" if isinstance(data, SettingChange) else "event", asdict(data)
                    )
        except (InputError, ValueError, TypeError, ArithmeticError) as error:
            # One invalid snapshot must not end the recording.
            if self._lines.take(time.monotonic()):
                _LOG.error("not recorded: %s", error)
            self._journal.append("refused", {"error": str(error)})
            return Written.LOST
        return Written.WRITTEN

    def _write_outcome(self, dropped: Dropped) -> None:
        outcome = dropped.outcome
        reason = dropped.reason
        written = [self.writer.write_outcome(seq, outcome, reason) for seq in dropped.seqs]
        if any(written):
            event: JsonObject = {"seq": dropped.seq, "outcome": outcome, "reason": reason}
            self._journal.append(
                "outcome", event | ({"count": dropped.count} if dropped.count > 1 else {})
            )

    def _watch_space(self) -> None:
        try:
            self.free_bytes = free = free_bytes(self.writer.path)
        except OSError as error:
            self._stop(
                RecorderState.FAILED,
                f"{self.writer.path.parent} cannot be accessed: {error.strerror}",
            )
            return
        floor = self._floor_bytes
        if free < floor:
            reason = f"disk full: {free / 2**20:.1f} MiB free, floor {floor / 2**20:.0f} MiB"
            self._stop(RecorderState.STOPPED, reason)
        elif free < self._warn_bytes:
            if not self.warning:
                _LOG.warning("%s: disk space is low, %.0f MiB free", self.writer.path, free / 2**20)
                self._journal.append("space_low", {"free_bytes": free})
                self._sync()
            self.warning = f"disk space is low: {free / 1e9:.1f} GB free"
        else:
            self.warning = self._segment_problem

    def _stop(self, state: RecorderState, reason: str) -> None:
        """Stop recording before the end of the series and keep the file readable."""
        _LOG.error("recording to %s %s: %s", self.writer.path, state, reason)
        self.state = state
        self.reason = reason
        with suppress(OSError):
            self.free_bytes = free_bytes(self.writer.path)
        self._settle_rate()
        self._journal.append(str(state), {"reason": reason, "file": self.writer.path.name})
        self._sync()
        if self.writer.has_failed:
            return  # HDF5 writes as it closes the file: once the disk works, see `finish`
        try:
            self.writer.close()
        except StorageError as error:
            _LOG.error("%s", error)

    def _sync(self) -> None:
        try:
            self._journal.sync()
        except StorageError as error:  # keep it and retry with the next batch
            _LOG.error("%s", error)

    def finish(self, ledger: LedgerCounts | None) -> None:
        """Close recording and journal with the final ledger."""
        error: StorageError | None = None
        try:
            self.writer.close(ledger)
        except StorageError as failure:
            error = failure
        self._journal.append("series_ended", {"ledger": cast(Json, ledger)})
        try:
            self._journal.close()
        except StorageError as failure:
            error = error or failure
        if self.state is not RecorderState.RECORDING:
            return  # why it stopped has been logged
        self._settle_rate()
        self.state = RecorderState.IDLE if error is None else RecorderState.FAILED
        self.reason = "" if error is None else str(error)
        if error is not None:
            _LOG.error("cannot finish the recording: %s", error)
