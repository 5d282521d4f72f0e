"""Status of the acquire node: readiness, liveness and metrics."""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING

from sci_stream.model import JsonObject
from sci_stream.nodes.acquire.camera_reader import CameraReader
from sci_stream.nodes.acquire.crash_recovery import CrashRecovery
from sci_stream.nodes.acquire.in_flight import InFlightSnapshots, MemoryBudget
from sci_stream.transport.dispatcher import Dispatcher
from sci_stream.transport.sink_client import SinkClient

if TYPE_CHECKING:
    from sci_stream.health.metrics import Value

# With longer periods, silence does not tell a slow camera from one that has stopped.
_SLOW_CAMERA_NS = 10 * 10**9


class AcquirePhase(enum.StrEnum):
    """Phases of the node."""

    OPENING = "opening"
    WAITING = "waiting"
    RUNNING = "running"
    DRAINING = "draining"
    ENDING = "ending"
    ENDED = "ended"


class AcquireReport:
    """Derive the status of an acquire node from its parts."""

    def __init__(
        self,
        reader: CameraReader,
        dispatcher: Dispatcher,
        link: SinkClient,
        recovery: CrashRecovery,
        *,
        budget: MemoryBudget,
        in_flight: InFlightSnapshots,
    ) -> None:
        self._reader = reader
        self._dispatcher = dispatcher
        self._link = link
        self._recovery = recovery
        self._budget = budget
        self._in_flight = in_flight

    @property
    def wire_errors(self) -> Counter[str]:
        """Refused messages by reason."""
        return self._dispatcher.wire_errors + self._link.connection.wire_errors

    def must_progress(self, phase: AcquirePhase) -> bool:
        """Return whether progress is due: frames from a free-running camera or, when draining, results."""
        if phase is AcquirePhase.RUNNING:
            period_ns = self._dispatcher.period_ns
            # A triggered camera may deliver nothing for any time, a slow one rarely.
            return 0 < period_ns < _SLOW_CAMERA_NS and not self._reader.lost
        return phase is AcquirePhase.DRAINING and self._dispatcher.ready_nodes > 0

    def not_ready(self, phase: AcquirePhase, sink: str) -> str:
        """Return why no snapshots are delivered, ``""`` if they are; ``sink`` is the sink's address."""
        if phase is AcquirePhase.OPENING:
            return "opening the camera"
        if self._reader.lost:
            return f"camera lost: {self._reader.lost}"
        if not self._link.connection.connected:
            return f"no answer from the sink at {sink}"
        if not self._dispatcher.ready_nodes:
            return "no reconstruct node is ready"
        return "" if phase in {AcquirePhase.WAITING, AcquirePhase.RUNNING} else f"the series is over: {phase}"

    def status(self, phase: AcquirePhase, series: str, health_url: str) -> dict[str, int | float | str]:
        """Return every metric of the node, for the live page and for the node's own health server."""
        return {
            "phase": phase.value,
            "series": series,
            "acquired": self._reader.acquired,
            "held": len(self._in_flight),
            **self._recovery.status(),
            "ring_mib": round(self._budget.used_bytes / 2**20, 1),
            "unsafe": len(self._link.outbox),
            "resent": self._link.outbox.resent,
            "reconstruct_nodes": self._dispatcher.ready_nodes,
            "redelivered": self._dispatcher.redelivered,
            "epoch": self._reader.epoch,
            "health": health_url,
            "wire_errors": self.wire_errors.total(),
            **{f"chunk_{name}": value for name, value in self._reader.chunks.items()},
            **{f"camera_{name}": count for name, count in self._reader.counts.items()},
            **{f"driver_{name}": count for name, count in self._reader.driver_counts.items()},
        }

    def metrics(self, status: JsonObject) -> dict[str, Value]:
        """Return the metrics of the node, of which most are in its `status`; see `sci_stream.health.metrics`."""
        return {
            "acquired": status["acquired"],
            "camera_events": {
                **{"missed": 0.0, "incomplete": 0.0},
                **_counts(status, "camera_"),
                **_counts(status, "driver_"),
            },
            "camera_epoch": status["epoch"],
            "held": status["held"],
            "ring_bytes": status["ring_mib"] * 2**20,
            "unconfirmed": status["unsafe"],
            "resent": status["resent"],
            "reconstruct_nodes": status["reconstruct_nodes"],
            "redelivered": status["redelivered"],
            "wire_errors": dict(self.wire_errors),
            **self._dispatcher.queue_figures,
        }


def _counts(status: JsonObject, prefix: str) -> dict[str, float]:
    return {key.removeprefix(prefix): float(value) for key, value in status.items() if key.startswith(prefix)}
