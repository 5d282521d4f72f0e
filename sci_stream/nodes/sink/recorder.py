"""The recorder: a bounded queue and a writer thread, so that recording never blocks the sender; its start and stop."""

from __future__ import annotations

import enum
import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from sci_stream.clock import unix_ns
from sci_stream.delivery.ledger import StoredLedger
from sci_stream.errors import InputError, StorageError
from sci_stream.model import Json, Reconstruction, SeriesInfo, Snapshot
from sci_stream.nodes.sink.series_recording import (
    Item,
    OnDurable,
    RecorderOptions,
    RecorderState,
    SeriesRecording,
    Written,
)
from sci_stream.optics.calibration import Calibration
from sci_stream.recording import RecordingWriter, free_bytes

__all__ = ["OnDurable", "Recorder", "RecorderOptions", "RecorderState", "SubmitResult", "Written"]

log = logging.getLogger(__name__)

_IDLE_S = 1.0
# Size of a queued item apart from its arrays, so that items without arrays are bounded too.
_ITEM_OVERHEAD_BYTES = 512


class SubmitResult(enum.StrEnum):
    """Result of a submission."""

    ACCEPTED = "accepted"
    """Queued; its callback will be called exactly once."""
    FULL = "full"
    """The queue is full: submit again later and apply backpressure."""
    STOPPED = "stopped"
    """Not recording; `Recorder.status` has the reason. The callback will not be called."""


@dataclass(frozen=True, slots=True)
class RecorderStatus:
    """State of a recorder.

    ``whole`` is the virtual dataset over all segments, once written. ``rows`` and ``bytes`` count all segments.
    """

    state: RecorderState = RecorderState.IDLE
    reason: str = ""
    warning: str = ""
    file: str | None = None
    whole: str | None = None
    segment: int = 0
    rows: int = 0
    bytes: int = 0
    mb_per_s: float = 0.0
    queue_items: int = 0
    queue_bytes: int = 0
    free_bytes: int | None = None


class Recorder:
    """The recording of one series, from a new file on, which is the next segment if there are earlier ones.

    ``submit_…`` never block. Used by one thread at a time.

    Parameters
    ----------
    settled_below
        A first segment begins at this snapshot: all before it have an outcome.
    free
        Returns the bytes free on the disk of a path; replaced in tests.

    Raises
    ------
    StorageError
        If the file cannot be created or the free disk space is below its floor.
    """

    def __init__(
        self,
        options: RecorderOptions,
        info: SeriesInfo,
        calibration: Calibration,
        settled_below: int = 0,
        *,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        self.options = options
        self._free = free
        self._changed = threading.Condition()
        self._queue: deque[Item] = deque()
        self._queue_bytes = 0
        self._ending = False
        self._final_ledger: StoredLedger | None = None
        opened: SimpleQueue[SeriesRecording | Exception] = SimpleQueue()

        def run() -> None:
            try:
                recording = SeriesRecording(info, calibration, options, free, settled_below)
            except Exception as error:  # raised again in the waiting caller
                opened.put(error)
                return
            opened.put(recording)
            self._run(recording)

        # HDF5 objects are created, used and closed in this thread only.
        self._thread = threading.Thread(target=run, name="recorder", daemon=True)
        self._thread.start()
        recording = opened.get()
        if isinstance(recording, Exception):
            self._thread.join()
            raise recording
        self._recording = recording

    def submit_raw(self, snapshot: Snapshot, on_durable: OnDurable | None = None) -> SubmitResult:
        """Queue a raw snapshot; its counts must not be changed afterwards."""
        return self._submit(Item(snapshot.counts.nbytes, lambda writer: writer.write_raw(snapshot), on_durable))

    def submit_reconstruction(
        self, reconstruction: Reconstruction, on_durable: OnDurable | None = None
    ) -> SubmitResult:
        """Queue a reconstruction; its arrays must not be changed afterwards."""
        n_bytes = reconstruction.video.nbytes + (0 if reconstruction.counts is None else reconstruction.counts.nbytes)
        return self._submit(Item(n_bytes, lambda writer: writer.write_reconstruction(reconstruction), on_durable))

    def submit_outcome(
        self, seq: int, outcome: str, reason: str = "", on_durable: OnDurable | None = None, *, count: int = 1
    ) -> SubmitResult:
        """Queue the outcome of snapshots without video (``raw_only``, ``dropped``): ``count`` from ``seq`` on."""
        event: dict[str, Json] = {"event": "outcome", "seq": seq, "outcome": outcome, "reason": reason}
        if count > 1:
            event["count"] = count

        def write(writer: RecordingWriter) -> bool:
            written = [writer.write_outcome(each, outcome, reason) for each in range(seq, seq + count)]
            return any(written)

        return self._submit(Item(0, write, on_durable, event))

    def submit_ledger(self, ledger: StoredLedger, notes: dict[str, Json] | None = None) -> SubmitResult:
        """Queue the current ledger, so that a crash leaves a recent one in the file, with ``notes``."""
        return self._submit(Item(0, ledger=ledger, notes=dict(notes or {})))

    def submit_event(self, event: str, fields: Mapping[str, Json]) -> SubmitResult:
        """Queue a line for the journal; its time is ``time_ns`` of the fields, if present."""
        return self._submit(Item(0, lambda _writer: True, event={"event": event, **fields}))

    def _submit(self, item: Item) -> SubmitResult:
        size = item.n_bytes + _ITEM_OVERHEAD_BYTES
        with self._changed:
            if self._recording.state is not RecorderState.RECORDING or self._ending:
                return SubmitResult.STOPPED
            if self._queue and self._queue_bytes + size > self.options.queue_bytes:
                return SubmitResult.FULL
            self._queue.append(item)
            self._queue_bytes += size
            self._changed.notify()
        return SubmitResult.ACCEPTED

    def finish(self, ledger: StoredLedger | None = None) -> None:
        """Have the queue written, the final ledger stored in file and journal, and both closed, without waiting.

        Without a ledger the file is not marked clean.
        """
        with self._changed:
            self._ending, self._final_ledger = True, ledger
            self._changed.notify()

    def close(self, ledger: StoredLedger | None = None) -> None:
        """`finish`, unless that was done before, and wait until both are closed."""
        if not self._ending:
            self.finish(ledger)
        self._thread.join()

    @property
    def is_open(self) -> bool:
        """Whether file and journal are still open."""
        return self._thread.is_alive()

    def status(self) -> RecorderStatus:
        """Return the state; callable from any thread."""
        with self._changed:
            recording = self._recording
            writer = recording.writer
            return RecorderStatus(
                state=recording.state,
                reason=recording.reason,
                warning=recording.warning,
                file=str(writer.path),
                whole=None if recording.whole is None else str(recording.whole),
                segment=writer.segment,
                rows=recording.rows_written,
                bytes=recording.bytes_written,
                mb_per_s=recording.mb_per_s,
                queue_items=len(self._queue),
                queue_bytes=self._queue_bytes,
                free_bytes=self._free_bytes(writer.path),
            )

    def _free_bytes(self, path: Path) -> int | None:
        try:
            return self._free(path)
        except OSError:  # the folder is gone; the recorder notices by itself
            return None

    def _run(self, recording: SeriesRecording) -> None:
        while (batch := self._take()) is not None:
            recording.write(batch)
        recording.finish(self._final_ledger)

    def _take(self) -> list[Item] | None:
        """Return queued items, at most a batch; empty after an idle second; None at the end."""
        with self._changed:
            if not self._queue and not self._ending:
                self._changed.wait(_IDLE_S)
            if not self._queue and self._ending:
                return None
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), self.options.batch_items))]
            self._queue_bytes -= sum(item.n_bytes + _ITEM_OVERHEAD_BYTES for item in batch)
            return batch


# A recording that a full disk stopped is tried again this often, once so much more than the minimum is free.
_AGAIN_S, _ROOM_BYTES = 5.0, 64 << 20
_NO_SPACE = os.strerror(errno.ENOSPC)


@dataclass(frozen=True, slots=True)
class RecordingChange:
    """The operator started (``on``) or stopped the recording of ``file``."""

    on: bool
    file: str
    time_ns: int


class RecordingController:
    """Open a new file, the next segment of the series, at each `start` and close it at `stop`.

    Parameters
    ----------
    options
        Returns the recorder options; called only when recording starts.
    """

    def __init__(self, info: SeriesInfo, calibration: Calibration, options: Callable[[], RecorderOptions]) -> None:
        self._info = info
        self._calibration = calibration
        self._options = options
        self._closing: Recorder | None = None
        self._again_s = 0.0
        self.recorder: Recorder | None = None
        self.failure = ""
        """Why the recording of a resumed series could not be started; ``""`` if it was, or is not wanted."""
        self.switched: list[RecordingChange] = []
        """Changes by the operator, for the summary."""

    @property
    def is_on(self) -> bool:
        """Whether new snapshots are recorded."""
        return self.recorder is not None and self.recorder.status().state is RecorderState.RECORDING

    @property
    def is_wanted(self) -> bool:
        """Whether new snapshots are to be recorded: also if the recorder has stopped by itself or could not start."""
        return self.recorder is not None or bool(self.failure)

    def resume(self, folder: Path, settled_below: int = 0) -> None:
        """Start recording after a restart of the sink. On failure log an error and set `failure`.

        Snapshots of the series are on their way: without a recording they count as not recorded. A missing folder is
        not created again: it may be the mount point of a disk.
        """
        try:
            if not folder.is_dir():
                raise StorageError(f"The recording folder {folder} is gone", hint="It was moved, deleted or unmounted.")
            self.start(settled_below)
        except StorageError as error:
            self.failure = str(error)
            log.error("cannot resume the recording, snapshots from now on are not recorded: %s", error)

    def start(self, settled_below: int = 0) -> str:
        """Start recording with the next snapshot; return the file name.

        Snapshots before ``settled_below`` have an outcome and need no row.

        Raises
        ------
        InputError
            If already recording, or while the previous file is still being written.
        StorageError
            If the file cannot be created.
        """
        if self.is_on:
            raise InputError("The series is already being recorded")
        if self._closing is not None and self._closing.is_open:
            raise InputError("The previous file is still being written", hint="Try again in a moment.")
        recorder = Recorder(self._options(), self._info, self._calibration, settled_below)
        if self.recorder is not None:  # it stopped by itself, e.g. on a full disk, and may have room again
            self.recorder.close()
        self.recorder, self.failure = recorder, ""
        return str(recorder.status().file)

    def try_again(self, settled_below: int, now_s: float) -> None:
        """Continue in a new segment when a disk that was full has room again."""
        if self.recorder is None or now_s < self._again_s:
            return
        status = self.recorder.status()
        if status.state is not RecorderState.STOPPED and _NO_SPACE not in status.reason:
            return
        self._again_s = now_s + _AGAIN_S
        try:
            options = self._options()
            if free_bytes(options.folder) < options.floor_free_bytes + _ROOM_BYTES:
                return
            file = self.start(settled_below)
        except (InputError, StorageError, OSError) as error:
            log.info("the recording cannot continue yet: %s", error)
            return
        log.warning("the disk has room again: the recording continues in %s", file)

    def stop(self, ledger: StoredLedger) -> str:
        """Close the file once all accepted items are written, without waiting; return its name.

        ``ledger`` is the current ledger, stored in the file.

        Raises
        ------
        InputError
            If not recording.
        """
        recorder = self.recorder
        if recorder is None:
            self.failure = ""
            raise InputError("Not recording")
        file = str(recorder.status().file)
        recorder.finish(ledger)
        self.recorder, self._closing = None, recorder
        return file

    def note(self, *, on: bool, file: str) -> None:
        """Record that the operator did this."""
        self.switched.append(RecordingChange(on, file, unix_ns()))
        log.info("recording %s on request: %s", "started" if on else "stopped", file)

    def close(self, ledger: StoredLedger | None) -> None:
        """End the recording with the series.

        ``ledger`` is the final ledger; None after an error, so that the file is not marked clean.
        """
        if self._closing is not None:
            self._closing.close()
        if self.recorder is not None:
            self.recorder.close(ledger)

    def status(self) -> RecorderStatus | None:
        """Return the status of the recorder, or of the last one; None if nothing has been recorded."""
        if self.failure:
            return RecorderStatus(state=RecorderState.FAILED, reason=self.failure)
        if self.recorder is not None:
            return self.recorder.status()
        if self._closing is None:
            return None
        status = self._closing.status()
        # Keep showing a failed file; one stopped on request is off.
        if status.state in {RecorderState.RECORDING, RecorderState.IDLE}:
            return replace(status, state=RecorderState.CLOSING if self._closing.is_open else RecorderState.OFF)
        return status
