"""Latency, throughput and losses of the last minutes, second by second."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from sci_stream.model import JsonObject, Reconstruction

KEPT_S = 300
# Sent with every status, once a second: it covers a few statuses that a viewer missed.
_TAIL = 5


@dataclass(slots=True)
class Second:
    """Statistics of one second, which began at Unix time ``at_s``."""

    at_s: int
    shown: int = 0
    slowest_ms: float | None = None
    solve_ms: float = 0.0
    dropped: int = 0
    queued: int = 0

    def as_list(self) -> list[float | int | None]:
        """Return ``[at_s, shown, slowest_ms, mean solve_ms, dropped, queued]``."""
        slowest = None if self.slowest_ms is None else round(self.slowest_ms, 1)
        solve = round(self.solve_ms / self.shown, 1) if self.shown else None
        return [self.at_s, self.shown, slowest, solve, self.dropped, self.queued]


class History:
    """Statistics of the last five minutes. Bounded; thread-safe."""

    def __init__(self) -> None:
        self._seconds: deque[Second] = deque(maxlen=KEPT_S)
        self._lock = threading.Lock()
        self._lost: int | None = None
        self._series = ""

    def add(self, reconstruction: Reconstruction, now_s: float) -> None:
        """Add a reconstruction received at Unix time ``now_s``."""
        times = reconstruction.times
        arrived_ns = times.accepted_ns or times.finished_ns
        latency_ms = (arrived_ns - times.acquired_ns) / 1e6
        with self._lock:
            second = self._second(now_s)
            second.shown += 1
            second.slowest_ms = max(second.slowest_ms or 0.0, latency_ms)
            second.solve_ms += reconstruction.report.solve_ns / 1e6

    def update(self, status: JsonObject, now_s: float) -> None:
        """Add the ledger and the queue of a status of the sink."""
        ledger = status.get("ledger")
        if not isinstance(ledger, dict) or not ledger:
            return
        lost = sum(ledger.get("dropped", {}).values()) + ledger.get("camera_missed", 0)
        with self._lock:
            second = self._second(now_s)
            second.queued = ledger.get("in_flight", 0)
            if self._lost is not None and status.get("series") == self._series:
                second.dropped += max(0, lost - self._lost)
            self._lost, self._series = lost, str(status.get("series", ""))

    def samples(self) -> list[list[float | int | None]]:
        """Return all seconds with data, oldest first."""
        with self._lock:
            return [second.as_list() for second in self._seconds]

    def tail(self) -> list[list[float | int | None]]:
        """Return the last few seconds, for a page that has the earlier ones."""
        with self._lock:
            return [second.as_list() for second in list(self._seconds)[-_TAIL:]]

    def _second(self, now_s: float) -> Second:
        at_s = int(now_s)
        if not self._seconds or self._seconds[-1].at_s < at_s:
            self._seconds.append(Second(at_s))
        return self._seconds[-1]
