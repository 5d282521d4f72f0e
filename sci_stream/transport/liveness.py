"""Liveness of a connection: heartbeat timeout, pause detection and TCP activity."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

MISSED_HEARTBEATS = 3
"""A peer silent for this many heartbeats is presumed lost."""


class PauseDetector:
    """Detect pauses of this process itself, so that its peers do not time out because of them.

    A process that was stopped or preempted finds its peers silent, although their messages wait in its own queues.

    Parameters
    ----------
    heartbeat_s
        A longer interval between two calls is a pause.
    """

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._called_s: float | None = None

    def pause_s(self, now_s: float) -> float:
        """Return the length of the pause before this call, s; 0 if there was none. Call once per loop iteration."""
        pause_s = 0.0 if self._called_s is None else now_s - self._called_s
        self._called_s = now_s
        return pause_s if pause_s > self._heartbeat_s else 0.0


@contextlib.contextmanager
def borrowed_socket(descriptor: int) -> Iterator[socket.socket]:
    """Use a descriptor of ZeroMQ's as a Python socket, without closing it. Raises OSError if it is no open socket."""
    found = socket.socket(fileno=descriptor)
    try:
        yield found
    finally:
        found.detach()


_COUNTERS = struct.Struct("=Q16xI4xI")
# ``tcpi_bytes_acked``, ``tcpi_notsent_bytes`` and ``tcpi_data_segs_in`` in Linux's ``struct tcp_info`` (4.6).
_COUNTERS_AT = 120


class TcpProgress(NamedTuple):
    """Traffic of a connection since it was opened, and its backlog."""

    acknowledged: int
    """Bytes acknowledged by the peer's host."""
    unsent: int
    """Bytes that the kernel has not sent yet: the link or the peer is the bottleneck."""
    arrived: int
    """Received data packets, including those out of order."""


class TcpActivity:
    """Read the TCP statistics of a ZeroMQ connection through its descriptor, without touching the connection.

    A message of megabytes takes seconds on a slow link, during which the peer is silent: moving data distinguish a slow
    link from a dead one. Without kernel support (local sockets, other systems) the activity is unknown.
    """

    def __init__(self) -> None:
        self._fd = -1

    def opened(self, fd: int) -> None:
        """Watch this descriptor from now on."""
        self._fd = fd

    def closed(self) -> None:
        """Stop watching: the descriptor may be reused."""
        self._fd = -1

    def progress(self) -> TcpProgress | None:
        """Return the traffic so far; None if unknown."""
        if self._fd < 0 or not hasattr(socket, "TCP_INFO"):
            return None
        try:
            with borrowed_socket(self._fd) as found:
                info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTERS_AT + _COUNTERS.size)
        except OSError:
            return None
        known = len(info) >= _COUNTERS_AT + _COUNTERS.size
        return TcpProgress(*_COUNTERS.unpack_from(info, _COUNTERS_AT)) if known else None
