"""The session of a running series at the sink: statistics, recording and pending acknowledgements."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sci_stream.config import Rig
from sci_stream.delivery.interval_set import IntervalSet
from sci_stream.delivery.ledger import DropReason, Outcome
from sci_stream.delivery.reorder_buffer import ReorderBuffer
from sci_stream.model import Reconstruction, SeriesInfo, Snapshot
from sci_stream.nodes.sink.control_broker import SettingChange
from sci_stream.nodes.sink.live_movie import Movie
from sci_stream.nodes.sink.options import movie_options, recorder_options
from sci_stream.nodes.sink.recorder import Admission, Written
from sci_stream.nodes.sink.recording_controller import RecordingController
from sci_stream.nodes.sink.statistics import SeriesStatistics
from sci_stream.optics.calibration import Calibration
from sci_stream.storage.recording import recording_path
from sci_stream.storage.recording.segments import earlier_segments
from sci_stream.wire import Dropped, SeriesEnd

log = logging.getLogger(__name__)

_REORDER_PATIENCE_S = 2.0
_CHANGES_IN_FILE = 48
"""The ledger document in a recording has a fixed size."""
_SOLVERS_IN_FILE = 32
Key = tuple[str, int]
"""(kind, seq) of a message to acknowledge."""


class SeriesSession:
    """State of one series at the sink, from start to end."""

    def __init__(self, info: SeriesInfo, calibration: Calibration, rig: Rig) -> None:
        self.name = info.series
        self.book = SeriesStatistics(info)
        nodes = max(1, rig.reconstruct.nodes)
        self.reorder: ReorderBuffer[Reconstruction] = ReorderBuffer(
            window=2 * nodes * rig.reconstruct.block_snapshots, patience_s=_REORDER_PATIENCE_S
        )
        self.raw_safe = IntervalSet()
        self.waiting_for: dict[Key, list[bytes]] = {}
        self.ended_by: bytes | None = None
        self._warn_shift_px = rig.calibration.warn_shift_px
        self._records_raw = rig.record.raw
        self.recording = RecordingController(info, calibration, lambda: recorder_options(rig))
        self._movie: Movie | None = None
        self._solvers: dict[str, Mapping[str, Any]] = {}
        if rig.record.enabled:
            folder = recorder_options(rig).folder
            self._resume(folder)
            self.recording.start()
            if (film := movie_options(rig)) is not None:
                self._movie = Movie(recording_path(folder, info.series), film)

    def _resume(self, folder: Path) -> None:
        """Restore the state from earlier segments of this series after a restart of the sink."""
        for recording in earlier_segments(recording_path(folder, self.name), self.name):
            with recording:
                for seq in recording.settled_seqs:
                    outcome, reason = recording.outcome(seq) or ("", "")
                    self.book.ledger.settle(seq, Outcome(outcome), reason)
                    if outcome == Outcome.RECONSTRUCTED:
                        report, node, redelivered = recording.report(seq)
                        self.book.add_figures(seq, report, node, redelivered=redelivered)
                for seq in recording.raw_seqs:
                    self.raw_safe.add(seq)
                self.learn_solvers(recording.notes.get("solvers", {}))

    # --- storing: each returns False if the queue is full; the callback reports whether it was stored

    def record_reconstruction(self, reconstruction: Reconstruction, done: Callable[[bool], None]) -> bool:
        """Store a reconstruction."""
        recorder = self.recording.recorder
        if recorder is None:
            self.book.ledger.unrecorded += 1
            done(True)
            return True
        return self._admitted(recorder.submit_reconstruction(reconstruction, _stored(done)), done)

    def record_raw(self, snapshot: Snapshot, done: Callable[[bool], None]) -> bool:
        """Store raw counts."""
        recorder = self.recording.recorder
        if recorder is None or not self._records_raw:
            done(False)
            return True
        return self._admitted(recorder.submit_raw(snapshot, _stored(done)), done)

    def record_outcome(self, seq: int, outcome: Outcome, reason: str, done: Callable[[bool], None]) -> bool:
        """Store the outcome of a snapshot without video."""
        recorder = self.recording.recorder
        if recorder is None:
            done(True)
            return True
        return self._admitted(recorder.submit_outcome(seq, outcome.value, reason, _stored(done)), done)

    @staticmethod
    def _admitted(admission: Admission, done: Callable[[bool], None]) -> bool:
        if admission is Admission.STOPPED:
            done(False)
        return admission is not Admission.FULL

    # --- ledger

    def expects_already(self, key: Key, identity: bytes) -> bool:
        """Return whether this message is already being recorded; its sender will be acknowledged too."""
        senders = self.waiting_for.get(key)
        if senders is None:
            return False
        if key[0] == "reconstruction":
            self.book.ledger.duplicates += 1
        if identity not in senders:
            senders.append(identity)
        return True

    def settle_reconstruction(self, reconstruction: Reconstruction, *, stored: bool) -> None:
        """Settle a reconstruction in the ledger; an unstored one counts as raw only or not_recorded."""
        seq = reconstruction.id.seq
        if stored:
            self.book.ledger.settle(seq, Outcome.RECONSTRUCTED)
            self.book.recorded(reconstruction)
        elif seq in self.raw_safe:
            self.book.ledger.settle(seq, Outcome.RAW_ONLY)
        else:
            self.book.ledger.settle(seq, Outcome.DROPPED, DropReason.NOT_RECORDED)

    def settle_raw(self, seq: int, *, stored: bool) -> None:
        """Record whether raw counts are safe."""
        if stored:
            self.raw_safe.add(seq)

    def outcome_of(self, dropped: Dropped) -> tuple[Outcome, str]:
        """Return the outcome of a snapshot that was not reconstructed; raw only requires recorded raw counts."""
        if dropped.outcome == "dropped":
            return Outcome.DROPPED, dropped.reason
        raw_on_its_way = ("snapshot", dropped.seq) in self.waiting_for
        if dropped.seq in self.raw_safe or raw_on_its_way:
            return Outcome.RAW_ONLY, ""
        if dropped.reason == DropReason.ACQUIRE_LOST:
            return Outcome.DROPPED, dropped.reason  # its data never reached the sink
        return (
            Outcome.DROPPED,
            DropReason.NOT_RECORDED if self.recording.recorder is not None else DropReason.RECORDING_OFF,
        )

    # --- recording on and off

    def switch_recording(self, on: bool) -> str:
        """Start or stop the recording during the series; return the file name.

        Raises
        ------
        InputError, StorageError
            If it is already in that state, or fails.
        """
        file = self.recording.start() if on else self.recording.stop(self.book.ledger.as_dict())
        self.recording.note(on=on, file=file)
        return file

    # --- operator changes

    def note_change(self, change: SettingChange) -> None:
        """Record an operator's change: in the journal at once, in the recording with its ledger."""
        self.book.changes.append(change.as_dict())
        if self.recording.recorder is not None:
            self.recording.recorder.submit_event("changed", change.as_dict())
            self.checkpoint()

    # --- the end

    def end(self, identity: bytes, end: SeriesEnd) -> None:
        """Handle the end of the series announced by the acquire node."""
        self.ended_by = identity
        self.book.ledger.end(end.acquired)
        self.book.ledger.camera_missed = end.camera_dropped
        self.book.end_reason = end.reason

    def may_end(self) -> bool:
        """Return whether the series has ended and nothing is left to record."""
        return self.ended_by is not None and not self.waiting_for

    def close(self) -> dict[str, Any]:
        """Close the recording with its ledger; return its status."""
        result = self.recording.close(self.book.ledger.as_dict())
        if self._movie is not None:
            self._movie.close()
        return result | self._movie_status()

    def _movie_status(self) -> dict[str, Any]:
        return {} if self._movie is None else {"movie": self._movie.status()}

    def abandon(self) -> None:
        """Close the recording without a ledger, after an error."""
        self.recording.close(None)
        if self._movie is not None:
            self._movie.close()

    def film(self, reconstruction: Reconstruction) -> None:
        """Add a reconstruction, in order of seq, to the live movie, if any."""
        if self._movie is not None:
            self._movie.publish(reconstruction)

    def update_from_acquire(self, report: Mapping[str, int | float | str], now_s: float) -> None:
        """Update from the acquire node's status of the series."""
        acquired = int(report.get("acquired", 0))
        self.book.ledger.announce(acquired)
        self.book.acquired_rate.update(now_s, acquired)
        self.book.ledger.camera_missed = int(report.get("camera_missed", 0))

    def knows_solver(self, name: str) -> bool:
        """Return whether these solver settings are known, or empty."""
        return not name or name in self._solvers

    def learn_solvers(self, solvers: Mapping[str, Mapping[str, Any]]) -> None:
        """Store the solver settings of nodes by their ids."""
        self._solvers |= solvers
        while len(self._solvers) > _SOLVERS_IN_FILE:
            left_out = next(iter(self._solvers))
            del self._solvers[left_out]
            log.warning("%s: too many different solver settings for the recording; discarding %s", self.name, left_out)

    def checkpoint(self) -> None:
        """Write the current ledger and solver settings to the recording, where they survive a crash."""
        if self.recording.recorder is not None:
            self.recording.recorder.submit_ledger(
                self.book.ledger.as_dict(), {"solvers": self._solvers, **_changes_note(self.book.changes)}
            )

    def status(self, now_s: float) -> dict[str, Any]:
        """Return the status of the series for the page."""
        info, last = self.book.info, self.book.last
        rate = self.book.rate.per_s(now_s)
        return {
            "series": self.name,
            "rig": info.rig,
            "policy": info.policy.value,
            "camera": f"{info.camera_model} {info.camera_serial}".strip(),
            "n_frames": info.n_frames,
            "ledger": self.book.ledger.as_dict(),
            "rates": {
                "acquired_per_s": round(self.book.acquired_rate.per_s(now_s), 3),
                "reconstructed_per_s": round(rate, 3),
                "video_fps": round(rate * info.n_frames, 2),
            },
            "latency_ms": self.book.latency_ms(),
            "psnr_db": last.report.psnr_db if last else None,
            "iterations": last.report.iterations if last else None,
            "start": last.report.start.value if last else None,
            "calibration": self.book.health.figures(),
            "calibration_alerts": self.book.health.alerts(self._warn_shift_px),
            "redelivered": self.book.ledger.redelivered,
            "duplicates": self.book.ledger.duplicates,
            "bit_depth": info.bit_depth,
            "recording": self.recording.status() | self._movie_status(),
        }


def _changes_note(changes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the recent changes that fit next to the ledger; the journal has all of them."""
    left_out = len(changes) - _CHANGES_IN_FILE
    more = {"changes_left_out": left_out} if left_out > 0 else {}
    return {"changes": changes[-_CHANGES_IN_FILE:], **more} if changes else {}


def _stored(done: Callable[[bool], None]) -> Callable[[Written], None]:
    return lambda written: done(written is not Written.LOST)
