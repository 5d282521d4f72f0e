"""The session of a running series at the sink: receives its messages, records them, and
acknowledges safe ones.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from sci_stream.clock import unix_ns
from sci_stream.config import Rig
from sci_stream.delivery.frame_faults import FAULTS
from sci_stream.delivery.interval_set import IntervalSet
from sci_stream.delivery.ledger import DropReason, Ledger, Outcome, not_recorded
from sci_stream.delivery.reorder_buffer import ReorderBuffer
from sci_stream.delivery.trigger_ring import Event, TriggerState
from sci_stream.errors import InputError
from sci_stream.model import JsonObject, Reconstruction, SeriesInfo, Snapshot
from sci_stream.nodes.sink.ledger_file import LedgerFile, SavedLedger
from sci_stream.nodes.sink.recorder import Recorder, RecordingStatus
from sci_stream.nodes.sink.series_recording import LedgerNote, NotKept, OfSnapshot, Written
from sci_stream.nodes.sink.solvers import KnownSolvers, Solvers
from sci_stream.nodes.sink.statistics import SeriesStatistics, stage_seconds
from sci_stream.nodes.sink.status import SeriesStatus
from sci_stream.nodes.sink.triggered import TriggeredSeries
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import SettingChange
from sci_stream.recording.reader import DAMAGE, Recording
from sci_stream.recording.segments import (
    count_recorded,
    earlier_segments,
    finish_segments,
    recording_path,
)
from sci_stream.recording.writer import MAX_EMPTY_ROWS
from sci_stream.wire.messages import (
    MAX_RUN,
    Accepted,
    Dropped,
    RawSnapshots,
    SeriesEnd,
    acknowledgement_of,
)

log = logging.getLogger(__name__)

# A result that a lost node still owes must not stop the live video.
_REORDER_PATIENCE_S = 2.0
# The ledger document of a recording has a fixed size; its journal has all events.
_EVENTS_IN_FILE = 128
_EVENTS_SHOWN = 20
# The acquire node reports its count with each heartbeat. In between, snapshots arrive with numbers
# beyond it: no camera is faster. Each number that is accepted may cost a row of 300 bytes in the
# recording, which `MAX_EMPTY_ROWS` end.
_MAX_SNAPSHOTS_PER_S = 1 << 17
_MAX_COUNT = 2**48
# The file is written before each acknowledgement; the journal has every change.
_SAVED_CHANGES = 48


@dataclass(frozen=True)
class Callbacks:
    """Functions that a session calls in its node.

    ``wake`` wakes the node's loop from the recorder's thread; ``show`` displays a reconstruction,
    in order; ``observe`` takes a latency in s and its stage; ``clock_of`` returns the sink's clock
    minus a node's, ns, None if unknown; ``solvers`` returns the solver settings of all connected
    nodes.
    """

    wake: Callable[[], None] = lambda: None
    show: Callable[[Reconstruction], None] = lambda _reconstruction: None
    observe: Callable[[float, str], None] = lambda _seconds, _stage: None
    clock_of: Callable[[str], int | None] = lambda _node: None
    solvers: Callable[[], Solvers] = dict


@dataclass
class _Pending:
    """A message that is not safe yet, as it is recorded and counted, and its senders."""

    message: OfSnapshot | NotKept
    senders: list[bytes]


class SeriesSession:
    """One series at the sink, from start to end; `open` makes it. Used from the sink's loop.

    Each message takes the same way: `receive` recognises duplicates, updates the statistics,
    displays, and submits to the recorder; the recorder's thread reports that it is flushed;
    `take_acknowledgements` settles it in the ledger and returns the acknowledgement. ``file`` saves
    the ``ledger``, which continues an earlier one.
    """

    def __init__(
        self,
        info: SeriesInfo,
        calibration: Calibration,
        rig: Rig,
        *,
        callbacks: Callbacks,
        file: LedgerFile | None,
        ledger: Ledger,
        triggers: TriggerState | None = None,
    ) -> None:
        self.name = info.series
        self._rig = rig
        self._file = file
        self.ledger = ledger
        self.statistics = SeriesStatistics(info, ledger)
        self._callbacks = callbacks
        nodes = max(1, rig.reconstruct.nodes)
        self._reorder = ReorderBuffer[Reconstruction](
            # Each node works on a block of its own: up to two blocks of every node may be out of
            # order.
            window=2 * nodes * rig.reconstruct.block_snapshots,
            patience_s=_REORDER_PATIENCE_S,
        )
        self._raw_safe = IntervalSet()
        self._videos = IntervalSet()
        # Reported without video while their raw counts wait for the recorder, which may lose them.
        self._awaiting_raw = set[int]()
        self._pending: dict[Accepted, _Pending] = {}
        self._written = queue.SimpleQueue[tuple[Accepted, list[Written]]]()
        # Of deliveries that wait for the decision on their raw counts, once that is saved.
        self._acknowledgements: list[tuple[bytes, Accepted]] = []
        self.ended_by: bytes | None = None
        self._ahead = min(
            MAX_EMPTY_ROWS // 2, int(_MAX_SNAPSHOTS_PER_S * max(1.0, rig.network.heartbeat_s))
        )
        self.recorder = Recorder(
            info, calibration, rig.record, picture=bool(rig.reconstruct.analyses)
        )
        state = triggers or TriggerState()
        is_triggered = rig.record.is_triggered
        self._triggered = (
            TriggeredSeries(info, rig, calibration.saturation_dn, state) if is_triggered else None
        )
        self._open_share = float(calibration.phi.mean())
        self.solvers = KnownSolvers(info.series)
        self._file_path = recording_path(Path(rig.record.folder), info.series)
        self._unreadable = ""

    @classmethod
    def open(
        cls,
        info: SeriesInfo,
        calibration: Calibration,
        rig: Rig,
        callbacks: Callbacks | None = None,
        file: LedgerFile | None = None,
        *,
        is_first: bool = True,
    ) -> SeriesSession:
        """Begin a series, or continue it after a restart of the sink: its ledger, its segments, its
        recording.

        Parameters are those of the session. The ``first`` series of a run is refused if it cannot
        be recorded: someone is there to see it. A later one begins all the same, and its recording
        once the disk works.

        Raises `StorageError` if the recording of the first series cannot be started.
        """
        saved = None if file is None else file.read(info.series)
        if saved is not None:
            log.warning(
                "series %s: the ledger of the sink's earlier process is continued", info.series
            )
        ledger = Ledger(None if saved is None else saved.ledger)
        triggers = None if saved is None else saved.triggers
        callbacks = callbacks or Callbacks()
        session = cls(
            info, calibration, rig, callbacks=callbacks, file=file, ledger=ledger, triggers=triggers
        )
        session.statistics.changes += () if saved is None else saved.changes
        session._restore_segments()
        if rig.record.enabled and saved is None and is_first:
            session.recorder.start()
        elif rig.record.enabled if saved is None else saved.recording:
            session.recorder.resume(ledger.settled_below)
        session._restore_decisions()
        session._save()
        return session

    def _restore_segments(self) -> None:
        """Restore the state from earlier segments of this series after a restart of the sink."""
        for recording in earlier_segments(self._file_path, self.name):
            with recording:
                try:
                    self._restore_segment(recording)
                except DAMAGE as error:
                    # The run continues: snapshots that are missing from the ledger are named at its
                    # end.
                    log.error(
                        "cannot read the earlier segment %s to its end: %s", recording.path, error
                    )

    def _restore_segment(self, recording: Recording) -> None:
        new = {seq for seq in recording.settled_seqs if not self.ledger.is_settled(seq)}
        for seq in sorted(new):
            outcome, reason = recording.outcome(seq) or ("", "")
            self.ledger.settle(seq, Outcome(outcome), reason)
        for seq in recording.seqs_with_outcome(Outcome.RECONSTRUCTED):
            report, node, redelivered = recording.report(seq)
            self.statistics.add_figures(
                seq, report, node, redelivered=redelivered if seq in new else 0
            )
            self._note_video(seq)
        self._raw_safe.update(recording.raw_seqs)
        self.solvers.learn(recording.solvers)

    def _restore_decisions(self) -> None:
        """Continue with snapshots whose raw counts an earlier process has decided, and that have no
        outcome yet.
        """
        if self._triggered is None:
            return
        for seq in list(self._triggered.delivered):
            if seq in self._raw_safe and not self.ledger.is_settled(seq):
                self._raw_is_decided(seq)

    # --- messages

    def expects(self, message: OfSnapshot) -> bool:
        """Return whether the snapshot of a message can exist, as far as the acquire node has
        reported.
        """
        return self.ledger.expects(_seqs_of(message)[-1], self._ahead)

    def mismatch_reason(self, message: OfSnapshot) -> str:
        """Return why the arrays of a message cannot be of this series, ``""`` if they can."""
        info = self.statistics.info
        shape = (info.height_px, info.width_px)
        match message:
            case RawSnapshots() if self._triggered is not None:
                return "snapshots without a decision: only events are recorded"
            case Snapshot() | RawSnapshots():
                for counts in [message.counts] if isinstance(message, Snapshot) else message.counts:
                    if counts.shape != shape:
                        return f"counts of {counts.shape} pixels, expected {shape}"
            case Reconstruction() if message.video.shape != (info.n_frames, *shape):
                return (
                    f"a video of (B, H, W) = {message.video.shape}, expected "
                    f"{(info.n_frames, *shape)}"
                )
        return ""

    def receive(self, sender: bytes, message: OfSnapshot, now_s: float) -> bool:
        """Take a message of the series that it `expects`; return whether it is safe: its sender may
        forget it.

        If not, `take_acknowledgements` returns its acknowledgement once it is, for the connection
        ``sender``.
        """
        key = acknowledgement_of(message)
        pending = self._pending.get(key)
        if pending is None and not self._is_safe(message):
            self._pending[key] = _Pending(self._accept(message, now_s), [sender])
            if self._triggered is not None:
                self._await_decision(key, self._triggered)
            elif key.of == "dropped" and self._raw_is_coming(key.seq):
                self._awaiting_raw.add(key.seq)
            else:
                self._queue(key)
            return False
        if pending is None and self._triggered is not None and key.seq not in self._videos:
            self._accept(message, now_s)  # videos of snapshots that are not kept are shown, too
        else:
            self.ledger.duplicates += key.of == "reconstruction"
        if pending is not None and sender not in pending.senders:
            pending.senders.append(sender)
        return pending is None

    def _is_safe(self, message: OfSnapshot) -> bool:
        triggered = self._triggered
        if isinstance(message, Snapshot):
            seq = message.id.seq
            has_outcome = triggered is not None
            return seq in self._raw_safe or (has_outcome and self.ledger.is_settled(seq))
        return all(
            self.ledger.is_settled(seq) or (triggered and seq in triggered.delivered)
            for seq in _seqs_of(message)
        )

    # --- triggered recording

    def _await_decision(self, key: Accepted, triggered: TriggeredSeries) -> None:
        """Take a new message, to be recorded and counted once the raw counts of its snapshot are
        decided.
        """
        message = self._pending[key].message
        if isinstance(message, Snapshot):
            self._note_event(triggered.add(message))
            self._write_decided(triggered)
        elif key.seq in self._raw_safe or (
            isinstance(message, Dropped) and not self._raw_is_coming(key.seq)
        ):
            self._queue(key)
        else:
            assert isinstance(message, Reconstruction | Dropped)
            triggered.hold(key.seq, message)
            self._acknowledgements += [(sender, key) for sender in self._pending.pop(key).senders]
            self._callbacks.wake()

    def _write_decided(self, triggered: TriggeredSeries) -> None:
        """Record raw counts that are kept, and that others are not."""
        for seq, is_kept in triggered.ring.decisions():
            key = Accepted(self.name, seq, "snapshot")
            if not is_kept:
                self._pending[key].message = NotKept(seq)
            self._queue(key)

    def _raw_is_decided(self, seq: int) -> None:
        assert self._triggered is not None
        message = self._triggered.take(seq)
        # At the end, one that was kept too late for a node has no delivery.
        if seq not in self._raw_safe or (message is None and self.ended_by is not None):
            message = Dropped(
                self.name, 0, seq, "", "raw_only"
            )  # without raw counts it becomes a drop
        if message is not None:
            key = acknowledgement_of(message)
            self._pending[key] = _Pending(message, [])
            self._queue(key)

    def keep_event(self, who: str) -> Event:
        """Begin an event now, for an operator.

        Raises `InputError` if the recording is not triggered.
        """
        if self._triggered is None:
            raise InputError("Everything is recorded", expected='[record] mode = "triggered"')
        # The acquire node's clock has stamped the snapshots. While it is unknown, as after a
        # restart, the newest snapshot has its time.
        ahead_ns = self._callbacks.clock_of("acquire")
        now_ns = 0 if ahead_ns is None else unix_ns() - ahead_ns
        event = self._triggered.ring.trigger(now_ns, "kept", who)
        self._note_event(event)
        self._write_decided(self._triggered)
        self._save()
        return event

    def _note_event(self, event: Event | None) -> None:
        if event is not None:
            log.info("event %d: %s %s", event.number, event.cause, event.who)
            self.recorder.submit(event)
            self.checkpoint()

    @property
    def is_triggered(self) -> bool:
        """Whether only events are recorded."""
        return self._triggered is not None

    # --- acknowledgements

    def _accept(self, message: OfSnapshot, now_s: float) -> OfSnapshot:
        """Display a new message; return it as it is recorded and counted."""
        match message:
            case Reconstruction():
                return self._accept_reconstruction(message, now_s)
            case Dropped() | RawSnapshots():
                for seq in message.seqs:
                    self._show(self._reorder.skip(seq, now_s))
        return message

    def take_acknowledgements(self) -> list[tuple[bytes, Accepted]]:
        """Settle the snapshots that the recorder has written; return the acknowledgements by
        receiver.
        """
        due = self._acknowledgements
        self._acknowledgements = []
        while not self._written.empty():
            key, results = self._written.get()
            pending = self._pending.pop(key)
            self._settle(pending.message, results)
            if isinstance(pending.message, NotKept):
                key = dataclasses.replace(key, of="not_kept")
            due += [(sender, key) for sender in pending.senders]
        if due:
            self._save()
        return _in_runs(due)

    def _save(self) -> None:
        """Save the ledger before anything in it is acknowledged."""
        triggers = (
            None if self._triggered is None else self._triggered.saved(self.ledger.is_settled)
        )
        if self._file is not None:
            changes = self.statistics.changes[-_SAVED_CHANGES:]
            self._file.write(
                SavedLedger(
                    self.name, self.recorder.is_wanted, self.ledger.state(), changes, triggers
                )
            )

    def _note_video(self, seq: int) -> None:
        if self._triggered is not None:  # nothing else asks, and gaps cost memory
            self._videos.add(seq)

    def _accept_reconstruction(
        self, reconstruction: Reconstruction, now_s: float
    ) -> Reconstruction:
        self._note_video(reconstruction.id.seq)
        # The heartbeat with new settings may be behind the first result that used them.
        if not self.solvers.knows(reconstruction.report.solver):
            self.solvers.learn(self._callbacks.solvers())
        accepted = dataclasses.replace(
            reconstruction, times=dataclasses.replace(reconstruction.times, accepted_ns=unix_ns())
        )
        clock_of = self._callbacks.clock_of
        stages = stage_seconds(accepted.times, clock_of("acquire"), clock_of(accepted.node))
        self.statistics.add(accepted, stages, now_s)
        for stage, seconds in stages.items():
            self._callbacks.observe(seconds, stage)
        # Shown before it is safe: the live view must not wait for the disk.
        self._show(self._reorder.push(reconstruction.id.seq, accepted, now_s))
        if self._triggered is not None:
            self._note_event(self._triggered.ring.judge({"residual": accepted.report.residual}))
            self._write_decided(self._triggered)
        return accepted

    def _queue(self, key: Accepted) -> None:
        """Submit a pending message to the recorder."""
        results: list[Written] = []

        def done(written: Written) -> None:  # also called from the recorder's thread
            results.append(written)
            if len(results) < count:
                return
            self._written.put((key, results))
            # Nothing waits for those that are only recorded: the next turn acknowledges them.
            if self._written.qsize() == 1 and not isinstance(message, RawSnapshots):
                self._callbacks.wake()

        pending = self._pending[key]
        if isinstance(pending.message, Dropped):
            pending.message = self._with_outcome(pending.message)
        message = pending.message
        count = len(message.rows) if isinstance(message, RawSnapshots) else 1
        if isinstance(message, Snapshot | RawSnapshots) and not self._rig.record.raw:
            for _ in range(count):
                done(Written.OFF)
        else:
            self.recorder.submit(message, done)

    # --- display

    def show_expired(self, now_s: float) -> None:
        """Display reconstructions that have waited long enough for earlier ones."""
        self._show(self._reorder.expire(now_s))

    def _show(self, reconstructions: list[Reconstruction]) -> None:
        for reconstruction in reconstructions:
            self._callbacks.show(reconstruction)

    # --- ledger

    def _settle(self, message: OfSnapshot | NotKept, results: list[Written]) -> None:
        """Count a message that the recorder has written or, as it says, has not."""
        written = results[0]
        match message:
            case RawSnapshots():
                for seq, outcome in zip(message.seqs, results, strict=True):
                    self._settle_raw_only(seq, message.id.epoch, outcome)
            case Snapshot():
                if written == Written.WRITTEN:
                    self._raw_safe.add(message.id.seq)
                if self._triggered is not None:
                    self._raw_is_decided(message.id.seq)
                elif message.id.seq in self._awaiting_raw:
                    self._awaiting_raw.remove(message.id.seq)
                    self._queue(Accepted(self.name, message.id.seq, "dropped"))
            case Dropped():
                for seq in message.seqs:
                    self.ledger.settle(seq, Outcome(message.outcome), message.reason)
            case Reconstruction():
                self._settle_reconstruction(message, written)
            case NotKept():
                self.ledger.settle(message.seq, Outcome.NOT_KEPT)

    def _settle_raw_only(self, seq: int, epoch: int, written: Written) -> None:
        if written == Written.WRITTEN:
            self._raw_safe.add(seq)
        if seq in self._raw_safe:
            self.ledger.settle(seq, Outcome.RAW_ONLY)
            return
        report = self._with_outcome(Dropped(self.name, epoch, seq, "", "raw_only"))
        self.ledger.settle(seq, Outcome.DROPPED, report.reason)
        self.recorder.submit(report)

    def _settle_reconstruction(self, reconstruction: Reconstruction, written: str) -> None:
        seq = reconstruction.id.seq
        if written == Written.LOST:
            if seq in self._raw_safe:
                self.ledger.settle(seq, Outcome.RAW_ONLY)
            else:
                self.ledger.settle(seq, Outcome.DROPPED, DropReason.NOT_RECORDED)
            return
        self.ledger.unrecorded += written == Written.OFF
        self.ledger.settle(seq, Outcome.RECONSTRUCTED)
        recorded_s = (unix_ns() - reconstruction.times.accepted_ns) / 1e9
        self.statistics.add_latency("record", recorded_s)
        self._callbacks.observe(recorded_s, "record")

    def _raw_is_coming(self, seq: int) -> bool:
        return Accepted(self.name, seq, "snapshot") in self._pending

    def _with_outcome(self, dropped: Dropped) -> Dropped:
        """Return which outcome a snapshot without video has:
        raw only requires recorded raw counts.
        """
        if dropped.outcome == "dropped":
            return dropped
        if dropped.seq in self._raw_safe:
            return dataclasses.replace(dropped, reason="")
        reason = dropped.reason
        if reason != DropReason.ACQUIRE_LOST:  # of those the data never reached the sink
            reason = (
                DropReason.NOT_RECORDED if self.recorder.is_wanted else DropReason.RECORDING_OFF
            )
        return dataclasses.replace(dropped, outcome="dropped", reason=reason)

    # --- operator

    @property
    def recording_is_long_enough(self) -> bool:
        """Whether the recording has as much data as ``[record] stop_after_mib`` admits."""
        return (
            self.recorder.is_on
            and 0 < self._rig.record.stop_after_mib << 20 <= self.recorder.status().bytes
        )

    def switch_recording(self, on: bool) -> str:
        """Start or stop the recording during the series; return the file name.

        Raises `InputError` or `StorageError` if it is already in that state, or fails.
        """
        file = (
            self.recorder.start(self.ledger.settled_below)
            if on
            else self.recorder.stop(self.ledger.counts())
        )
        self._save()
        return file

    def note_change(self, change: SettingChange) -> None:
        """Record an operator's change: in the journal at once, in the recording with its ledger."""
        self.statistics.changes.append(change)
        self.recorder.submit(change)
        self.checkpoint()
        self._save()

    # --- the end

    def end(self, sender: bytes, end: SeriesEnd) -> None:
        """Handle the end of the series announced by the acquire node."""
        self.ended_by = sender
        self.ledger.end(end.acquired)
        self.ledger.camera_missed = end.camera_dropped
        self.statistics.end_reason = end.reason
        if self._triggered is not None:
            self._triggered.ring.end()
            self._write_decided(self._triggered)
            pending = {key.seq for key in self._pending}
            kept = (seq for run in self._raw_safe.runs for seq in range(*run))
            for seq in {
                *self._triggered.delivered,
                *kept,
            }:  # lost in a crash of the acquire node, or without delivery
                if seq not in pending and not self.ledger.is_settled(seq):
                    self._raw_is_decided(seq)

    def may_end(self) -> bool:
        """Return whether the series has ended and nothing is left to record."""
        return self.ended_by is not None and not self._pending

    def close(self) -> RecordingStatus:
        """Display the remaining results and close the recording with its ledger;
        return its status.
        """
        self._show(self._reorder.flush())
        counts = self.ledger.counts()
        self.recorder.close(counts)
        self._save()
        if counts["closed"]:
            finish_segments(self._file_path, self.name, counts)
        self._unreadable = self._missing_from_disk()
        if self._unreadable:
            log.error("series %s: %s", self.name, self._unreadable)
        return self._recording_status()

    def _missing_from_disk(self) -> str:
        """Read back which snapshots are in the recording; return why it has fewer than the ledger,
        ``""`` if not.
        """
        counts = self.ledger.counts()
        videos = counts["reconstructed"] - counts["unrecorded"]
        recorded = videos + counts["raw_only"]
        videos_on_disk, on_disk, problems = count_recorded(self._file_path, self.name)
        missing = max(videos - videos_on_disk, recorded - on_disk)
        causes = "; ".join(problems) or "their rows are missing"
        if missing > 0:
            return f"{missing} of {recorded} recorded snapshots cannot be read back: {causes}"
        return ""

    def abandon(self) -> None:
        """Close the recording without a ledger, after an error."""
        self.recorder.close()

    # --- status

    def update_from_acquire(self, report: Mapping[str, int | float | str], now_s: float) -> None:
        """Update from the acquire node's status of the series."""
        acquired, missed = (report.get(name) for name in ("acquired", "camera_missed"))
        if _is_count(acquired):
            self.ledger.announce(acquired)
            self.statistics.acquired_rate.update(now_s, acquired)
        if _is_count(missed):
            self.ledger.camera_missed = missed
        counts = {name: report.get(f"camera_{name}") for name in FAULTS}
        self.statistics.frame_faults |= {
            name: count for name, count in counts.items() if _is_count(count)
        }

    def checkpoint(self) -> None:
        """Write the current ledger and solver settings to the recording, where they survive a
        crash.
        """
        self.recorder.try_again(self.ledger.settled_below, time.monotonic())
        notes: JsonObject = {"solvers": dict(self.solvers.settings)}
        if changes := self.statistics.changes:
            notes["changes"] = [change.to_json() for change in changes]
        if self._triggered is not None:
            notes["events"] = [
                dataclasses.asdict(event)
                for event in self._triggered.ring.state.events[-_EVENTS_IN_FILE:]
            ]
            notes["clock_steps"] = [list(step) for step in self._triggered.ring.state.steps]
        if not self.recorder.is_full:
            self.recorder.submit(LedgerNote(self.ledger.counts(), notes, self.ledger.settled_below))

    def status(self, now_s: float) -> SeriesStatus:
        """Return the status of the series for the page."""
        return SeriesStatus.of(
            self.statistics,
            now_s,
            recording=self._recording_status(),
            open_share=self._open_share,
            warn_shift_px=self._rig.calibration.warn_shift_px,
            events=None
            if self._triggered is None
            else self._triggered.ring.state.events[-_EVENTS_SHOWN:],
        )

    def _recording_status(self) -> RecordingStatus:
        status = self.recorder.status()
        is_requested = self._rig.record.enabled or status.enabled
        lost = not_recorded(self.ledger.dropped) if is_requested else 0
        return dataclasses.replace(status, lost=lost, unreadable=self._unreadable)


def _seqs_of(message: OfSnapshot) -> range:
    """Return the snapshots of a message."""
    if isinstance(message, Dropped | RawSnapshots):
        return message.seqs
    return range(message.id.seq, message.id.seq + 1)


def _in_runs(due: list[tuple[bytes, Accepted]]) -> list[tuple[bytes, Accepted]]:
    """Return the same acknowledgements, one for each run of consecutive snapshots."""
    runs: list[tuple[bytes, Accepted, int]] = []
    for sender, key in due:
        before, first, count = runs[-1] if runs else (b"", key, MAX_RUN)
        follows = (sender, key.of, key.seq) == (before, first.of, first.seq + count)
        if follows and count + key.count <= MAX_RUN:
            runs[-1] = (sender, first, count + key.count)
        else:
            runs.append((sender, key, key.count))
    return [(sender, dataclasses.replace(key, count=count)) for sender, key, count in runs]


def _is_count(value: object) -> TypeGuard[int]:
    """Return whether a node's report of a number of frames is one."""
    return type(value) is int and 0 <= value < _MAX_COUNT
