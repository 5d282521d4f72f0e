"""When silence is a loss: rules by the clock, shared by both ends of a connection."""

from __future__ import annotations

MISSED_HEARTBEATS = 3
"""A peer silent for this many heartbeats is presumed lost."""


class Standstill:
    """Notices when this process itself did not run, so that it does not blame its peers for what it did not hear.

    Who was stopped for a while, or was kept from a core, finds its peers silent, although what they said meanwhile
    lies in its own queues.

    Parameters
    ----------
    heartbeat_s
        A longer pause between two turns is a standstill.
    """

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._turned_s: float | None = None

    def lasted_s(self, now_s: float) -> float:
        """Return for how long this process stood still before this turn, s; 0 if it did not. Call once a turn."""
        pause_s = 0.0 if self._turned_s is None else now_s - self._turned_s
        self._turned_s = now_s
        return pause_s if pause_s > self._heartbeat_s else 0.0
