"""The acquire node: reads the camera, dispatches snapshots and accounts for each of them to the
sink.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from sci_stream.calibration.compatibility import require_compatible_calibration
from sci_stream.clock import NOTEWORTHY_STEP_S, read_again, unix_ns
from sci_stream.config import Rig
from sci_stream.delivery.admission import Admission
from sci_stream.delivery.dispatch_queue import DispatchQueue
from sci_stream.delivery.frame_faults import FRAME_FAULT, UNIT
from sci_stream.delivery.ledger import DropReason
from sci_stream.delivery.outbox import Frames
from sci_stream.errors import EnvironmentFault
from sci_stream.model import FIRMWARE, CameraCapabilities, Policy, SeriesInfo, Snapshot, SnapshotId
from sci_stream.nodes.acquire.camera_reader import Answer, CameraReader, Captured
from sci_stream.nodes.acquire.in_flight import (
    DropReports,
    InFlightSnapshots,
    MemoryBudget,
    frame_bytes,
    raw_bytes,
)
from sci_stream.nodes.acquire.managed_camera import ManagedCamera
from sci_stream.nodes.acquire.raw_groups import in_groups
from sci_stream.nodes.acquire.spool import RecoveredState, Spool
from sci_stream.nodes.acquire.status import AcquirePhase, AcquireReport
from sci_stream.nodes.runtime.control_handler import ControlHandler
from sci_stream.nodes.runtime.health_reporter import HealthReporter
from sci_stream.nodes.runtime.logs import log_for_series
from sci_stream.nodes.runtime.network import NodeNetwork
from sci_stream.nodes.runtime.process import (
    StopRequest,
    freeze_gc,
    keep_memory,
    new_instance_id,
    versions,
)
from sci_stream.nodes.runtime.run_inputs import input_versions
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import declared
from sci_stream.transport.client_connection import PeerEvent
from sci_stream.transport.dispatcher import Dispatcher, Settled
from sci_stream.transport.sink_client import SinkClient
from sci_stream.wire.codec import encode, sendable
from sci_stream.wire.messages import (
    Accepted,
    CalibrationRequest,
    Control,
    Dropped,
    Hello,
    RawRow,
    RawSnapshots,
    SeriesEnd,
    Welcome,
)
from sci_stream.wire.payload import with_checksum

log = logging.getLogger(__name__)

# Time that a call of the driver may take beyond its timeout, once the camera is to stop.
_STOP_GRACE_S = 15.0
# End reason of a series that was asked to stop.
_MAX_FIRMWARE = 128
_STOPPED = "stopped"
# End reason of a series that reached its limit.
_FINISHED = "finished"
_OFFERED = {
    AcquirePhase.STANDBY: ("start_series",),
    AcquirePhase.WAITING: ("next_series", "stop_series"),
    AcquirePhase.RUNNING: ("next_series", "stop_series", "advance_masks"),
}


class AcquireNode:
    """Acquire one series from one camera: a new one, or the one in the spool of a crashed
    predecessor.

    ``camera`` is not yet open, and from now on used only by the camera thread; ``calibration``
    comes from the rig's file, None to use the camera's own. The series ends after ``snapshots`` or
    ``duration_s`` seconds, 0 for no limit. Operators may request ``actions``, by name (see
    `ControlHandler`), each when it is possible; ``waits`` returns whether the series still waits
    for a request to begin.
    """

    def __init__(
        self,
        rig: Rig,
        camera: ManagedCamera,
        calibration: Calibration | None,
        stop: StopRequest,
        *,
        snapshots: int = 0,
        duration_s: float = 0.0,
        actions: Mapping[str, Callable[[], str]] | None = None,
        waits: Callable[[], bool] = lambda: False,
    ) -> None:
        self._rig = rig
        self._stop = stop
        self._calibration = calibration
        self._duration_s = duration_s
        is_record = Policy(rig.policy.mode) is Policy.RECORD
        self._had_nodes = False
        self._records_raw = is_record or rig.record.is_triggered
        self._records_all_raw = is_record and not rig.record.is_triggered
        # Snapshots that are only reconstructed if they are kept, until the sink has decided.
        self._undecided: dict[int, Snapshot] = {}
        self._solves_kept = rig.record.is_triggered and rig.record.reconstruct == "kept"
        keep_memory()
        self._network = NodeNetwork(rig, stop)
        self._waits = waits
        # Kept snapshots are old when they are decided, and none of them is for the live page alone.
        is_live = Policy(rig.policy.mode) is Policy.LIVE and not self._solves_kept
        incarnation = new_instance_id()
        self._series = ""
        self._spool = Spool(rig.policy.spool, rig.rig.name)
        self._dispatcher = Dispatcher(
            self._network.context,
            rig.network.listening["dispatch"],
            Welcome("acquire", incarnation, rig.network.heartbeat_s),
            DispatchQueue(rig.policy.queue_snapshots, rig.reconstruct.block_snapshots),
            max_payload_bytes=self._network.max_payload_bytes,
            configure=self._network.serve,
            known=rig.reconstruct_names,
            admission=Admission(
                rig.reconstruct.solve_timeout_s, rig.policy.max_wait_s if is_live else None
            ),
        )
        hello = Hello("acquire", "acquire", incarnation, versions=versions())
        ring_s = rig.record.before_s if rig.record.is_triggered else 0.0
        self._link = SinkClient(self._network.connect("sink", hello), ring_s)
        self._budget = MemoryBudget(rig.policy.ring_mib << 20)
        self._reader = CameraReader[tuple[Snapshot, Frames] | RawSnapshots | SnapshotId](
            camera,
            self._budget,
            self._network.wakeup.wake,
            self._keep,
            most=snapshots,
            read_timeout_s=rig.camera.read_timeout_s,
        )
        self._camera = camera
        self._actions = {**(actions or {}), **camera.actions}
        self._controls = ControlHandler(
            "acquire", self._link.connection.send, self._reader.change, self._actions
        )
        self._in_flight = InFlightSnapshots(self._budget, self._spool)
        self._drops = DropReports(self._series, self._link.post)
        self._report = AcquireReport(
            self._reader, self._dispatcher, self._link, self._spool, self._budget, self._in_flight
        )
        self._reason = ""
        self._health = HealthReporter(rig, "acquire")
        self._phase = AcquirePhase.STANDBY
        self._info: SeriesInfo | None = None
        self._is_announced = False
        self._since_s = self._started_s = time.monotonic()
        self._progress_s = self._published_s = self._since_s
        self._deadline_s = float("inf")
        self.running_s = 0.0
        """Seconds from the camera's start until every snapshot was settled."""

    @property
    def was_ending_already(self) -> bool:
        """Whether a crashed predecessor was already ending this series; the next series did not
        begin.
        """
        return self._spool.recovered is not None and self._reason == _STOPPED

    @property
    def _solves_nothing(self) -> bool:
        """Whether the rig has no reconstruct node, and none ever came by itself. Thread-safe."""
        return not self._rig.reconstruct.nodes and not self._had_nodes

    @property
    def under_way(self) -> int:
        """Snapshots delivered by the camera that are neither safe nor dropped. Thread-safe."""
        return self._reader.acquired - self._in_flight.released

    # --- the loop

    def run(self) -> None:
        """Run until the series is over and the sink has confirmed its end.

        Raises `CameraError` or `CalibrationError` if there is no usable camera or calibration;
        `EnvironmentFault` if the sink did not confirm in time.
        """
        for end in (self._dispatcher, self._link.connection):
            self._network.watch(end.socket, end.monitor.socket)
        freeze_gc()
        try:
            while self._phase is not AcquirePhase.ENDED:
                # A full socket has room again long before the next frames are accepted.
                urgent = self._reader.is_urgent or self._link.outbox.has_unsent
                self._step(self._network.wait() if urgent else self._network.pause())
            if self._reader.failure is not None:
                raise self._reader.failure
        finally:
            self._reader.stop()
            self._reader.join(0.0 if self._reader.finished else 5.0)
            over = self._phase is AcquirePhase.ENDED and self._info is not None
            self._spool.close(over=over, last=self._reason == _FINISHED)
            self._link.connection.close()
            self._dispatcher.close()
            self._health.close()
            self._network.close()

    def _step(self, now_s: float) -> None:
        news = self._link.poll(now_s)
        if PeerEvent.NEW in news.events:
            self._announce_series(now_s)
        for message in news.messages:
            if isinstance(message, CalibrationRequest) and self._calibration is not None:
                self._link.connection.try_send(encode(self._calibration))
            elif isinstance(message, Control):
                self._controls.take(message, self._reader.settings, self._offered)
        self._give_up_hanging_camera()
        # Results cannot be stored without a sink: nodes that wait for it must not be taken for
        # lost.
        if not self._link.connection.connected:
            self._dispatcher.admission.expect_nothing(now_s)
        for answer in self._reader.answered():
            self._changed(answer)
        # Confirmations and results first: they free the memory that new frames need.
        self._note_safe(news.safe, now_s)
        for settled in self._dispatcher.poll(now_s):
            self._settle(settled, now_s)
        raw: list[RawSnapshots] = []
        for acquired in self._reader.take():
            if isinstance(acquired, RawSnapshots):
                raw.append(acquired)
            else:
                self._accept(acquired, now_s)
        self._hold_raw(raw, now_s)
        for settled in self._dispatcher.poll(now_s):
            self._settle(settled, now_s)
        self._had_nodes = self._had_nodes or bool(self._dispatcher.peers)
        self._advance(now_s)
        is_running = self._phase is AcquirePhase.RUNNING
        self._reader.is_urgent = not (is_running and self._solves_nothing)
        self._drops.send(now_s)
        if self._health.due(now_s):
            self._publish_status()
        self._link.send_due()

    def _note_safe(self, safe: list[Accepted], now_s: float) -> None:
        """Release confirmed snapshots, or dispatch those that were confirmed to be kept."""
        for accepted in safe:
            if accepted.of in {"snapshot", "not_kept"}:
                for seq in self._in_flight.confirm_raw(accepted.seq):
                    self._spool.confirm(seq)
                snapshot = self._undecided.pop(accepted.seq, None)
                if snapshot is not None and accepted.of == "snapshot":
                    self._dispatch(snapshot, now_s)
                elif snapshot is not None:
                    self._settle(Settled(accepted.seq), now_s)
            elif accepted.of == "dropped":
                for dropped in self._drops.acknowledged(accepted.seq):
                    self._spool.confirm(dropped)
        if safe:
            self._progress_s = now_s

    def _give_up_hanging_camera(self) -> None:
        """Continue without a camera whose driver does not return; after a stop request the limit is
        shorter.
        """
        if not self._reader.finished:
            error = self._camera.overdue(_STOP_GRACE_S if self._reader.stopping else None)
            if error is not None:
                self._reader.abandon(error)

    def _advance(self, now_s: float) -> None:
        match self._phase:
            case AcquirePhase.STANDBY:
                self._stand_by(now_s)
            case AcquirePhase.OPENING:
                if self._stop:
                    self._reader.stop()
                # A resumed series is closed even if nothing else is left to do for it.
                wanted = self._spool.recovered is not None or not self._reader.finished
                if self._reader.capabilities is not None and wanted:
                    self._begin_series(now_s)
                    self._enter(AcquirePhase.WAITING, now_s)
                    self._announce_series(now_s)
                    # Now, so that the sink sets again what an operator had set before the camera
                    # starts.
                    self._publish_status()
                    self._link.connection.send_heartbeat()
                elif self._reader.finished:
                    self._enter(AcquirePhase.ENDED, now_s)
            case AcquirePhase.WAITING:
                self._wait_for_nodes(now_s)
            case AcquirePhase.RUNNING:
                if self._stop or now_s >= self._deadline_s:
                    self._reader.stop()
                if self._reader.finished:
                    self._enter(AcquirePhase.DRAINING, now_s)
            case AcquirePhase.DRAINING:
                self._drain(now_s)
            case AcquirePhase.ENDING if not len(self._link.outbox):
                self._enter(AcquirePhase.ENDED, now_s)
            case AcquirePhase.ENDING if (
                now_s - max(self._since_s, self._progress_s) > self._rig.drain.timeout_s
            ):
                raise EnvironmentFault(
                    "The sink did not confirm the end of the series",
                    expected=f"a confirmation within {self._rig.drain.timeout_s:g} s",
                    got=f"{len(self._link.outbox)} messages unconfirmed",
                    hint=f"Is the sink running at {self._rig.network.results}?",
                )

    def _enter(self, phase: AcquirePhase, now_s: float) -> None:
        log.info("%s", phase)
        self._phase = phase
        self._since_s = now_s
        if phase is AcquirePhase.DRAINING:
            # Recorded first: a successor that resumes this series then acquires nothing more for
            # it.
            self._reason = self._reason or str(
                self._reader.failure or (_STOPPED if self._stop else _FINISHED)
            )
            self._spool.end(self._reason)

    # --- the series

    def _stand_by(self, now_s: float) -> None:
        """Open the camera unless the series waits for a request, or the last one still uses the
        camera.
        """
        # An interrupted series is ended first.
        if (self._waits() and self._spool.recovered is None) or self._camera.user.is_alive():
            if self._stop or self._reader.finished:
                self._enter(AcquirePhase.ENDED, now_s)
            return
        # An interrupted series keeps its clock.
        stepped_s = 0.0 if self._spool.recovered is not None else read_again() / 1e9
        if abs(stepped_s) > NOTEWORTHY_STEP_S:
            log.warning("host clock stepped by %+.1f s since the last series", stepped_s)
        self._series = (
            time.strftime("%Y%m%dT%H%M%S", time.gmtime())
            + "-"
            + self._link.connection.hello.incarnation
        )
        self._reader.open(
            retry=self._spool.recovered is not None or self._camera.user.ident is not None
        )
        self._camera.user = self._reader.thread
        self._enter(AcquirePhase.OPENING, now_s)

    def _begin_series(self, now_s: float) -> None:
        capabilities = self._reader.capabilities
        assert capabilities is not None
        for text in capabilities.distortions:
            log.warning("the reconstruction will be wrong: %s", text)
        section = self._rig.calibration
        calibration = require_compatible_calibration(
            capabilities,
            self._reader.calibration,
            self._calibration,
            section.file,
            other_camera=section.other_camera,
        )
        self._calibration = calibration
        self._dispatcher.period_ns = capabilities.frame_period_ns or 0
        self._dispatcher.announce(calibration)
        info = sendable(series_info(self._series, self._rig, capabilities, calibration))
        limit_bytes = self._rig.policy.ring_mib << 20
        self._info = self._spool.begin(
            info,
            limit_bytes=limit_bytes,
            other_camera=section.other_camera,
        )
        self._series = self._info.series
        self._drops = DropReports(self._series, self._link.post)
        log_for_series(self._series)
        if self._spool.recovered is not None:
            self._resume(self._spool.recovered, now_s)

    def _resume(self, state: RecoveredState, now_s: float) -> None:
        """Resume the series of a crashed predecessor: no acquired snapshot is lost or acquired
        twice.
        """
        self._reader.resume(state.next_seq, state.epoch + 1, state.camera_missed)
        self._in_flight.released = state.next_seq - len(state.snapshots) - len(state.raw)
        self._reason = state.ending or (_STOPPED if self._waits() else "")
        # A predecessor without nodes leaves snapshots that are raw alone. Without any left, it is
        # unknown.
        self._had_nodes = bool(state.snapshots) or not state.raw
        for raw in state.raw:
            self._budget.hold(raw_bytes(raw))
        self._hold_raw(state.raw, now_s)
        for snapshot in state.snapshots:
            self._budget.hold(frame_bytes(snapshot))
            self._hold(snapshot, now_s)
            if snapshot.id.seq in state.delivered:
                self._in_flight.settle(snapshot.id.seq)
            elif self._solves_kept:
                self._undecided[snapshot.id.seq] = snapshot
            else:
                self._dispatcher.offer(snapshot, promised=True)
        for seq in state.lost:
            self._report_without_video(seq, state.epoch, DropReason.ACQUIRE_LOST, now_s)

    def _announce_series(self, now_s: float) -> None:
        """Announce the series to the sink until it confirms; send the calibration first."""
        if self._info is None or self._calibration is None or not self._link.connection.connected:
            return
        self._link.connection.try_send(encode(self._calibration))
        self._link.outbox.confirm(Accepted(self._series, 0, "series_start"), now_s)
        self._link.post(
            self._info, now_s, first=True
        )  # a restarted sink needs it before all other messages
        self._is_announced = True

    def _wait_for_nodes(self, now_s: float) -> None:
        """Start the camera once reconstruct nodes are ready,
        so that the first frames are not lost.
        """
        waited_s = now_s - self._since_s
        announced = Accepted(self._series, 0, "series_start") not in self._link.outbox
        series_known = announced and self._link.connection.connected
        recovered = self._spool.recovered
        # A resumed series loses frames while it waits: one node is enough, and under `record` none
        # is needed.
        needed = self._rig.reconstruct.nodes if recovered is None else int(not self._records_raw)
        nodes_there = self._dispatcher.ready_nodes >= needed
        may_wait = waited_s < self._rig.policy.wait_for_nodes_s
        if self._stop or self._reader.finished or self._reason:
            self._reader.stop()
            # A series that was never announced to the sink needs no end. One whose confirmation is
            # on its way does.
            on_its_way = self._is_announced and self._link.connection.connected
            begun = series_known or recovered is not None or on_its_way
            self._enter(AcquirePhase.DRAINING if begun else AcquirePhase.ENDED, now_s)
        elif (series_known or recovered is not None) and (nodes_there or not may_wait):
            if not nodes_there:
                log.warning(
                    "%d of %d reconstruct nodes are ready after %.0f s: starting",
                    self._dispatcher.ready_nodes,
                    needed,
                    waited_s,
                )
            self._reader.start()
            self._started_s = now_s
            running_ns = 0 if recovered is None else recovered.running_ns
            ran_s = (time.monotonic_ns() - running_ns) / 1e9 if running_ns else 0.0
            if ran_s <= 0:
                self._spool.run_since(time.monotonic_ns())
            self._deadline_s = (
                now_s + self._duration_s - max(0.0, ran_s) if self._duration_s else float("inf")
            )
            self._enter(AcquirePhase.RUNNING, now_s)

    def _drain(self, now_s: float) -> None:
        if not self._stop and self._dispatcher.ready_nodes:
            # A series that ended by itself has no drain timeout while a node still works on it.
            self._since_s = now_s
        late = self._solves_nothing or now_s - self._since_s > self._rig.drain.timeout_s
        waiting = self._in_flight.delivering(besides=self._undecided)
        if waiting and not late:
            return
        self.running_s = now_s - self._started_s
        if waiting and self._spool.max_snapshots and not self._link.connection.connected:
            # Dropped snapshots would leave the spool without the sink's knowledge: the next run
            # would find them lost.
            raise EnvironmentFault(
                "The sink is not connected at the end of the series",
                expected=f"a connection within {self._rig.drain.timeout_s:g} s",
                got=f"{len(self._in_flight)} unconfirmed snapshots, which stay in the spool",
                hint="Start the rig again: it resumes the series.",
            )
        for entry in self._dispatcher.queue.clear() if waiting else []:
            self._settle(Settled(entry.seq, DropReason.DRAIN_TIMEOUT), now_s)
        self._drops.send(now_s, everything=True)
        if self._info is not None:
            # The sink needs the last counts of the camera for the summary.
            self._publish_status()
            self._link.connection.send_heartbeat()
            end = SeriesEnd(
                series=self._series,
                acquired=self._reader.acquired,
                reason=self._reason,
                camera_dropped=self._reader.counts["missed"],
            )
            self._link.post(end, now_s)
        self._enter(AcquirePhase.ENDING, now_s)

    # --- snapshots

    def _report_without_video(self, seq: int, epoch: int, reason: str, now_s: float) -> None:
        """Report a snapshot that is not reconstructed: raw only, if raw snapshots are recorded,
        else dropped.
        """
        if self._records_raw:
            self._link.post(Dropped(self._series, epoch, seq, reason, "raw_only"), now_s)
        else:
            self._drops.add(seq, epoch, reason)

    def _keep(self, captured: Captured) -> tuple[Snapshot, Frames] | RawSnapshots | SnapshotId:
        """Return the snapshot, written to the spool, where it survives a crash; its identity if
        there is no memory.

        With it the frames of its message, if the sink gets the same ones. Called in the camera
        thread.
        """
        missed = self._reader.counts["missed"]
        frame = captured.frame
        info = self._info
        assert info is not None
        assert self._reader.capabilities is not None
        identity = SnapshotId(info.series, captured.epoch, captured.seq)
        if frame is None:
            self._spool.number(captured.seq, captured.epoch, missed)
            return identity
        if self._records_all_raw and self._solves_nothing:
            row = RawRow(
                frame.host_time_ns,
                frame.camera_time_ns,
                frame.frame_id,
                captured.missed,
                frame.chunks,
            )
            raw = RawSnapshots.one(identity, with_checksum(frame.counts), row, info)
            self._spool.keep_raw(raw, missed)
            # The true video, which some cameras supply, goes to reconstruct nodes alone.
            self._budget.free(frame_bytes(frame) - raw_bytes(raw))
            return raw
        snapshot = Snapshot(
            id=identity,
            # Compute the checksum once: the snapshot is spooled and sent, possibly twice.
            counts=with_checksum(frame.counts)
            if self._spool.max_snapshots or self._records_raw
            else frame.counts,
            calibration_hash=info.calibration_hash,
            n_frames=info.n_frames,
            host_time_ns=frame.host_time_ns,
            camera_time_ns=frame.camera_time_ns,
            camera_clock=self._reader.capabilities.clock,
            camera_frame_id=frame.frame_id,
            pixel_format=info.pixel_format,
            bayer=info.bayer,
            dropped_before=captured.missed,
            truth=frame.truth,
            chunks=frame.chunks,
        )
        is_sent = self._records_raw and snapshot.truth is None
        frames = encode(snapshot) if is_sent else ()
        self._spool.keep(snapshot, missed, frames)
        return snapshot, frames

    def _accept(self, acquired: tuple[Snapshot, Frames] | SnapshotId, now_s: float) -> None:
        if isinstance(acquired, SnapshotId):
            self._in_flight.released += 1
            self._drops.add(acquired.seq, acquired.epoch, DropReason.RING_FULL)
            return
        snapshot, frames = acquired
        self._hold(snapshot, now_s, frames)
        if self._solves_kept:
            self._undecided[snapshot.id.seq] = snapshot
        else:
            self._dispatch(snapshot, now_s)

    def _dispatch(self, snapshot: Snapshot, now_s: float) -> None:
        """Queue a snapshot for the nodes."""
        for displaced in self._dispatcher.offer(snapshot):
            self._settle(Settled(displaced, DropReason.QUEUE_FULL), now_s)

    def _hold(self, snapshot: Snapshot, now_s: float, frames: Frames = ()) -> None:
        """Hold a snapshot until it is settled, and send its raw counts if they are recorded."""
        self._in_flight.hold(
            snapshot.id.seq,
            snapshot.id.epoch,
            frame_bytes(snapshot),
            raw_pending=self._records_raw,
        )
        if self._records_raw:
            frames = frames or encode(dataclasses.replace(snapshot, truth=None))
            self._link.post(snapshot, now_s, frames=frames)

    def _hold_raw(self, snapshots: Sequence[RawSnapshots], now_s: float) -> None:
        """Hold snapshots that are only recorded until they are safe, and send many in a message."""
        for group in in_groups(snapshots):
            self._in_flight.hold(
                group.id.seq,
                group.id.epoch,
                raw_bytes(group),
                raw_pending=True,
                raw_only=True,
                count=len(group.rows),
            )
            self._link.post(group, now_s)

    def _settle(self, settled: Settled, now_s: float) -> None:
        epoch = self._in_flight.settle(settled.seq)
        if epoch is not None and settled.given_up:
            self._report_without_video(settled.seq, epoch, settled.given_up, now_s)
        elif not settled.given_up:
            self._spool.confirm(settled.seq)
            self._progress_s = now_s
        if settled.masks:
            self._camera.observe(settled.masks)

    @property
    def _offered(self) -> list[str]:
        return [name for name in _OFFERED.get(self._phase, ()) if name in self._actions]

    def _changed(self, answer: Answer) -> None:
        """Report new camera settings and adopt the new frame rate."""
        self._controls.done(*answer)
        if self._info is not None and self._reader.capabilities is not None:
            self._dispatcher.period_ns = self._reader.capabilities.frame_period_ns or 0
        self._health.report_soon()

    def _publish_status(self) -> None:
        """Report the status to the sink and to the health server."""
        if self._progress_s >= self._published_s:
            self._spool.progressed()
        self._published_s = time.monotonic()
        report = self._report
        status = report.status(self._phase, self._series, self._health.url)
        self._link.connection.status = {**status, **declared(self._reader.settings, self._offered)}
        self._health.report(
            report.not_ready(self._phase, self._rig.network.results),
            {**status, **self._link.connection.clock.status()},
            report.metrics(status),
            progress=self._reader.acquired + self._in_flight.released,
            idle=not report.must_progress(self._phase),
        )


def series_info(
    name: str, rig: Rig, capabilities: CameraCapabilities, calibration: Calibration
) -> SeriesInfo:
    """Return the information about a series at its start."""
    firmware = {FIRMWARE: capabilities.firmware[:_MAX_FIRMWARE]} if capabilities.firmware else {}
    return SeriesInfo(
        series=name,
        started_ns=unix_ns(),
        rig=rig.rig.name,
        policy=Policy(rig.policy.mode),
        camera_model=capabilities.model,
        camera_serial=capabilities.serial,
        height_px=capabilities.height_px,
        width_px=capabilities.width_px,
        pixel_format=capabilities.pixel_format,
        bit_depth=capabilities.bit_depth,
        n_frames=calibration.n_frames,
        calibration_hash=calibration.hash,
        bayer=calibration.bayer or capabilities.bayer,
        frame_period_ns=capabilities.frame_period_ns,
        rig_toml=rig.to_toml(),
        versions=versions() | input_versions(rig) | firmware,
        chunks={**capabilities.chunks, FRAME_FAULT: UNIT},
        distortions=" ".join(f"{text}." for text in capabilities.distortions),
    )
