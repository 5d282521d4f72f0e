"""When silence is a loss: rules by the clock, shared by both ends of a connection."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

MISSED_HEARTBEATS = 3
"""A peer silent for this many heartbeats is presumed lost."""


class PauseDetector:
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


_COUNTERS = struct.Struct("=Q16xI4xI")
_COUNTERS_AT = 120
"""``tcpi_bytes_acked``, ``tcpi_notsent_bytes`` and ``tcpi_data_segs_in`` in Linux's ``struct tcp_info`` (4.6)."""


class Moved(NamedTuple):
    """What went over a connection since it was made, and what waits for it."""

    acknowledged: int
    """Bytes sent, and known to have arrived at the peer's host."""
    unsent: int
    """Bytes that the kernel has not been able to send yet: the link, or the peer, is what limits."""
    arrived: int
    """Packets with data in them, also those that come out of order because one before them was lost."""


class Line:
    """Looks at a connection of ZeroMQ's by its descriptor; never reads from it, nor changes anything of it.

    A message of megabytes takes a slow link seconds, in which nothing is heard from the peer: whether data move tells
    a slow link from a dead one. Where the kernel does not say (local sockets, other systems) nothing is known.
    """

    def __init__(self) -> None:
        self._fd = -1

    def opened(self, fd: int) -> None:
        """Look at this descriptor from now on."""
        self._fd = fd

    def closed(self) -> None:
        """Look no more: the descriptor may soon be another's."""
        self._fd = -1

    def moved(self) -> Moved | None:
        """Return what went over the connection so far; None where that is not known."""
        if self._fd < 0 or not hasattr(socket, "TCP_INFO"):
            return None
        try:
            looked_at = socket.socket(fileno=self._fd)
        except OSError:
            return None
        try:
            info = looked_at.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTERS_AT + _COUNTERS.size)
        except OSError:
            return None
        finally:
            looked_at.detach()
        known = len(info) >= _COUNTERS_AT + _COUNTERS.size
        return Moved(*_COUNTERS.unpack_from(info, _COUNTERS_AT)) if known else None
