"""The acquire node: camera in, snapshots out to the reconstruct nodes, every one accounted for to the sink."""

from __future__ import annotations

import dataclasses
import enum
import logging
import time
from typing import Literal

import zmq

from sci_stream.config import Rig
from sci_stream.delivery.dispatch import DispatchQueue
from sci_stream.errors import EnvironmentFault
from sci_stream.model import Policy, SeriesInfo, Snapshot, SnapshotId
from sci_stream.nodes.camera_pump import CameraPump, Captured
from sci_stream.nodes.fitting import fit_calibration
from sci_stream.nodes.holdings import Holdings, Ring, frame_bytes
from sci_stream.nodes.runner import StopRequest, new_incarnation, versions
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Camera
from sci_stream.transport.dealer import PeerEvent
from sci_stream.transport.dispatcher import Dispatcher, Settled
from sci_stream.transport.sink_link import SinkLink
from sci_stream.transport.sockets import Wakeup
from sci_stream.wire import CalibrationRequest, Dropped, Hello, Limits, SeriesEnd, encode

log = logging.getLogger(__name__)

_POLL_MS = 20


class Phase(enum.StrEnum):
    """Where the node is in its life."""

    OPENING = "opening"
    WAITING = "waiting"
    RUNNING = "running"
    DRAINING = "draining"
    ENDING = "ending"
    ENDED = "ended"


class AcquireNode:
    """One camera, one series.

    Parameters
    ----------
    rig
        The rig's configuration.
    camera
        Not yet open; used from a thread of its own from here on.
    calibration
        Masks loaded from the rig's file; None to use those the camera knows.
    snapshots, duration_s
        End after so many snapshots or seconds; 0 for no limit.
    """

    def __init__(
        self,
        rig: Rig,
        camera: Camera,
        calibration: Calibration | None,
        stop: StopRequest,
        *,
        snapshots: int = 0,
        duration_s: float = 0.0,
    ) -> None:
        self._rig = rig
        self._stop = stop
        self._calibration = calibration
        self._duration_s = duration_s
        self._policy = Policy(rig.policy.mode)
        self._wakeup = Wakeup()
        stop.call_on_stop(self._wakeup.wake)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        limits = Limits(max_payload_bytes=rig.network.max_message_mib << 20)
        incarnation = new_incarnation()
        self._series = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-" + incarnation
        self._dispatcher = Dispatcher(
            self._context,
            rig.network.dispatch,
            DispatchQueue(rig.policy.queue_snapshots, rig.reconstruct.block_snapshots),
            node="acquire",
            incarnation=incarnation,
            heartbeat_s=rig.network.heartbeat_s,
            limits=limits,
        )
        self._link = SinkLink(
            self._context,
            rig.network.results,
            Hello(node="acquire", kind_of_node="acquire", incarnation=incarnation, versions=versions()),
            heartbeat_s=rig.network.heartbeat_s,
            limits=limits,
        )
        self._ring = Ring(rig.policy.ring_mib << 20)
        self._pump = CameraPump(
            camera,
            self._ring,
            self._wakeup.wake,
            most=snapshots,
            read_timeout_s=rig.camera.read_timeout_s,
            backoff_s=(rig.camera.reconnect_first_s, rig.camera.reconnect_max_s),
        )
        self._holdings = Holdings(self._ring)
        self._phase = Phase.OPENING
        self._info: SeriesInfo | None = None
        self._since_s = self._started_s = time.monotonic()
        self._progress_s = self._since_s
        self._deadline_s = float("inf")
        self.running_s = 0.0
        """How long the camera ran and its snapshots were under way, once they are all settled."""

    @property
    def under_way(self) -> int:
        """Snapshots that the camera has delivered and that are not yet safe or given up. For any thread."""
        return self._pump.acquired - self._holdings.released

    # --- the loop

    def run(self) -> None:
        """Run until the series is over and the sink has confirmed its end.

        Raises
        ------
        CameraError, CalibrationError
            If there is no usable camera or calibration.
        EnvironmentFault
            If the sink did not confirm in time.
        """
        poller = zmq.Poller()
        poller.register(self._dispatcher.socket, zmq.POLLIN)
        poller.register(self._dispatcher.monitor.socket, zmq.POLLIN)
        poller.register(self._link.dealer.socket, zmq.POLLIN)
        poller.register(self._link.dealer.monitor.socket, zmq.POLLIN)
        poller.register(self._wakeup.fd, zmq.POLLIN)
        self._pump.open()
        try:
            while self._phase is not Phase.ENDED:
                poller.poll(_POLL_MS)
                self._wakeup.clear()
                self._turn(time.monotonic())
            if self._pump.failure is not None:
                raise self._pump.failure
        finally:
            self._pump.stop()
            self._pump.join(5.0)
            self._link.close()
            self._dispatcher.close()
            self._context.destroy(linger=500)
            self._wakeup.close()

    def _turn(self, now_s: float) -> None:
        news = self._link.turn(now_s)
        if PeerEvent.NEW in news.events:
            self._introduce_series(now_s)
        for message in news.messages:
            if isinstance(message, CalibrationRequest) and self._calibration is not None:
                self._link.dealer.send(encode(self._calibration))
        for kind, _, seq in news.safe:
            if kind == "snapshot":
                self._holdings.raw_is_safe(seq)
        if news.safe:
            self._progress_s = now_s
        for settled in self._dispatcher.turn(now_s):
            self._settle(settled, now_s)
        for captured in self._pump.take():
            self._take_in(captured, now_s)
        for settled in self._dispatcher.turn(now_s):
            self._settle(settled, now_s)
        self._advance(now_s)
        self._link.dealer.status = self._status()
        self._link.pump()

    def _advance(self, now_s: float) -> None:
        match self._phase:
            case Phase.OPENING:
                if self._stop:
                    self._pump.stop()
                if self._pump.finished:
                    self._enter(Phase.ENDED, now_s)
                elif self._pump.opened is not None:
                    self._begin_series()
                    self._enter(Phase.WAITING, now_s)
                    self._introduce_series(now_s)
            case Phase.WAITING:
                self._wait_for_nodes(now_s)
            case Phase.RUNNING:
                if self._stop or now_s >= self._deadline_s:
                    self._pump.stop()
                if self._pump.finished:
                    self._enter(Phase.DRAINING, now_s)
            case Phase.DRAINING:
                self._drain(now_s)
            case Phase.ENDING if not len(self._link.outbox):
                self._enter(Phase.ENDED, now_s)
            case Phase.ENDING if now_s - max(self._since_s, self._progress_s) > self._rig.drain.timeout_s:
                raise EnvironmentFault(
                    "The sink did not confirm the end of the series",
                    expected=f"a confirmation within {self._rig.drain.timeout_s:g} s",
                    got=f"{len(self._link.outbox)} messages unconfirmed",
                    hint=f"Is the sink running at {self._rig.network.results}?",
                )

    def _enter(self, phase: Phase, now_s: float) -> None:
        log.info("%s", phase)
        self._phase = phase
        self._since_s = now_s

    # --- the series

    def _begin_series(self) -> None:
        opened = self._pump.opened
        assert opened is not None
        capabilities = opened.capabilities
        calibration = fit_calibration(capabilities, opened.calibration, self._calibration, self._rig.calibration.file)
        self._calibration = calibration
        self._dispatcher.period_ns = capabilities.frame_period_ns or 0
        self._dispatcher.announce(calibration)
        self._info = SeriesInfo(
            series=self._series,
            started_ns=time.time_ns(),
            rig=self._rig.rig.name,
            policy=self._policy,
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
            rig_toml=self._rig.to_toml(),
            versions=versions(),
        )

    def _introduce_series(self, now_s: float) -> None:
        """Tell a sink that knows nothing of it (yet) about the series; the calibration goes first."""
        if self._info is None or self._calibration is None or not self._link.dealer.connected:
            return
        self._link.dealer.send(encode(self._calibration))
        self._link.outbox.confirm(("series_start", self._series, 0), now_s)
        self._link.post_first(self._info, now_s)

    def _wait_for_nodes(self, now_s: float) -> None:
        """Start the camera once there is someone to take its frames, so that the first ones are not lost."""
        waited_s = now_s - self._since_s
        series_known = ("series_start", self._series, 0) not in self._link.outbox and self._link.dealer.connected
        nodes_there = self._dispatcher.ready_nodes >= self._rig.reconstruct.nodes
        patient = waited_s < self._rig.policy.wait_for_nodes_s
        if self._stop or self._pump.finished:
            self._pump.stop()
            # A series that the sink never heard of needs no end.
            self._enter(Phase.DRAINING if series_known else Phase.ENDED, now_s)
        elif series_known and (nodes_there or not patient):
            if not nodes_there:
                log.warning(
                    "%d of %d reconstruct nodes are ready after %.0f s: starting",
                    self._dispatcher.ready_nodes,
                    self._rig.reconstruct.nodes,
                    waited_s,
                )
            self._pump.start()
            self._started_s = now_s
            self._deadline_s = now_s + self._duration_s if self._duration_s else float("inf")
            self._enter(Phase.RUNNING, now_s)

    def _drain(self, now_s: float) -> None:
        if not self._stop and self._dispatcher.ready_nodes:
            # A series that ended by itself is finished, however long a solve takes, while someone works on it.
            self._since_s = now_s
        late = now_s - self._since_s > self._rig.drain.timeout_s
        waiting = self._holdings.delivering
        if waiting and not late:
            return
        self.running_s = now_s - self._started_s
        for entry in self._dispatcher.clear() if waiting else []:
            self._settle(Settled(entry, "drain_timeout"), now_s)
        if self._info is not None:
            end = SeriesEnd(
                series=self._series,
                acquired=self._pump.acquired,
                reason=str(self._pump.failure or ("stopped" if self._stop else "finished")),
                camera_dropped=self._pump.counts["missed"],
            )
            self._link.post(end, now_s)
        self._enter(Phase.ENDING, now_s)

    # --- snapshots

    def _take_in(self, captured: Captured, now_s: float) -> None:
        seq, frame = captured.seq, captured.frame
        if frame is None:
            self._holdings.pass_over()
            self._link.post(Dropped(self._series, captured.epoch, seq, "ring_full"), now_s)
            return
        assert self._info is not None
        assert self._pump.opened is not None
        capabilities = self._pump.opened.capabilities
        snapshot = Snapshot(
            id=SnapshotId(self._series, captured.epoch, seq),
            counts=frame.counts,
            calibration_hash=self._info.calibration_hash,
            n_frames=self._info.n_frames,
            host_time_ns=frame.host_time_ns,
            camera_time_ns=frame.camera_time_ns,
            camera_clock=capabilities.clock,
            camera_frame_id=frame.frame_id,
            pixel_format=capabilities.pixel_format,
            bayer=self._info.bayer,
            dropped_before=captured.missed,
            truth=frame.truth,
        )
        record = self._policy is Policy.RECORD
        self._holdings.hold(seq, captured.epoch, frame_bytes(frame), raw_pending=record)
        if record:
            self._link.post(dataclasses.replace(snapshot, truth=None), now_s)
        for displaced in self._dispatcher.offer(snapshot):
            self._settle(Settled(displaced, "queue_full"), now_s)

    def _settle(self, settled: Settled, now_s: float) -> None:
        epoch = self._holdings.settle(settled.seq)
        if epoch is not None and settled.given_up:
            outcome: Literal["raw_only", "dropped"] = "raw_only" if self._policy is Policy.RECORD else "dropped"
            self._link.post(Dropped(self._series, epoch, settled.seq, settled.given_up, outcome), now_s)

    def _status(self) -> dict[str, int | float | str]:
        return {
            "phase": self._phase.value,
            "series": self._series,
            "acquired": self._pump.acquired,
            "held": len(self._holdings),
            "ring_mib": round(self._ring.used_bytes / 2**20, 1),
            "unsafe": len(self._link.outbox),
            "resent": self._link.outbox.resent,
            "reconstruct_nodes": self._dispatcher.ready_nodes,
            "redelivered": self._dispatcher.redelivered,
            "epoch": self._pump.epoch,
            "wire_errors": self._dispatcher.wire_errors.total() + self._link.dealer.wire_errors.total(),
            **{f"camera_{name}": count for name, count in self._pump.counts.items()},
        }
