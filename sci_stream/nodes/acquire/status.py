"""Status of the acquire node: readiness, liveness and metrics."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sci_stream.delivery.outbox import Frames
from sci_stream.model import Snapshot, SnapshotId
from sci_stream.nodes.acquire.camera_reader import CameraReader
from sci_stream.nodes.acquire.in_flight import InFlightSnapshots, MemoryBudget
from sci_stream.nodes.acquire.spool import Spool
from sci_stream.transport.dispatcher import Dispatcher
from sci_stream.transport.sink_client import SinkClient
from sci_stream.wire.messages import RawSnapshots

if TYPE_CHECKING:
    from sci_stream.health.metrics import Value

# With longer periods, silence does not tell a slow camera from one that has stopped.
_SLOW_CAMERA_NS = 10 * 10**9


class AcquirePhase(enum.StrEnum):
    """Phases of the node."""

    STANDBY = "standby"
    OPENING = "opening"
    WAITING = "waiting"
    RUNNING = "running"
    DRAINING = "draining"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(frozen=True)
class AcquireReport:
    """Derive the status of an acquire node from its parts."""

    reader: CameraReader[tuple[Snapshot, Frames] | RawSnapshots | SnapshotId]
    dispatcher: Dispatcher
    link: SinkClient
    spool: Spool
    budget: MemoryBudget
    in_flight: InFlightSnapshots

    @property
    def wire_errors(self) -> Counter[str]:
        """Refused messages by reason."""
        return self.dispatcher.wire_errors + self.link.connection.wire_errors

    def must_progress(self, phase: AcquirePhase) -> bool:
        """Return whether progress is due: frames from a free-running camera or, when draining,
        results.
        """
        if phase is AcquirePhase.RUNNING:
            period_ns = self.dispatcher.period_ns
            # A triggered camera may deliver nothing for any time, a slow one rarely.
            return 0 < period_ns < _SLOW_CAMERA_NS and not self.reader.lost
        return phase is AcquirePhase.DRAINING and self.dispatcher.ready_nodes > 0

    def not_ready(self, phase: AcquirePhase, sink: str) -> str:
        """Return why no snapshots are delivered, ``""`` if they are; ``sink`` is the sink's
        address.
        """
        if phase is AcquirePhase.STANDBY:
            return "waiting for a request to start a series, or for the camera of the last one"
        if self.reader.lost:
            return f"camera lost: {self.reader.lost}"
        if phase is AcquirePhase.OPENING:
            return "opening the camera"
        if not self.link.connection.connected:
            return f"no answer from the sink at {sink}"
        if not self.dispatcher.ready_nodes:
            return "no reconstruct node is ready"
        return (
            ""
            if phase in {AcquirePhase.WAITING, AcquirePhase.RUNNING}
            else f"the series is over: {phase}"
        )

    def status(
        self, phase: AcquirePhase, series: str, health_url: str
    ) -> dict[str, int | float | str]:
        """Return every metric of the node, for the live page and for the node's own
        health server.
        """
        return {
            "phase": phase.value,
            "series": series,
            "acquired": self.reader.acquired,
            "held": len(self.in_flight),
            **self.spool.status(),
            "ring_mib": round(self.budget.used_bytes / 2**20, 1),
            "unsafe": len(self.link.outbox),
            "resent": self.link.outbox.resent,
            "reconstruct_nodes": self.dispatcher.ready_nodes,
            "redelivered": self.dispatcher.queue.redelivered,
            "epoch": self.reader.epoch,
            "health": health_url,
            "wire_errors": self.wire_errors.total(),
            **{f"chunk_{name}": value for name, value in self.reader.chunks.items()},
            **{f"camera_{name}": count for name, count in self.reader.counts.items()},
            **{f"driver_{name}": count for name, count in self.reader.driver_counts.items()},
        }

    def metrics(self, status: Mapping[str, int | float | str]) -> dict[str, Value]:
        """Return the metrics of the node, of which most are in its `status`; see
        `sci_stream.health.metrics`.
        """
        figures = {name: value for name, value in status.items() if not isinstance(value, str)}
        return {
            **{
                name: figures[name]
                for name in ("acquired", "held", "resent", "reconstruct_nodes", "redelivered")
            },
            "camera_events": {"missed": 0, "incomplete": 0, "lost": 0}
            | self.reader.counts
            | self.reader.driver_counts,
            "camera_epoch": figures["epoch"],
            "ring_bytes": self.budget.used_bytes,
            "unconfirmed": figures["unsafe"],
            "wire_errors": dict(self.wire_errors),
            **self.dispatcher.queue_figures,
        }
