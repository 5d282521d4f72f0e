"""Socket creation with the options this project relies on, receiving, monitoring, and waking a poll loop."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import socket as socketlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import zmq

from sci_stream.config.fields import network_location, tcp_address
from sci_stream.errors import TransportError
from sci_stream.transport.connection_limit import ConnectionLimit
from sci_stream.transport.liveness import TcpActivity
from sci_stream.transport.local_sockets import local_endpoint

ZERO_COPY_FROM_BYTES = 65536
"""Frames of this size or larger are sent without a copy; for smaller ones the bookkeeping costs more than the copy."""

# The first frame of a monitor's message: event and its value, see zmq_socket_monitor(3).
_MONITOR_EVENT = struct.Struct("=Hi")
# A goodbye must leave before the process ends, but an unreachable peer must not keep it from ending.
_LINGER_MS = 1000
# The system's own timeout is minutes: a host that is switched on later must be found soon.
_CONNECT_MS = 3000
# Generous: a handshake with encryption can take seconds on a loaded host.
_HANDSHAKE_MS = 10_000
# A dead idle connection is freed after 5 + 2·5 = 15 s.
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 5, 2, 5
_DEAD_AFTER_MS = 30_000


def make_socket(
    context: zmq.Context[zmq.Socket[bytes]],
    kind: int,
    *,
    max_message_bytes: int,
    heartbeat_s: float,
    send_queue: int,
    receive_queue: int,
) -> zmq.Socket[bytes]:
    """Create a socket with bounded queues, message size and timeouts.

    ``send_queue`` and ``receive_queue`` are messages per peer. The nodes' own heartbeats, ``heartbeat_s`` apart,
    detect a vanished peer; the kernel's keepalive probes finally free its connection. ZeroMQ's heartbeats are not
    used: libzmq aborts the process if one falls due on a connection that broke while reading was paused
    (docs/decisions/connections.md).
    """
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, send_queue)
    socket.setsockopt(zmq.RCVHWM, receive_queue)
    socket.setsockopt(zmq.MAXMSGSIZE, max_message_bytes)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _PROBE_AFTER_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _PROBE_EVERY_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, _PROBES)
    # Unacknowledged data suppress the probes, and the kernel's own timeout is a quarter of an hour.
    socket.setsockopt(zmq.TCP_MAXRT, max(_DEAD_AFTER_MS, int(heartbeat_s * 10_000)))
    # The kernel retries a connection with exponential backoff, to minutes; a restored network must be noticed soon.
    socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    if kind == zmq.DEALER:
        # Do not queue for a disconnected peer: unsent messages stay in our own outbox, where they are counted.
        socket.setsockopt(zmq.IMMEDIATE, 1)
    if kind == zmq.ROUTER:
        # Without it a ROUTER silently discards messages to peers that it cannot reach.
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A restarted or reconnected node has the same identity, and its old connection may not be closed yet.
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    return socket


def bind(socket: zmq.Socket[bytes], endpoint: str, what: str) -> None:
    """Bind, or raise a `TransportError` that names the address of the rig."""
    try:
        socket.bind(_numeric(endpoint))
    except socketlib.gaierror as error:
        socket.close(linger=0)
        raise TransportError(
            f"Unknown host name in the {what} address {endpoint}",
            got=error.strerror,
            hint="Check the name server, or set [network] bind_host to the address to listen on.",
        ) from None
    except zmq.ZMQError as error:
        socket.close(linger=0)
        if error.errno == zmq.EADDRINUSE:
            raise TransportError(
                f"The {what} address {endpoint} is in use",
                hint=f"Stop the program that uses it, or set another one under [network] {what} in the rig.",
            ) from None
        raise TransportError(
            f"Cannot bind the {what} address {endpoint}",
            got=error.strerror,
            hint=f"[network] {what} must be an address of this machine, such as tcp://127.0.0.1:5701.",
        ) from None


def _numeric(endpoint: str) -> str:
    """Return an address with a numeric host: ZeroMQ connects to names but cannot bind them."""
    address = tcp_address(endpoint)
    if address is None:
        return endpoint
    # The first address: resolvers sort them by preference.
    (_, _, _, _, (host, *_)), *_ = socketlib.getaddrinfo(address[0], address[1], type=socketlib.SOCK_STREAM)
    return f"tcp://{network_location(str(host), address[1])}"


def bind_tcp_and_local(socket: zmq.Socket[bytes], endpoint: str, what: str) -> None:
    """Bind an address of the rig, and the local socket for the nodes of the same supervisor.

    Raises
    ------
    TransportError
        As `bind`.
    """
    bind(socket, endpoint, what)
    near = local_endpoint(endpoint)
    # The TCP address stays bound: nodes of other supervisors on this host use it.
    if near is not None:
        bind(socket, near, what)


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[bytes | memoryview]) -> None:
    """Send one multipart message without blocking; large frames without a copy. Raises `zmq.Again`."""
    last = len(frames) - 1
    for index, frame in enumerate(frames):
        more = zmq.SNDMORE if index < last else 0
        # Measured with 2 MiB frames on loopback TCP: 0.5 GB/s with a copy, 1.2 GB/s without.
        large = memoryview(frame).nbytes >= ZERO_COPY_FROM_BYTES
        socket.send(frame, flags=zmq.NOBLOCK | more, copy=not large)


def send_to(socket: zmq.Socket[bytes], identity: bytes, frames: Sequence[bytes | memoryview]) -> bool:
    """Send to one peer of a ROUTER; return False if it is lost or its queue is full."""
    try:
        send_frames(socket, [identity, *frames])
    except zmq.Again:
        return False
    except zmq.ZMQError as error:
        # ROUTER_MANDATORY reports a lost peer this way; the caller's timeout removes it.
        if error.errno != zmq.EHOSTUNREACH:
            raise
        return False
    return True


def readable(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message can be received now."""
    return bool(cast(int, socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


BYTES_PER_CALL = 1 << 20
"""Bytes to receive in one loop iteration before passing them on: draining the whole backlog first would stall the later
stages, and afterwards this one."""


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """One multipart message as views on ZeroMQ's buffers, with the identity of its peer."""

    frames: list[memoryview]
    _origin: zmq.Frame

    @property
    def descriptor(self) -> int:
        """File descriptor of the connection that it came through; −1 if unknown."""
        try:
            return int(self._origin.get(zmq.SRCFD))
        except zmq.ZMQError:
            return -1


def receive(socket: zmq.Socket[bytes]) -> ReceivedMessage | None:
    """Receive one multipart message, or None if there is none now."""
    # Polling costs 1 µs, an exception 20 µs.
    if not readable(socket):
        return None
    try:
        frames = socket.recv_multipart(flags=zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
    return ReceivedMessage([frame.buffer for frame in frames], frames[0])


class MonitorEvents(NamedTuple):
    """Connection events of a socket since the last call."""

    connected: bool
    disconnected: bool
    refused: str
    """Why a connection was refused in the handshake, ``""`` if none was."""


_ANOTHER_KEY = (
    "its key is not the one that [security] names here, or one side encrypts and the other does not: acquire_key and "
    "sink_key must be what sci-stream keys show prints on those hosts, and the rig the same on both"
)
_REFUSALS = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: (
        "this host's key is not allowed there: on that host, sci-stream keys allow with the key that sci-stream keys "
        "show prints here"
    ),
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: _ANOTHER_KEY,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: _ANOTHER_KEY,
}


class Monitor:
    """Monitor the connections of a socket: opened, closed and refused."""

    def __init__(self, socket: zmq.Socket[bytes], limit: ConnectionLimit | None = None) -> None:
        self._watched = socket
        self.limit = limit
        """Limit on the connections of a bound socket."""
        seen = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        if limit is not None:
            seen |= zmq.EVENT_ACCEPTED | zmq.EVENT_CLOSED
        self.socket: zmq.Socket[bytes] = socket.get_monitor_socket(functools.reduce(operator.or_, _REFUSALS, seen))
        self.refused = 0
        self.open = False
        """Whether the latest connection is open, for a socket with a single connection."""
        self.tcp = TcpActivity()
        """Descriptor of that connection, for a socket with a single connection."""

    def drain(self) -> MonitorEvents:
        """Return the events since the last call."""
        connected = disconnected = False
        refused = ""
        while readable(self.socket):
            # Not zmq.utils.monitor: it loads asyncio, 40 ms of the start of every process.
            code, value = _MONITOR_EVENT.unpack(self.socket.recv_multipart()[0])
            event = zmq.Event(code)
            if event == zmq.EVENT_CONNECTED:
                self.tcp.opened(value)
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
                refused = _REFUSALS[event]
                self.refused += 1
                self.mark_closed()
        return MonitorEvents(connected, disconnected, refused)

    def take_refused(self) -> int:
        """Return the number of connections refused since the last call."""
        refused, self.refused = self.refused, 0
        return refused

    def mark_closed(self) -> None:
        """Record that there is no connection."""
        self.open = False
        self.tcp.closed()

    def close(self) -> None:
        """Stop monitoring."""
        self._watched.disable_monitor()
        self.socket.close(linger=0)


class Wakeup:
    """Wake a poll loop from any thread: register `fd` with the poller, call `wake`, and `clear` in the loop."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)

    def wake(self) -> None:
        """Make the loop's poll return. A full pipe already wakes it; a closed one needs no waking."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._write_fd, b"\0")

    def clear(self) -> None:
        """Clear the wake-up."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.fd, 4096)) == 4096:
                pass

    def close(self) -> None:
        """Free the descriptors."""
        for fd in (self.fd, self._write_fd):
            with contextlib.suppress(OSError):
                os.close(fd)
