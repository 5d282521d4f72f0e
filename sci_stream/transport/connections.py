"""The connections of a socket: opened, closed, refused, limited; their traffic; pauses of this
process itself.

ZeroMQ accepts every connection, before any key is checked, and has no limit of its own: each costs
a file descriptor, and a process without descriptors can neither begin the next segment of a
recording nor serve its page.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import socket as socketlib
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import zmq

from sci_stream.security.curve import Context, Socket, SocketConfig
from sci_stream.transport.sockets import bind, local_endpoint, make_socket, readable

with contextlib.suppress(ImportError):  # Windows has none, and runs no servers
    import resource

log = logging.getLogger(__name__)

MISSED_HEARTBEATS = 3
"""A peer silent for this many heartbeats is presumed lost."""

# Connections whose peers were not accepted yet; each costs a descriptor.
_MAX_UNKNOWN = 64
# Longer than ZeroMQ's own limit for a handshake, 10 s: these have completed it and sent no HELLO
# since.
_PATIENCE_S = 15.0
# Far more than a rig has nodes and viewers.
_MAX_CONNECTIONS = 512
# Descriptors for everything else in the process: recording, page, health server, libraries.
_RESERVED_DESCRIPTORS = 256

# ``tcpi_bytes_acked``, ``tcpi_notsent_bytes`` and ``tcpi_data_segs_in`` in Linux's ``struct
# tcp_info`` (4.6).
_COUNTERS = struct.Struct("=Q16xI4xI")
_COUNTERS_AT = 120
# The first frame of a monitor's message: event and its value, see zmq_socket_monitor(3).
_MONITOR_EVENT = struct.Struct("=Hi")

_ANOTHER_KEY = (
    "its key is not the one that [security] names here, or one side encrypts and the other does "
    "not: acquire_key and "
    "sink_key must be what sci-stream keys show prints on those hosts, and the rig the same on both"
)
_NO_PEER = (
    "another program answers there, or it encrypts and this node does not: [security] must be the "
    "same on both hosts"
)
_REFUSALS = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: (
        "this host's key is not allowed there: on that host, sci-stream keys allow with the key "
        "that sci-stream keys "
        "show prints here"
    ),
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: _ANOTHER_KEY,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: _ANOTHER_KEY,
}


class PauseDetector:
    """Detect pauses of this process itself, so that its peers do not time out because of them.

    A process that was stopped or preempted finds its peers silent, although their messages wait in
    its own queues. An interval between two calls that is longer than ``heartbeat_s`` is a pause.
    """

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._called_s: float | None = None

    def pause_s(self, now_s: float) -> float:
        """Return the length of the pause before this call, s; 0 if there was none.

        Call once per loop iteration.
        """
        pause_s = 0.0 if self._called_s is None else now_s - self._called_s
        self._called_s = now_s
        return pause_s if pause_s > self._heartbeat_s else 0.0


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socketlib.socket]:
    """Use a descriptor of ZeroMQ's as a Python socket, without closing it.

    Raises OSError if it is no open socket.
    """
    borrowed = socketlib.socket(fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()


class TcpProgress(NamedTuple):
    """Traffic of a connection since it was opened, and its backlog."""

    acknowledged: int
    """Bytes acknowledged by the peer's host."""
    unsent: int
    """Bytes that the kernel has not sent yet: the link or the peer is the bottleneck."""
    arrived: int
    """Received data packets, including those out of order."""


def tcp_progress(descriptor: int) -> TcpProgress | None:
    """Return the traffic of a TCP connection so far, without touching it; None if it is unknown.

    A message of megabytes takes seconds on a slow link, during which the peer is silent: moving
    data distinguish a slow link from a dead one. It is unknown without kernel support (local
    sockets, other systems), and for −1.
    """
    if descriptor < 0 or not hasattr(socketlib, "TCP_INFO"):
        return None
    try:
        with _borrowed(descriptor) as connected:
            info = connected.getsockopt(
                socketlib.IPPROTO_TCP, socketlib.TCP_INFO, _COUNTERS_AT + _COUNTERS.size
            )
    except OSError:
        return None
    known = len(info) >= _COUNTERS_AT + _COUNTERS.size
    return TcpProgress(*_COUNTERS.unpack_from(info, _COUNTERS_AT)) if known else None


@dataclass
class _Connection:
    peer: object
    """Address of the peer: a descriptor with another one has been reused."""
    since_s: float | None = None
    known: bool = False
    """Whether the peer was accepted as a node or subscriber."""


def max_connections() -> int:
    """Return how many connections one socket may have, so that the process keeps descriptors for
    its other work.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(_MAX_UNKNOWN, min(_MAX_CONNECTIONS, (descriptors - _RESERVED_DESCRIPTORS) // 4))


class ConnectionLimit:
    """Close connections over the limit: unknown peers go first, the oldest first.

    The socket's monitor reports connections, then its receiver reports accepted peers. Connections
    are shut down; ZeroMQ notices that like a disconnect of the peer. Their descriptors are never
    closed here.
    """

    def __init__(self, maximum: int | None = None) -> None:
        self._maximum = max_connections() if maximum is None else maximum
        self._connections: dict[int, _Connection] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def accepted(self, descriptor: int) -> None:
        """Record a new connection."""
        with contextlib.suppress(OSError):  # it is closed again already
            with _borrowed(descriptor) as connected:
                peer = connected.getpeername()
            known = self._connections.get(descriptor)
            if known is None or known.peer != peer:
                self._connections.pop(descriptor, None)
                self._connections[descriptor] = _Connection(peer)

    def disconnected(self, descriptor: int) -> None:
        """Record the end of a connection."""
        self._connections.pop(descriptor, None)

    def know(self, descriptor: int) -> None:
        """Record that a peer was accepted, perhaps before the monitor's report of
        its connection.
        """
        if descriptor >= 0 and descriptor not in self._connections:
            self.accepted(descriptor)
        if descriptor in self._connections:
            self._connections[descriptor].known = True

    def enforce(self, now_s: float, *, drained: bool = True) -> int:
        """Close the connections over the limits; return their number.

        Call in each turn of the loop.

        ``drained``: all messages have been received. Otherwise the first one of a connection may
        still be waiting, and none is closed for its silence.
        """
        unknown = [fd for fd, connection in self._connections.items() if not connection.known]
        # Of known peers the latest: the nodes of a running rig stay.
        closable = unknown + [
            fd for fd in reversed(self._connections) if self._connections[fd].known
        ]
        over = set(unknown[: max(0, len(unknown) - _MAX_UNKNOWN)])
        for descriptor in unknown:
            connection = self._connections[descriptor]
            connection.since_s = now_s if connection.since_s is None else connection.since_s
            if drained and now_s - connection.since_s > _PATIENCE_S:
                over.add(descriptor)
        closable = [fd for fd in closable if fd not in over]
        over.update(closable[: max(0, len(closable) - self._maximum)])
        for descriptor in over:
            self._close(descriptor, self._connections.pop(descriptor))
        return len(over)

    @staticmethod
    def _close(descriptor: int, connection: _Connection) -> None:
        with contextlib.suppress(OSError), _borrowed(descriptor) as connected:
            if connected.getpeername() == connection.peer:
                connected.shutdown(socketlib.SHUT_RDWR)


class MonitorEvents(NamedTuple):
    """Connection events of a socket since the last call."""

    connected: bool
    disconnected: bool
    refused: list[str]
    """Why connections were refused in the handshake."""


class Monitor:
    """Monitor the connections of a socket: opened, closed and refused."""

    def __init__(self, socket: Socket, limit: ConnectionLimit | None = None) -> None:
        self._watched = socket
        self.limit = limit
        """Limit on the connections of a bound socket."""
        seen = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        if limit is not None:
            seen |= zmq.EVENT_ACCEPTED | zmq.EVENT_CLOSED
        self.socket: Socket = socket.get_monitor_socket(
            functools.reduce(operator.or_, _REFUSALS, seen)
        )
        self.open = False
        """Whether the latest connection is open, for a socket with a single connection."""
        self._descriptor = -1

    def drain(self) -> MonitorEvents:
        """Return the events since the last call."""
        connected = disconnected = False
        refused: list[str] = []
        while readable(self.socket):
            # Not zmq.utils.monitor: it loads asyncio, 40 ms of the start of every process.
            code, value = _MONITOR_EVENT.unpack(self.socket.recv_multipart()[0])
            event = zmq.Event(code)
            if event == zmq.EVENT_CONNECTED:
                self._descriptor = value
            elif event == zmq.EVENT_ACCEPTED and self.limit is not None:
                self.limit.accepted(value)
            elif event == zmq.EVENT_CLOSED and self.limit is not None:
                self.limit.disconnected(value)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                connected = self.open = True
            # The order of the events matters: a reconnection within one call must end as open.
            elif event == zmq.EVENT_DISCONNECTED:
                disconnected = True
                self.mark_closed()
                if self.limit is not None:
                    self.limit.disconnected(value)
            elif event in _REFUSALS:
                has_keys = self._watched.getsockopt(zmq.MECHANISM) == zmq.CURVE
                refused.append(_REFUSALS[event] if has_keys else _NO_PEER)
                self.mark_closed()
        return MonitorEvents(connected, disconnected, refused)

    def progress(self) -> TcpProgress | None:
        """Return the traffic of the latest connection, for a socket with a single connection; None
        if unknown.
        """
        return tcp_progress(self._descriptor)

    def mark_closed(self) -> None:
        """Record that there is no connection."""
        self.open = False
        self._descriptor = -1

    def close(self) -> None:
        """Stop monitoring."""
        self._watched.disable_monitor()
        self.socket.close(linger=0)


class ServerSocket:
    """A bound socket whose connections are limited; messages and connections that it refuses are
    counted.

    ``configure`` prepares the socket for encryption; the other parameters are those of
    `make_socket`. A subclass names its ``kind`` of socket, its ``address`` in ``[network]`` of the
    rig, and its queues. A ROUTER is also bound to the local socket of its address.
    """

    kind: ClassVar[int]
    address: ClassVar[str]
    send_queue: ClassVar[int]
    receive_queue: ClassVar[int]

    def __init__(
        self,
        context: Context,
        endpoint: str,
        configure: SocketConfig,
        *,
        max_message_bytes: int,
        heartbeat_s: float,
    ) -> None:
        self.wire_errors = Counter[str]()
        queues = {"send_queue": self.send_queue, "receive_queue": self.receive_queue}
        self.socket = make_socket(
            context,
            self.kind,
            max_message_bytes=max_message_bytes,
            heartbeat_s=heartbeat_s,
            **queues,
        )
        configure(self.socket)
        bind(self.socket, endpoint, self.address)
        # The TCP address stays bound: nodes of other supervisors on this host use it.
        if self.kind == zmq.ROUTER and (near := local_endpoint(endpoint)) is not None:
            bind(self.socket, near, self.address)
        self.connections = ConnectionLimit()
        self.monitor = Monitor(self.socket, self.connections)
        self._logged_from = 1
        self.disconnected = False
        """Whether a connection has ended since this was last set to False."""

    def drain_monitor(self) -> None:
        """Take note of connections that ended; count and log those refused in the handshake."""
        _, disconnected, refused = self.monitor.drain()
        self.disconnected |= disconnected
        if not refused:
            return
        self.wire_errors["handshake"] += len(refused)
        if self.wire_errors["handshake"] >= self._logged_from:
            self._logged_from = (
                10 * self.wire_errors["handshake"]
            )  # a node with a wrong key tries ten times a second
            log.warning(
                "%d connections to the %s address refused in the handshake: the other side "
                "expects another key here, "
                "has no allowed key, does not encrypt, or is not a node",
                self.wire_errors["handshake"],
                self.address,
            )

    def limit_connections(self, now_s: float, *, drained: bool) -> None:
        """Close connections over the limit, count and log them; ``drained`` as for
        `ConnectionLimit.enforce`.
        """
        if closed := self.connections.enforce(now_s, drained=drained):
            self.wire_errors["connections"] += closed
            log.warning(
                "%d connections to the %s address closed: too many, or no HELLO in time",
                closed,
                self.address,
            )

    def close(self) -> None:
        """Close the socket and its monitor."""
        self.monitor.close()
        self.socket.close()
