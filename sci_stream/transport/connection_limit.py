"""Limits on the connections that unknown peers keep open at a bound ZeroMQ socket.

ZeroMQ accepts every connection, before any key is checked, and has no limit of its own: each costs a file descriptor,
and a process without descriptors can neither begin the next segment of a recording nor serve its page.
"""

from __future__ import annotations

import contextlib
import enum
import resource
import socket
from dataclasses import dataclass

from sci_stream.transport.liveness import borrowed_socket

# Connections whose peers have sent nothing yet; each costs a descriptor.
_MOST_UNKNOWN = 64
# Longer than ZeroMQ's own limit for a handshake, 10 s: these have completed it and sent nothing since.
_PATIENCE_S = 15.0
# Far more than a rig has nodes and viewers.
_MOST_CONNECTIONS = 512
# Descriptors for everything else in the process: recording, page, health server, libraries.
_RESERVED_DESCRIPTORS = 256


class PeerState(enum.IntEnum):
    """What is known of the peer of a connection, in the order in which connections are closed."""

    SILENT = 0
    HEARD = 1
    """Has sent a message, of whatever kind."""
    KNOWN = 2
    """Was accepted as a node or subscriber."""


@dataclass(slots=True)
class _Connection:
    peer: object
    """Address of the peer: a descriptor with another one has been reused."""
    since_s: float | None = None
    state: PeerState = PeerState.SILENT


def most_connections() -> int:
    """Return how many connections one socket may have, so that the process keeps descriptors for its other work."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(_MOST_UNKNOWN, min(_MOST_CONNECTIONS, (descriptors - _RESERVED_DESCRIPTORS) // 4))


class ConnectionLimit:
    """Close connections over the limit: silent peers go first, then unknown ones, the oldest first.

    The socket's monitor reports connections, then its receiver reports messages. Connections are shut down; ZeroMQ
    notices that like a disconnect of the peer. Their descriptors are never closed here.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most_connections() if most is None else most
        self._connections: dict[int, _Connection] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def accepted(self, descriptor: int) -> None:
        """Record a new connection."""
        with contextlib.suppress(OSError):  # it is closed again already
            with borrowed_socket(descriptor) as found:
                peer = found.getpeername()
            known = self._connections.get(descriptor)
            if known is None or known.peer != peer:
                self._connections.pop(descriptor, None)
                self._connections[descriptor] = _Connection(peer)

    def disconnected(self, descriptor: int) -> None:
        """Record the end of a connection."""
        self._connections.pop(descriptor, None)

    def heard(self, descriptor: int, state: PeerState) -> None:
        """Record a message, which may arrive before the monitor's report of its connection."""
        if descriptor >= 0 and descriptor not in self._connections:
            self.accepted(descriptor)
        connection = self._connections.get(descriptor)
        if connection is not None:
            connection.state = max(connection.state, state)

    def enforce(self, now_s: float, *, drained: bool = True) -> int:
        """Close the connections over the limits; return their number. Call in each turn of the loop.

        ``drained``: all messages have been received. Otherwise the first one of a connection may still be waiting, and
        none is closed for its silence.
        """
        silent: list[int] = []
        for descriptor, connection in self._connections.items():
            connection.since_s = now_s if connection.since_s is None else connection.since_s
            if connection.state is PeerState.SILENT:
                silent.append(descriptor)
        waited = [fd for fd in silent if drained and now_s - (self._connections[fd].since_s or now_s) > _PATIENCE_S]
        over = set(waited) | set(silent[: max(0, len(silent) - _MOST_UNKNOWN)])
        excess = len(self._connections) - len(over) - self._most
        if excess > 0:
            others = [fd for fd in self._connections if fd not in over]
            # Of known peers the latest: the nodes of a running rig stay.
            unknown = [fd for fd in others if self._connections[fd].state is not PeerState.KNOWN]
            unknown.sort(key=lambda fd: self._connections[fd].state)
            known = [fd for fd in reversed(others) if self._connections[fd].state is PeerState.KNOWN]
            over |= set((unknown + known)[:excess])
        for descriptor in over:
            self._close(descriptor, self._connections.pop(descriptor))
        return len(over)

    @staticmethod
    def _close(descriptor: int, connection: _Connection) -> None:
        with contextlib.suppress(OSError), borrowed_socket(descriptor) as found:
            if found.getpeername() == connection.peer:
                found.shutdown(socket.SHUT_RDWR)
