"""The reconstruct node: receives snapshots, returns video; calibration and network stay on its
device.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sci_stream.clock import unix_ns
from sci_stream.config import Rig
from sci_stream.errors import EnvironmentFault
from sci_stream.model import Reconstruction, Snapshot
from sci_stream.nodes.reconstruct.solver import Changed, Failed, Ready, Solved
from sci_stream.nodes.runtime.control_handler import ControlHandler
from sci_stream.nodes.runtime.health_reporter import HealthReporter
from sci_stream.nodes.runtime.network import NodeNetwork
from sci_stream.nodes.runtime.process import StopRequest, freeze_gc, new_instance_id, versions
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Value as ParameterValue
from sci_stream.parameters import declared
from sci_stream.transport.client_connection import PeerEvent
from sci_stream.transport.sink_client import SinkClient
from sci_stream.wire.messages import (
    CalibrationMissing,
    CalibrationRequest,
    Control,
    Done,
    Hello,
    Message,
)

if TYPE_CHECKING:
    from sci_stream.health.metrics import Value
    from sci_stream.nodes.reconstruct.solver_thread import SolverThread

log = logging.getLogger(__name__)

# Finished snapshots to recognise on redelivery; several times the credit of a node.
_MAX_RECENT = 256

Identity = tuple[str, int]
"""(series, seq)."""


class ReconstructNode:
    """Receive snapshots on credit, reconstruct them one by one, and report each done once the sink
    has accepted it.

    The calling thread serves the sockets while another one computes, so heartbeats continue during
    a long solve.
    """

    def __init__(
        self, rig: Rig, solver: SolverThread, stop: StopRequest, *, index: int = 0
    ) -> None:
        self._rig = rig
        self._stop = stop
        self._network = NodeNetwork(rig, stop)
        self._solver = solver
        self._hello = Hello(
            node=f"reconstruct-{index}",
            kind_of_node="reconstruct",
            incarnation=new_instance_id(),
            device=self._solver.device_name,
            versions=versions(),
        )
        self._health = HealthReporter(rig, "reconstruct", index)
        self._dispatch = self._network.connect("acquire", self._hello)
        self._link = SinkClient(self._network.connect("sink", self._hello))
        self._controls = ControlHandler(
            self._hello.node, self._link.connection.send, self._solver.change
        )
        self._evidence: dict[Identity, Mapping[str, ParameterValue]] = {}
        self._held: dict[Identity, int] = {}
        """The snapshots held, with the time of their receipt, ns."""
        self._awaiting_calibration: dict[str, deque[Snapshot]] = {}
        self._recently_done = deque[Identity](maxlen=_MAX_RECENT)
        self._counts = {"reconstructed": 0, "failed": 0, "budget_limited": 0, "warm": 0}
        self._fault = ""

    def run(self) -> None:
        """Run until asked to stop; finish the held snapshots first, within the drain timeout."""
        connections = (self._dispatch, self._link.connection)
        seen_s = float("-inf")
        may_return_s = min(self._rig.drain.timeout_s, 10 * self._rig.network.heartbeat_s)
        for connection in connections:
            self._network.watch(connection.socket, connection.monitor.socket)
        self._solver.start(self._network.wakeup.wake)
        leave_s: float | None = None
        try:
            # After a stop request, held snapshots are worth finishing only while the acquire node
            # is there.
            while leave_s is None or (
                self._held and self._dispatch.connected and time.monotonic() < leave_s
            ):
                self._step(now_s := self._network.wait())
                # Both may be silent for some heartbeats, as on a busy machine, and still drain.
                seen_s = now_s if any(c.connected for c in connections) else seen_s
                needed = self._stop.gentle and now_s - seen_s <= may_return_s
                if self._stop and leave_s is None and not needed:
                    # Credit 0: finish the snapshots in hand, receive no more.
                    self._dispatch.handshake(dataclasses.replace(self._hello, credit=0))
                    leave_s = time.monotonic() + self._rig.drain.timeout_s
        finally:
            # Send GOODBYE first: others should not wait for the end of a long solve.
            self._dispatch.close()
            self._link.connection.close()
            self._solver.stop()
            self._health.close()
            self._network.close()

    def _step(self, now_s: float) -> None:
        messages, events = self._dispatch.receive(now_s)
        if PeerEvent.NEW in events:
            # Another acquire process: it does not know the snapshots held here and will resend
            # them.
            # Snapshots that wait for a calibration would never get one: drop them, they will be
            # resent.
            for snapshot in itertools.chain.from_iterable(self._awaiting_calibration.values()):
                self._held.pop(_identity(snapshot), None)
            self._awaiting_calibration.clear()
        for message in messages:
            self._handle(message)
        for result in self._solver.results():
            match result:
                case Ready():
                    self._report_at_once()
                    self._ready(result)
                case Solved():
                    self._solved(result, now_s)
                case Failed():
                    self._failed(result)
                case Changed():
                    self._controls.done(result.request, result.parameters, result.error)
                    self._report_at_once()
        if (error := self._solver.stalled()) is not None:
            raise error
        news = self._link.poll(now_s)
        self._handle_from_sink(news.messages)
        for accepted in news.safe:
            if accepted.of == "reconstruction":
                self._finish((accepted.series, accepted.seq))
        if self._health.due(now_s):
            self._publish_status()
        self._link.send_due()

    def _handle_from_sink(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if isinstance(message, Control):
                self._controls.take(message, self._solver.parameters())
            else:
                log.warning("unexpected message from the sink: %s", type(message).__name__)

    def _report_at_once(self) -> None:
        """Announce changed solver settings before the first result that used them."""
        self._publish_status()
        self._link.connection.send_heartbeat()

    def _publish_status(self) -> None:
        """Report the status to the other nodes and to the health server."""
        status = {
            **self._counts,
            "in_hand": len(self._held),
            "resent": self._link.outbox.resent,
            "health": self._health.url,
            **self._solver.status(),
        }
        self._dispatch.status = status
        self._link.connection.status = {**status, **declared(self._solver.parameters())}
        wire_errors = self._dispatch.wire_errors + self._link.connection.wire_errors
        # Count iterations, not snapshots: one solve may take longer than the watchdog timeout.
        progress = (
            int(status.get("denoised", 0)) + self._counts["reconstructed"] + self._counts["failed"]
        )
        self._health.report(
            self._not_ready(),
            {**status, **self._link.connection.clock.status()},
            reconstruct_metrics(status, wire_errors),
            progress=progress,
            idle=self._solver.prepares
            or len(self._link.outbox) >= len(self._held),  # it waits for the sink
        )

    def _not_ready(self) -> str:
        """Return why this node cannot reconstruct, ``""`` if it can."""
        network = self._rig.network
        if not self._dispatch.connected:
            return f"no answer from the acquire node at {network.dispatch}"
        if not self._link.connection.connected:
            return f"no answer from the sink at {network.results}"
        return self._fault if self._hello.credit else "preparing the engine with the calibration"

    def _handle(self, message: Message) -> None:
        match message:
            case Calibration():
                self._solver.adopt(message)
            case Snapshot():
                self._begin(message)
            case CalibrationMissing():
                for snapshot in self._awaiting_calibration.pop(message.hash, ()):
                    self._report_failed(_identity(snapshot), "calibration_missing")
            case _:
                log.warning("unexpected message from the acquire node: %s", type(message).__name__)

    def _begin(self, snapshot: Snapshot) -> None:
        identity = _identity(snapshot)
        # The sink has it, but the acquire node's copy of that news was lost: repeat it instead of
        # solving again.
        if identity in self._recently_done:
            self._return(identity, ok=True)
            return
        if identity in self._held:
            return
        self._held[identity] = unix_ns()
        if self._solver.has(snapshot.calibration_hash):
            self._solver.submit(snapshot)
            return
        waiting = self._awaiting_calibration.setdefault(snapshot.calibration_hash, deque())
        if not waiting:
            self._dispatch.send(CalibrationRequest(hash=snapshot.calibration_hash))
        waiting.append(snapshot)

    def _ready(self, ready: Ready) -> None:
        for snapshot in self._awaiting_calibration.pop(ready.calibration_hash, ()):
            self._solver.submit(snapshot)
        # before the first snapshot: on a busy machine it takes longer than three heartbeats
        freeze_gc()
        self._hello = dataclasses.replace(
            self._hello, credit=self._rig.reconstruct.credit, device=ready.device
        )
        if not self._stop:
            self._dispatch.handshake(self._hello)
            self._link.connection.handshake(self._hello)

    def _solved(self, solved: Solved, now_s: float) -> None:
        snapshot = solved.snapshot
        identity = _identity(snapshot)
        received_ns = self._held.get(identity)
        # Presumed lost meanwhile and given to another node: the sink would only count a duplicate.
        if received_ns is None:
            return
        self._fault = ""
        self._counts["reconstructed"] += 1
        self._counts["budget_limited"] += solved.report.budget_limited
        self._counts["warm"] += solved.report.start == "warm"
        self._health.observe("solve_seconds", solved.report.solve_ns / 1e9)
        self._health.observe("iterations", solved.report.iterations)
        reconstruction = Reconstruction.of(
            snapshot,
            video=solved.video,
            report=solved.report,
            times=dataclasses.replace(
                solved.times,
                acquired_ns=snapshot.host_time_ns,
                dispatched_ns=snapshot.dispatched_ns,
                received_ns=received_ns,
            ),
            node=self._hello.node,
            device=self._hello.device,
            picture=solved.picture,
            chunks={**snapshot.chunks, **solved.figures},
        )
        self._evidence[identity] = solved.evidence
        try:
            self._link.post(reconstruction, now_s)
        except (
            ValueError
        ) as error:  # a figure that is no number: of this snapshot, and of each node that solves it
            self._failed(Failed(snapshot, error))

    def _failed(self, failed: Failed) -> None:
        self._counts["failed"] += 1
        if failed.snapshot is None:
            # Without an engine this node cannot work: end with the reason.
            raise failed.error
        series, seq = _identity(failed.snapshot)
        log.error("snapshot %d: %s", seq, failed.error, extra={"series": series, "seq": seq})
        if isinstance(failed.error, EnvironmentFault):
            self._fault = str(failed.error)  # a device failure affects the next snapshots too
        self._report_failed((series, seq), str(failed.error))

    def _report_failed(self, identity: Identity, reason: str) -> None:
        self._held.pop(identity, None)
        self._return(identity, ok=False, reason=reason[:200])

    def _finish(self, identity: Identity) -> None:
        self._held.pop(identity, None)
        self._recently_done.append(identity)
        self._return(identity, ok=True)

    def _return(self, identity: Identity, *, ok: bool, reason: str = "") -> None:
        """Return a snapshot to the acquire node."""
        evidence = self._evidence.pop(identity, {})
        self._dispatch.send(
            Done(series=identity[0], seq=identity[1], ok=ok, reason=reason, masks=evidence)
        )


def _identity(snapshot: Snapshot) -> Identity:
    return snapshot.id.series, snapshot.id.seq


def reconstruct_metrics(
    status: Mapping[str, int | float | str], wire_errors: Counter[str]
) -> dict[str, Value]:
    """Return a reconstruct node's figures from its status report."""
    figures = {name: value for name, value in status.items() if not isinstance(value, str)}
    memory = {
        name.removeprefix("memory_"): value
        for name, value in figures.items()
        if name.startswith("memory_")
    }
    return {
        **{
            name: figures[name]
            for name in ("reconstructed", "failed", "budget_limited", "in_hand", "resent")
        },
        "starts": {"warm": figures["warm"], "cold": figures["reconstructed"] - figures["warm"]},
        "solver_busy_seconds": figures.get("busy_s", 0.0),
        "device_utilisation": figures.get("utilisation", 0.0),
        "out_of_memory": figures.get("out_of_memory", 0),
        "wire_errors": dict(wire_errors),
        **({"device_memory_bytes": memory} if memory else {}),
    }
