"""Health state of a node: written by its loop, read by the threads of the health server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from sci_stream.health.metrics import NodeMetrics, Value
from sci_stream.model import Json, JsonObject

ALIVE_WITHIN_S = 5.0
"""A loop without an iteration for this long hangs; normally it runs tens of times per second."""


class Health:
    """State of one node for `/healthz`, `/readyz`, `/status` and `/metrics`; ``clock`` returns
    monotonic seconds.
    """

    def __init__(self, metrics: NodeMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.metrics = metrics
        self._clock = clock
        self._alive_s = clock()
        self._not_ready = "starting"
        self._status: Mapping[str, Json] = {}

    def mark_alive(self) -> None:
        """Record that the node's loop is alive."""
        self._alive_s = self._clock()

    def report(
        self, not_ready: str, status: Mapping[str, Json], metrics: Mapping[str, Value]
    ) -> None:
        """Publish why the node is not ready, ``""`` if it is,
        its complete status and its metrics.
        """
        self._not_ready = not_ready
        self._status = status
        self.metrics.report({"ready": float(not not_ready), **metrics})

    @property
    def hangs_for_s(self) -> float:
        """Seconds since the last loop iteration, 0 if within limits."""
        silent_s = self._clock() - self._alive_s
        return silent_s if silent_s > ALIVE_WITHIN_S else 0.0

    @property
    def not_ready(self) -> str:
        """Why the node is not ready now, ``""`` if it is."""
        if self.hangs_for_s:
            return f"event loop blocked for {self.hangs_for_s:.1f} s"
        return self._not_ready

    @property
    def status(self) -> JsonObject:
        """The node's status."""
        return {**self._status, "ready": not self.not_ready, "not_ready": self.not_ready}
