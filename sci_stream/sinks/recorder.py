"""Record a series without holding up who delivers it: a bounded queue, a thread of its own, one flush a batch."""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sci_stream.errors import InputError, StorageError
from sci_stream.files.journal import Journal
from sci_stream.files.recording import Compression, RecordingWriter, free_bytes
from sci_stream.model import Reconstruction, SeriesInfo, Snapshot
from sci_stream.optics.calibration import Calibration

_LOG = logging.getLogger(__name__)
_IDLE_S = 1.0
_ITEM_OVERHEAD_BYTES = 512
"""What a queued item costs beside its arrays, so that items without arrays are bounded too."""


class Admission(enum.StrEnum):
    """What became of a submission."""

    ACCEPTED = "accepted"
    """It is queued; its callback will come exactly once."""
    FULL = "full"
    """The queue is full: submit it again later, and hold back who delivers."""
    STOPPED = "stopped"
    """Nothing is recorded (any more); `Recorder.status` says why. No callback will come."""


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
    ``queue_bytes`` bounds what waits, ``batch_items`` what one flush covers and so what a crash can cost.
    Below ``warn_free_bytes`` of disk it warns, below ``floor_free_bytes`` it stops in order.
    """

    folder: Path
    raw: bool = True
    video: bool = True
    compression: Compression = Compression.NONE
    queue_bytes: int = 256 << 20
    batch_items: int = 64
    warn_free_bytes: int = 5 << 30
    floor_free_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True)
class _Item:
    n_bytes: int
    write: Callable[[RecordingWriter], bool]
    on_durable: OnDurable | None = None
    event: Mapping[str, Any] | None = None
    """What the journal is told of it."""


class Recorder:
    """A `Sink` that records; its ``submit_…`` methods never block and may be called from one thread at a time.

    Parameters
    ----------
    options
        Where and how.
    free
        Returns the bytes free on the disk of a path; replaced in tests.
    """

    def __init__(self, options: RecorderOptions, *, free: Callable[[Path], int] = free_bytes) -> None:
        self.options = options
        self._free = free
        self._changed = threading.Condition()
        self._queue: deque[_Item] = deque()
        self._queue_bytes = 0
        self._state = RecorderState.IDLE
        self._reason = ""
        self._warning = ""
        self._thread: threading.Thread | None = None
        self._ending = False
        self._final_ledger: Mapping[str, Any] | None = None
        self._writer: RecordingWriter | None = None
        self._end_error: StorageError | None = None
        self._rate = _Rate()

    def series_started(self, info: SeriesInfo, calibration: Calibration) -> None:
        """Open a new file, the next segment if there is one of this series, and begin to record.

        Raises
        ------
        StorageError
            If the file cannot be made or the disk is below its floor.
        RuntimeError
            If a series is being recorded.
        """
        if self._thread is not None:
            raise RuntimeError("end the series being recorded before starting another")
        path = self.options.folder / f"{info.series}.h5"
        started: deque[Exception] = deque()
        ready = threading.Event()

        def run() -> None:
            try:
                journal = self._open(path, info, calibration)
            except Exception as error:  # handed to the caller, who waits for it
                started.append(error)
                return
            finally:
                ready.set()
            self._run(journal)

        # HDF5 objects are made, used and closed on this one thread.
        thread = threading.Thread(target=run, name="recorder", daemon=True)
        thread.start()
        ready.wait()
        if started:
            thread.join()
            raise started[0]
        self._thread = thread

    def _open(self, path: Path, info: SeriesInfo, calibration: Calibration) -> Journal:
        options = self.options
        if not options.folder.is_dir():
            raise StorageError(f"The recording folder {options.folder} does not exist", hint="Make it, or mount it.")
        free = self._free(path)
        if free < options.floor_free_bytes:
            raise StorageError(
                f"The disk of {options.folder} has too little space to record",
                expected=f"at least {options.floor_free_bytes / 1e6:.0f} MB free",
                got=f"{free / 1e6:.0f} MB",
            )
        writer = RecordingWriter(
            path, info, calibration, raw=options.raw, video=options.video, compression=options.compression
        )
        try:
            journal = Journal(path.with_suffix(".journal.jsonl"))
            journal.append("series_started", {"series": info.series, "file": writer.path.name})
            journal.sync()
        except StorageError:
            writer.close()
            raise
        with self._changed:
            self._writer = writer
            self._state, self._reason, self._warning = RecorderState.RECORDING, "", ""
            self._ending, self._final_ledger, self._end_error = False, None, None
            self._rate = _Rate()
        return journal

    def submit_raw(self, snapshot: Snapshot, on_durable: OnDurable | None = None) -> Admission:
        """Queue a raw snapshot; its counts must not be changed afterwards."""
        return self._submit(_Item(snapshot.counts.nbytes, lambda writer: writer.write_raw(snapshot), on_durable))

    def submit_reconstruction(self, reconstruction: Reconstruction, on_durable: OnDurable | None = None) -> Admission:
        """Queue a reconstruction; its arrays must not be changed afterwards."""
        n_bytes = reconstruction.video.nbytes
        if reconstruction.counts is not None:
            n_bytes += reconstruction.counts.nbytes
        return self._submit(_Item(n_bytes, lambda writer: writer.write_reconstruction(reconstruction), on_durable))

    def submit_outcome(
        self, seq: int, outcome: str, reason: str = "", on_durable: OnDurable | None = None
    ) -> Admission:
        """Queue what became of a snapshot without video (``raw_only``, ``dropped``)."""
        event = {"event": "outcome", "seq": seq, "outcome": outcome, "reason": reason}
        return self._submit(_Item(0, lambda writer: writer.write_outcome(seq, outcome, reason), on_durable, event))

    def submit_ledger(self, ledger: Mapping[str, Any]) -> Admission:
        """Queue the account so far, so that a crash leaves a recent one in the file."""
        copy = dict(ledger)

        def write(writer: RecordingWriter) -> bool:
            writer.write_ledger(copy)
            return True

        return self._submit(_Item(0, write))

    def _submit(self, item: _Item, *, wait: bool = False) -> Admission:
        size = item.n_bytes + _ITEM_OVERHEAD_BYTES
        with self._changed:
            while True:
                if self._state is not RecorderState.RECORDING or self._ending:
                    return Admission.STOPPED
                if not self._queue or self._queue_bytes + size <= self.options.queue_bytes:
                    break
                if not wait:
                    return Admission.FULL
                self._changed.wait()
            self._queue.append(item)
            self._queue_bytes += size
            self._changed.notify_all()
        return Admission.ACCEPTED

    def raw(self, snapshot: Snapshot) -> None:
        """Queue a raw snapshot, waiting for room.

        Raises
        ------
        StorageError
            If nothing is being recorded (any more).
        """
        item = _Item(snapshot.counts.nbytes, lambda writer: writer.write_raw(snapshot))
        self._require(self._submit(item, wait=True))

    def reconstructed(self, reconstruction: Reconstruction) -> None:
        """Queue a reconstruction, waiting for room. Raises as `raw`."""
        item = _Item(reconstruction.video.nbytes, lambda writer: writer.write_reconstruction(reconstruction))
        self._require(self._submit(item, wait=True))

    def _require(self, admission: Admission) -> None:
        if admission is Admission.STOPPED:
            raise StorageError(f"The recorder is {self._state}", got=self._reason or "no series was started")

    def series_ended(self, ledger: Mapping[str, Any] | None) -> None:
        """Write what is queued, store the final ledger in the file and the journal, and close both.

        Raises
        ------
        StorageError
            If the end could not be written. A recorder that had stopped or failed before does not raise again.
        """
        thread = self._thread
        if thread is None:
            return
        with self._changed:
            self._ending, self._final_ledger = True, ledger
            self._changed.notify_all()
        thread.join()
        self._thread = None
        if self._end_error is not None:
            raise self._end_error

    def close(self, ledger: Mapping[str, Any] | None = None) -> None:
        """End the series, if one is being recorded; without a ledger the file is not marked clean."""
        self.series_ended(ledger)

    def status(self) -> dict[str, Any]:
        """Return the state as plain values; callable from any thread."""
        with self._changed:
            writer = self._writer
            return {
                "state": str(self._state),
                "reason": self._reason,
                "warning": self._warning,
                "file": None if writer is None else str(writer.path),
                "rows": 0 if writer is None else writer.rows_written,
                "bytes": 0 if writer is None else writer.bytes_written,
                "mb_per_s": self._rate.mb_per_s,
                "queue_items": len(self._queue),
                "queue_bytes": self._queue_bytes,
                "free_bytes": None if writer is None else self._free(writer.path),
            }

    # --- on the recorder's thread ---

    def _run(self, journal: Journal) -> None:
        writer = self._writer
        assert writer is not None  # _open sets it
        while (batch := self._take()) is not None:
            self._write(writer, journal, batch)
            if self._state is RecorderState.RECORDING:
                self._watch_space(writer, journal)
            self._rate.update(writer.bytes_written)
        self._finish(writer, journal)

    def _take(self) -> list[_Item] | None:
        """Return what is queued, at most a batch; empty after an idle second; None when all is done."""
        with self._changed:
            if not self._queue and not self._ending:
                self._changed.wait(_IDLE_S)
            if not self._queue and self._ending:
                return None
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), self.options.batch_items))]
            self._queue_bytes -= sum(item.n_bytes + _ITEM_OVERHEAD_BYTES for item in batch)
            if batch:
                self._changed.notify_all()
            return batch

    def _write(self, writer: RecordingWriter, journal: Journal, batch: list[_Item]) -> None:
        results = [Written.LOST] * len(batch)
        if self._state is RecorderState.RECORDING and batch:
            error: Exception | None = None
            try:
                for index, item in enumerate(batch):
                    results[index] = self._write_item(writer, journal, item)
            except Exception as failure:
                error = failure
            try:
                writer.flush()
            except Exception as failure:
                results = [Written.LOST if result is Written.WRITTEN else result for result in results]
                error = error or failure
            if error is not None:
                self._stop(writer, journal, RecorderState.FAILED, str(error))
            self._sync(journal)
        for item, result in zip(batch, results, strict=True):
            _call(item.on_durable, result)

    def _write_item(self, writer: RecordingWriter, journal: Journal, item: _Item) -> Written:
        if item.event is not None:
            journal.append("outcome", item.event)
        try:
            return Written.WRITTEN if item.write(writer) else Written.DUPLICATE
        except InputError as error:
            # One snapshot that does not fit must not end the recording of all others.
            _LOG.error("not recorded: %s", error)
            journal.append("refused", {"error": str(error)})
            return Written.LOST

    def _watch_space(self, writer: RecordingWriter, journal: Journal) -> None:
        free = self._free(writer.path)
        if free < self.options.floor_free_bytes:
            floor = self.options.floor_free_bytes
            reason = f"disk full: {free / 1e6:.0f} MB free, floor {floor / 1e6:.0f} MB"
            self._stop(writer, journal, RecorderState.STOPPED, reason)
        elif free < self.options.warn_free_bytes:
            if not self._warning:
                _LOG.warning("%s: disk space is low, %.0f MB free", writer.path, free / 1e6)
                journal.append("space_low", {"free_bytes": free})
                self._sync(journal)
            self._warning = f"disk space is low: {free / 1e9:.1f} GB free"
        else:
            self._warning = ""

    def _stop(self, writer: RecordingWriter, journal: Journal, state: RecorderState, reason: str) -> None:
        """Stop recording before its end, keeping what there is readable; callers learn it from `status`."""
        _LOG.error("recording to %s %s: %s", writer.path, state, reason)
        with self._changed:
            self._state, self._reason = state, reason
            self._changed.notify_all()
        journal.append(str(state), {"reason": reason, "file": writer.path.name})
        self._sync(journal)
        try:
            writer.close()
        except StorageError as error:
            _LOG.error("%s", error)

    def _sync(self, journal: Journal) -> None:
        try:
            journal.sync()
        except StorageError as error:
            _LOG.error("%s", error)

    def _finish(self, writer: RecordingWriter, journal: Journal) -> None:
        stopped_early = self._state is not RecorderState.RECORDING
        error: StorageError | None = None
        ledger = self._final_ledger
        try:
            writer.close(ledger)
        except StorageError as failure:
            error = failure
        journal.append("series_ended", {"ledger": None if ledger is None else dict(ledger)})
        try:
            journal.close()
        except StorageError as failure:
            error = error or failure
        with self._changed:
            self._end_error = None if stopped_early else error
            if not stopped_early:
                self._state = RecorderState.IDLE if error is None else RecorderState.FAILED
                self._reason = "" if error is None else str(error)
            self._changed.notify_all()


class _Rate:
    """Megabytes per second over the last whole second or more."""

    def __init__(self) -> None:
        self.mb_per_s = 0.0
        self._since_s = time.monotonic()
        self._bytes = 0

    def update(self, total_bytes: int) -> None:
        now = time.monotonic()
        if now - self._since_s >= _IDLE_S:
            self.mb_per_s = (total_bytes - self._bytes) / (now - self._since_s) / 1e6
            self._since_s, self._bytes = now, total_bytes


def _call(on_durable: OnDurable | None, result: Written) -> None:
    if on_durable is None:
        return
    try:
        on_durable(result)
    except Exception:  # a caller's mistake must not end the recording
        _LOG.exception("a callback of the recorder failed")
