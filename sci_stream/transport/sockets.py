"""Socket creation with the options this project relies on, addresses, receiving, and waking a poll
loop.

A server node binds its TCP address and, if its supervisor provides a folder, a local socket in that
folder; nodes of the same supervisor connect there. Measured with 2 MiB snapshots: two thirds of the
processor time of loopback TCP, which is what limits a rig whose cores also reconstruct
(docs/decisions/connections.md).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket as socketlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import zmq

from sci_stream.config.fields import LONGEST_IPC_PATH, is_loopback, network_location, tcp_address
from sci_stream.errors import TransportError
from sci_stream.security.curve import Context, Socket

ZERO_COPY_FROM_BYTES = 1 << 18
"""Frames of this size or larger are sent without a copy. For smaller ones the bookkeeping costs
more than the copy: 0.03 ms of the processor for 128 KiB, 100 times a second."""

# A goodbye must leave before the process ends, but an unreachable peer must not keep it from
# ending.
_LINGER_MS = 1000
# The system's own timeout is minutes: a host that is switched on later must be found soon.
_CONNECT_MS = 3000
# Generous: a handshake with encryption can take seconds on a loaded host.
_HANDSHAKE_MS = 10_000
# A dead idle connection is freed after 5 + 2·5 = 15 s.
_PROBE_AFTER_S = 5
_PROBE_EVERY_S = 2
_PROBES = 5
_DEAD_AFTER_MS = 30_000
# Numbers: operators on flags take Python code.
_READABLE = int(zmq.POLLIN)
_SEND_LAST = int(zmq.NOBLOCK)
_SEND_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


FOLDER_VARIABLE = "SCI_STREAM_LOCAL_SOCKETS"
"""Set by a supervisor for its nodes: a folder accessible only to its user."""


def make_socket(
    context: Context,
    kind: int,
    *,
    max_message_bytes: int,
    heartbeat_s: float,
    send_queue: int,
    receive_queue: int,
) -> Socket:
    """Create a socket with bounded queues, message size and timeouts.

    ``send_queue`` and ``receive_queue`` are messages per peer. The nodes' own heartbeats,
    ``heartbeat_s`` apart, detect a vanished peer; the kernel's keepalive probes finally free its
    connection. ZeroMQ's heartbeats are not used: libzmq aborts the process if one falls due on a
    connection that broke while reading was paused (docs/decisions/connections.md).
    """
    socket: Socket = context.socket(kind)
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
    # The kernel retries a connection with exponential backoff, to minutes; a restored network must
    # be noticed soon.
    socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    if kind == zmq.DEALER:
        # Do not queue for a disconnected peer: unsent messages stay in our own outbox, where they
        # are counted.
        socket.setsockopt(zmq.IMMEDIATE, 1)
    if kind == zmq.ROUTER:
        # Without it a ROUTER silently discards messages to peers that it cannot reach.
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A restarted or reconnected node has the same identity, and its old connection may not be
        # closed yet.
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    return socket


def bind(socket: Socket, endpoint: str, what: str) -> None:
    """Bind to an address, of a host name to all its addresses on this machine.

    Raises `TransportError` that names the address of the rig.
    """
    try:
        _bind_all(socket, _numeric(endpoint))
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
                hint=f"Stop the program that uses it, or set another one under [network] {what} "
                "in the rig.",
            ) from None
        raise TransportError(
            f"Cannot bind the {what} address {endpoint}",
            got=error.strerror,
            hint=f"[network] {what} must be an address of this machine, such as "
            "tcp://127.0.0.1:5701.",
        ) from None


def _bind_all(socket: Socket, endpoints: Sequence[str]) -> None:
    """Bind to each address that this machine has. A peer may find the host by any of them."""
    absent = []
    for endpoint in endpoints:
        try:
            _use_ipv6(socket, endpoint)
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE:
                raise
            absent.append(error)
    if len(absent) == len(endpoints):
        raise absent[0]


def _numeric(endpoint: str) -> list[str]:
    """Return an address with each numeric host of its name: ZeroMQ cannot bind names."""
    address = tcp_address(endpoint)
    if address is None:
        return [endpoint]
    answers = socketlib.getaddrinfo(*address, type=socketlib.SOCK_STREAM)
    hosts = dict.fromkeys(str(place[0]) for *_, place in answers)
    return [f"tcp://{network_location(host, address[1])}" for host in hosts]


def _use_ipv6(socket: Socket, endpoint: str) -> None:
    socket.setsockopt(zmq.IPV6, int("[" in endpoint))


def connect(socket: Socket, endpoint: str, attempt: int = 0) -> None:
    """Begin to connect. Of a host name, every other ``attempt`` uses its IPv6 address.

    ZeroMQ resolves the name in its own thread, and uses one answer alone.
    """
    _use_ipv6(socket, endpoint)
    host, _ = tcp_address(endpoint) or ("", 0)
    if attempt % 2 and not re.fullmatch(r"[\d.]*", host):
        socket.setsockopt(zmq.IPV6, 1)
    socket.connect(endpoint)


def answering(endpoint: str) -> str:
    """Return a TCP address with the numeric host that accepts connections, of all of its name.

    Unchanged if none does.
    """
    address = tcp_address(endpoint)
    if address is None:
        return endpoint
    try:
        with socketlib.create_connection(address, _CONNECT_MS / 1000) as probe:
            return f"tcp://{network_location(probe.getpeername()[0], address[1])}"
    except OSError:
        return endpoint


def local_endpoint(endpoint: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the local socket equivalent to a TCP address, or None if there is none.

    It exists for addresses of this host, among nodes of one supervisor.
    """
    folder = environment.get(FOLDER_VARIABLE)
    address = tcp_address(endpoint)
    if not folder or address is None or not is_loopback(address[0]):
        return None
    path = Path(folder) / f"{address[1]}.sock"
    # An ended supervisor has deleted its folder: its last nodes still connect over TCP.
    usable = path.parent.is_dir() and len(os.fsencode(path)) <= LONGEST_IPC_PATH
    return f"ipc://{path}" if usable else None


def preferred_endpoint(endpoint: str) -> str:
    """Return where to connect to reach an endpoint."""
    return local_endpoint(endpoint) or endpoint


def send_frames(socket: Socket, frames: Sequence[bytes | memoryview]) -> None:
    """Send one multipart message without blocking; large frames without a copy.

    Raises `zmq.Again`.
    """
    last = len(frames) - 1
    for index, frame in enumerate(frames):
        flags = _SEND_MORE if index < last else _SEND_LAST
        # Measured with 2 MiB frames on loopback TCP: 0.5 GB/s with a copy, 1.2 GB/s without.
        large = memoryview(frame).nbytes >= ZERO_COPY_FROM_BYTES
        socket.send(frame, flags=flags, copy=not large)


def readable(socket: Socket) -> bool:
    """Return whether a message can be received now."""
    return bool(cast(int, socket.getsockopt(zmq.EVENTS)) & _READABLE)


BYTES_PER_CALL = 1 << 20
"""Bytes to receive in one loop iteration before passing them on: draining the whole backlog first
would stall the later
stages, and afterwards this one."""


@dataclass(frozen=True)
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


def receive(socket: Socket) -> ReceivedMessage | None:
    """Receive one multipart message, or None if there is none now."""
    # Polling costs 1 µs, an exception 20 µs.
    if not readable(socket):
        return None
    try:
        frames = socket.recv_multipart(flags=zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
    return ReceivedMessage([frame.buffer for frame in frames], frames[0])


class Wakeup:
    """Wake a poll loop from any thread: register `fd` with the poller, call `wake`, and `clear` in
    the loop.
    """

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)

    def wake(self) -> None:
        """Make the loop's poll return.

        A full pipe already wakes it; a closed one needs no waking.
        """
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
        self.fd = self._write_fd = -1  # a thread that still wakes it must not write to another file
