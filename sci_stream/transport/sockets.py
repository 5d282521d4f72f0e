"""Sockets with the options this project relies on, and a way to wake a poll loop from another thread."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import re
import socket as socketlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import zmq
from zmq.utils.monitor import recv_monitor_message

from sci_stream.config.fields import tcp_address
from sci_stream.errors import TransportError
from sci_stream.transport.liveness import Line
from sci_stream.transport.local_sockets import shortcut

ZERO_COPY_FROM_BYTES = 65536
"""Frames from this size up are handed to ZeroMQ without a copy; below, the bookkeeping costs more than the copy."""

_LOCAL_PEER = re.compile(r"localhost:\d+:\d+:(\d+)")
"""What ZeroMQ says of who is at the other end of a local socket: user, group and process."""
_LINGER_MS = 1000
_CONNECT_MS = 3000
_HANDSHAKE_MS = 10_000
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
    """Create a socket whose queues, message size and patience are all bounded.

    ``send_queue`` and ``receive_queue`` are messages per peer. That a peer has vanished without a word is found by the
    nodes' own heartbeats, ``heartbeat_s`` apart, and in the end, to free what its connection holds, by the kernel's
    probes. Not by ZeroMQ's heartbeats: libzmq aborts the process when one falls due on a connection that broke while
    its reading was held up (docs/decisions/0028).
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
    # What is sent and not acknowledged keeps the probes away, and the kernel's own patience is a quarter of an hour.
    socket.setsockopt(zmq.TCP_MAXRT, max(_DEAD_AFTER_MS, int(heartbeat_s * 10_000)))
    # Each unanswered attempt waits twice as long as the one before: a cable that is back would go unnoticed for long.
    socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    if kind == zmq.DEALER:
        # Do not queue for a peer that is not there: what is not sent stays in our own outbox, where it is counted.
        socket.setsockopt(zmq.IMMEDIATE, 1)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    return socket


def bind(socket: zmq.Socket[bytes], endpoint: str, what: str) -> None:
    """Bind, or raise `TransportError` saying which address of the rig is the trouble."""
    try:
        socket.bind(_numeric(endpoint))
    except socketlib.gaierror as error:
        socket.close(linger=0)
        raise TransportError(
            f"The name in the {what} address {endpoint} is not known here",
            got=error.strerror,
            hint="Is a name server reached? [network] bind_host says where to listen whatever the name.",
        ) from None
    except zmq.ZMQError as error:
        socket.close(linger=0)
        if error.errno == zmq.EADDRINUSE:
            raise TransportError(
                f"The {what} address {endpoint} is in use",
                hint=f"Stop the program that uses it, or set another one under [network] {what} in the rig.",
            ) from None
        raise TransportError(
            f"The {what} address {endpoint} cannot be bound",
            got=error.strerror,
            hint=f"[network] {what} must be an address of this machine, such as tcp://127.0.0.1:5701.",
        ) from None


def _numeric(endpoint: str) -> str:
    """Return an address with its host as a number: ZeroMQ connects to names, and binds none."""
    address = tcp_address(endpoint)
    if address is None:
        return endpoint
    (_, _, _, _, (host, *_)), *_ = socketlib.getaddrinfo(address[0], address[1], type=socketlib.SOCK_STREAM)
    return f"tcp://[{host}]:{address[1]}" if ":" in str(host) else f"tcp://{host}:{address[1]}"


def bind_near(socket: zmq.Socket[bytes], endpoint: str, what: str) -> None:
    """Bind an address of the rig, and the local socket for the nodes of the same supervisor.

    Raises
    ------
    TransportError
        As `bind`.
    """
    bind(socket, endpoint, what)
    near = shortcut(endpoint)
    if near is not None:
        bind(socket, near, what)


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[bytes | memoryview]) -> None:
    """Send one multipart message without blocking; large frames without a copy. Raises `zmq.Again`."""
    last = len(frames) - 1
    for index, frame in enumerate(frames):
        more = zmq.SNDMORE if index < last else 0
        large = memoryview(frame).nbytes >= ZERO_COPY_FROM_BYTES
        socket.send(frame, flags=zmq.NOBLOCK | more, copy=not large)


def send_to(socket: zmq.Socket[bytes], identity: bytes, frames: Sequence[bytes | memoryview]) -> bool:
    """Send to one peer of a ROUTER; return False if it is gone or does not read."""
    try:
        send_frames(socket, [identity, *frames])
    except zmq.Again:
        return False
    except zmq.ZMQError as error:
        if error.errno != zmq.EHOSTUNREACH:
            raise
        return False
    return True


def readable(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message can be received now."""
    return bool(cast(int, socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


ENOUGH_BYTES_A_TURN = 1 << 20
"""Once so much was taken in a turn of a loop, it is time to pass it on: a node that first takes all that waits has
those behind it wait for the whole of it, and then has nothing to do itself until they are through."""


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """One multipart message as it came, as views on ZeroMQ's own buffers, and who is at the other end."""

    frames: list[memoryview]
    _origin: zmq.Frame

    @property
    def process(self) -> int:
        """The process at the other end of a local socket, as the kernel knows it; 0 for any other."""
        try:
            told = _LOCAL_PEER.fullmatch(str(self._origin.get("Peer-Address")))
        except zmq.ZMQError:
            return 0
        return int(told[1]) if told is not None else 0


def receive(socket: zmq.Socket[bytes]) -> ReceivedMessage | None:
    """Receive one multipart message, or None if there is none now."""
    # Asking costs a microsecond; finding out by an exception costs twenty.
    if not readable(socket):
        return None
    try:
        frames = socket.recv_multipart(flags=zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
    return ReceivedMessage([frame.buffer for frame in frames], frames[0])


def receive_frames(socket: zmq.Socket[bytes]) -> list[memoryview] | None:
    """Receive one multipart message from whoever it comes, or None if there is none now."""
    parcel = receive(socket)
    return None if parcel is None else parcel.frames


class Seen(NamedTuple):
    """What became of a socket's connections since last asked."""

    connected: bool
    disconnected: bool
    refused: str
    """Why a connection was refused in its handshake, ``""`` if none was."""


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
    """Reports connections of a socket that come, go, and are refused."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._watched = socket
        seen = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self.socket: zmq.Socket[bytes] = socket.get_monitor_socket(functools.reduce(operator.or_, _REFUSALS, seen))
        self.refused = 0
        self.open = False
        """Whether the latest connection stands, for a socket that has one at a time."""
        self.line = Line()
        """That connection, for a socket that has one at a time."""

    def drain(self) -> Seen:
        """Return what happened since last asked."""
        connected = disconnected = False
        refused = ""
        while readable(self.socket):
            told = recv_monitor_message(self.socket)
            event = zmq.Event(told["event"])
            if event == zmq.EVENT_CONNECTED:
                self.line.opened(int(told["value"]))
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                connected = self.open = True
            elif event == zmq.EVENT_DISCONNECTED:
                disconnected = True
                self.gone()
            elif event in _REFUSALS:
                refused = _REFUSALS[event]
                self.refused += 1
                self.gone()
        return Seen(connected, disconnected, refused)

    def gone(self) -> None:
        """Note that there is no connection (any more)."""
        self.open = False
        self.line.closed()

    def close(self) -> None:
        """Stop watching."""
        self._watched.disable_monitor()
        self.socket.close(linger=0)


class Wakeup:
    """Wakes a poll loop from any thread: register `fd` with the poller, call `wake`, then `clear` in the loop."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)

    def wake(self) -> None:
        """Make the loop's poll return. A full pipe is as good as one more byte in it; a closed one needs no waking."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._write_fd, b"\0")

    def clear(self) -> None:
        """Take note of having woken."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.fd, 4096)) == 4096:
                pass

    def close(self) -> None:
        """Free the descriptors."""
        for fd in (self.fd, self._write_fd):
            with contextlib.suppress(OSError):
                os.close(fd)
