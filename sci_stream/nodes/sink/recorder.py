"""The recorder: a bounded queue and a writer thread, so that recording never blocks the sink; its
start and stop.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import KW_ONLY, asdict, dataclass, field

from sci_stream.config import RecordSection
from sci_stream.delivery.ledger import LedgerCounts
from sci_stream.errors import InputError, StorageError
from sci_stream.file_guard import writing
from sci_stream.model import JsonObject, SeriesInfo
from sci_stream.nodes.sink.series_recording import (
    MIB,
    Item,
    OnDurable,
    Recordable,
    RecorderState,
    SeriesRecording,
    Written,
)
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.segments import closing_bytes, disk_share, free_bytes
from sci_stream.wire.messages import RawSnapshots

log = logging.getLogger(__name__)

# The recorder looks at its queue this often. Each flush costs as much as writing ten snapshots of
# 256 x 256 pixels.
_IDLE_S = 0.1
# A recording that its disk stopped is tried again this often.
_AGAIN_S = 5.0
# A disk that was full has room again with so much more than the minimum: a segment for each
# snapshot that just fits would fill the folder with files.
_MAX_ROOM_BYTES = 64 << 20


@dataclass(frozen=True)
class RecordingStatus:
    """State of the recording of a series; not ``enabled`` if nothing was ever recorded.

    ``rows`` and ``bytes`` count the segments since the recording was last started. ``lost`` counts
    the snapshots of the series that a requested recording lacks. ``unreadable`` says why recorded
    snapshots could not be read back at the end of the series.
    """

    enabled: bool = False
    state: RecorderState = RecorderState.OFF
    reason: str = ""
    warning: str = ""
    file: str | None = None
    segment: int = 0
    rows: int = 0
    bytes: int = 0
    mb_per_s: float = 0.0
    queue_items: int = 0
    queue_bytes: int = 0
    free_bytes: int | None = None
    lost: int = 0
    unreadable: str = ""

    @property
    def stopped_reason(self) -> str:
        """Why a requested recording is not being written now, ``""`` if it is."""
        return self.reason if self.state in {RecorderState.STOPPED, RecorderState.FAILED} else ""

    @property
    def incomplete_reason(self) -> str:
        """Why snapshots are missing from the recording, ``""`` if none are."""
        lost = f"{self.lost} snapshots were not recorded" if self.lost else ""
        return "; ".join(filter(None, (lost, self.stopped_reason, self.unreadable)))

    def to_json(self) -> JsonObject:
        """Return the status as JSON; without a recording, only why it is ``incomplete``."""
        figures = asdict(self) if self.enabled else {"enabled": False}
        return {**figures, "incomplete": self.incomplete_reason}


@dataclass
class Recorder:
    """The recording of one series, which can be started and stopped. Used by one thread.

    Each `start` opens a new file, the next segment of the series, with the ``picture`` of an
    analysis. `submit` never blocks; a caller that heeds `is_full` bounds the queue by
    ``max_queue_bytes``. ``batch_items`` bound one flush and thereby the loss in a crash.
    """

    info: SeriesInfo
    calibration: Calibration
    section: RecordSection
    _: KW_ONLY
    picture: bool = False
    max_queue_bytes: int = 256 * MIB
    batch_items: int = 64
    is_wanted: bool = field(default=False, init=False)
    """Whether new snapshots are to be recorded: also if recording has stopped by itself or could
    not start."""
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _queue: deque[Item] = field(default_factory=deque, init=False)
    _queue_bytes: int = field(default=0, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _recording: SeriesRecording | None = field(default=None, init=False)
    _ending: bool = field(default=False, init=False)
    _final_ledger: LedgerCounts | None = field(default=None, init=False)
    _failure: str = field(default="", init=False)
    _again_s: float = field(default=0.0, init=False)
    _device: int | None = field(default=None, init=False)

    @property
    def is_on(self) -> bool:
        """Whether new snapshots are recorded."""
        return (
            self._recording is not None
            and self._recording.state is RecorderState.RECORDING
            and not self._ending
        )

    def start(self, settled_below: int = 0, *, make_folder: bool = True) -> str:
        """Record from the next snapshot on; return the file name.

        Snapshots before ``settled_below`` have an outcome and need no row in the new segment.

        Raises `InputError` if already recording, while the previous file is still being written, or
        if the name of the series, which may come from the network, is not a valid file name;
        `StorageError` if the folder or the file cannot be created, or free disk space is below its
        floor.
        """
        if self.is_on:
            raise InputError("The series is already being recorded")
        if not self.is_wanted and self._thread is not None and self._thread.is_alive():
            raise InputError(
                "The previous file is still being written", hint="Try again in a moment."
            )
        if make_folder:
            with writing(self.section.folder):
                self.section.folder.mkdir(parents=True, exist_ok=True)
        self._require_mounted()
        recording = SeriesRecording(
            self.info, self.calibration, self.section, settled_below, picture=self.picture
        )
        self.close()  # one that stopped by itself, e.g. on a full disk
        self._thread = threading.Thread(
            target=self._run, args=(recording,), name="recorder", daemon=True
        )
        with self._changed:
            self._recording = recording
            self._ending = False
            self.is_wanted = True
            self._failure = ""
        self._thread.start()
        return str(recording.writer.path)

    def _require_mounted(self) -> None:
        """Raise `StorageError` if the folder was a disk's mount point and is an empty folder now.

        The snapshots would fill the system's disk, and the returning disk would hide them.
        """
        folder = self.section.folder
        try:
            device = folder.stat().st_dev
            beside = folder.resolve().parent.stat().st_dev
        except OSError:
            return  # `SeriesRecording` names the fault
        if self._device not in {None, device} and device == beside:
            raise StorageError(f"The disk of {folder} is not mounted", hint="Mount it again.")
        self._device = device

    def _run(self, recording: SeriesRecording) -> None:
        while (batch := self._take()) is not None:
            recording.write(batch)
        recording.finish(self._final_ledger)

    def resume(self, settled_below: int) -> None:
        """Start within a run: after a restart of the sink, or for a later series.

        On failure log an error, which `status` has, too, and let `try_again` try.

        Snapshots of the series are on their way: without a recording they count as not recorded. A
        missing folder is not created again: it may be the mount point of a disk.
        """
        self.is_wanted = True
        try:
            self.start(settled_below, make_folder=False)
        except StorageError as error:
            self._failure = str(error)
            log.error(
                "cannot resume the recording, snapshots from now on are not recorded: %s", error
            )

    def try_again(self, settled_below: int, now_s: float) -> None:
        """Continue in a new segment, tried every 5 s, after a fault of the disk."""
        if self.is_on or not self.is_wanted or now_s < self._again_s:
            return
        self._again_s = now_s + _AGAIN_S
        try:
            if self._waits_for_room():
                return
            file = self.start(settled_below, make_folder=False)
        except (InputError, StorageError, OSError) as error:
            log.info("the recording cannot continue yet: %s", error)
            return
        log.warning("the disk works again: the recording continues in %s", file)

    def _waits_for_room(self) -> bool:
        """Return whether a full disk stopped the recording, and has not enough room yet."""
        recording = self._recording
        if recording is None:
            return False
        path = recording.writer.path
        room = disk_share(path, _MAX_ROOM_BYTES)
        enough = max(self.section.min_free_mib * MIB, closing_bytes(path)) + room
        return recording.free_bytes < enough and free_bytes(path) < enough

    def stop(self, ledger: LedgerCounts) -> str:
        """Close the file once all accepted items are written, without waiting; return its name,
        ``""`` if none began.

        ``ledger`` is the current ledger, stored in the file.

        Raises `InputError` if not recording.
        """
        if not self.is_wanted:
            raise InputError("Not recording")
        self.is_wanted = False
        self._failure = ""
        self._end(ledger)
        return "" if self._recording is None else str(self._recording.writer.path)

    @property
    def is_full(self) -> bool:
        """Whether the queue has reached its limit: only notes should follow until it has room."""
        return self._queue_bytes >= self.max_queue_bytes

    def submit(self, data: Recordable, on_durable: OnDurable = lambda _written: None) -> None:
        """Queue data, whose arrays must not be changed afterwards.

        ``on_durable`` is called once, for each of `RawSnapshots`, and at once if nothing is
        recorded.
        """
        item = Item(data, on_durable)
        with self._changed:
            if self.is_on:
                self._queue.append(item)
                self._queue_bytes += item.n_bytes
                if not isinstance(data, RawSnapshots):
                    self._changed.notify_all()
                return
        for _ in item.parts():
            on_durable(Written.LOST if self.is_wanted else Written.OFF)

    def _take(self) -> list[Item] | None:
        """Return queued items, at most a batch; empty after an idle moment; None at the end."""
        with self._changed:
            if not self._queue and not self._ending:
                self._changed.wait(_IDLE_S)
            if not self._queue and self._ending:
                return None
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), self.batch_items))]
            self._queue_bytes -= sum(item.n_bytes for item in batch)
            return batch

    def _end(self, ledger: LedgerCounts | None) -> None:
        with self._changed:
            self._ending = True
            self._final_ledger = ledger
            self._changed.notify_all()

    def close(self, ledger: LedgerCounts | None = None) -> None:
        """Write the queue, store the ledger in file and journal unless `stop` did, and wait until
        both are closed.

        Without a ledger, as after an error, the file is not marked clean.
        """
        if not self._ending:
            self._end(ledger)
        if self._thread is not None:
            self._thread.join()

    def status(self) -> RecordingStatus:
        """Return the state."""
        if self._failure:
            return RecordingStatus(True, RecorderState.FAILED, self._failure)
        with self._changed:
            recording = self._recording
            thread = self._thread
            if recording is None or thread is None:
                return RecordingStatus()
            state = recording.state
            # Keep showing a failed file; one stopped on request is off.
            if not self.is_wanted and state in {RecorderState.RECORDING, RecorderState.IDLE}:
                state = RecorderState.CLOSING if thread.is_alive() else RecorderState.OFF
            return RecordingStatus(
                enabled=True,
                state=state,
                reason=recording.reason,
                warning=recording.warning,
                file=str(recording.writer.path),
                segment=recording.writer.segment,
                rows=recording.rows_written,
                bytes=recording.bytes_written,
                mb_per_s=recording.mb_per_s,
                queue_items=len(self._queue),
                queue_bytes=self._queue_bytes,
                free_bytes=recording.free_bytes,
            )
