"""Taps: publish reconstructions to any number of other programs without slowing the instrument."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TypeVar

import zmq

from sci_stream.config.fields import tcp_address
from sci_stream.errors import InputError, TransportError, WireError
from sci_stream.model import Reconstruction
from sci_stream.security.curve import Context, SocketConfig, unencrypted
from sci_stream.transport.connections import ServerSocket
from sci_stream.transport.sockets import answering, connect, make_socket, receive, send_frames
from sci_stream.wire.codec import decode, encode
from sci_stream.wire.header import MAX_PAYLOAD_BYTES
from sci_stream.wire.messages import Heartbeat, Message

M = TypeVar("M", bound=Message)

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5703"
_HEARTBEAT_S = 1.0
_KINDS = (b"reconstruction", b"heartbeat")
# Large enough for the CURVE handshake.
_LONGEST_SUBSCRIPTION = 4096
# Bounds the work per message: a client that subscribes and unsubscribes in a loop must not stall
# the sink.
_SUBSCRIPTIONS_WAITING = 1000


class TapPublisher(ServerSocket):
    """A publishing socket: a slow subscriber misses messages and delays no other.

    XPUB, not PUB, because it reports subscriptions: topics without subscribers are not encoded.
    """

    kind = zmq.XPUB
    address = "taps"
    send_queue = 4
    receive_queue = _SUBSCRIPTIONS_WAITING

    def __init__(
        self,
        context: Context,
        endpoint: str,
        configure: SocketConfig = unencrypted,
    ) -> None:
        super().__init__(
            context,
            endpoint,
            configure,
            max_message_bytes=_LONGEST_SUBSCRIPTION,
            heartbeat_s=_HEARTBEAT_S,
        )
        self._topics = set[bytes]()
        # Otherwise only the first subscription to a topic is reported, and its later subscribers
        # would seem silent.
        self.socket.setsockopt(zmq.XPUB_VERBOSE, 1)

    def publish(self, message: Reconstruction | Heartbeat) -> None:
        """Publish a message to all subscribers."""
        self._receive_subscriptions()
        kind = b"reconstruction" if isinstance(message, Reconstruction) else b"heartbeat"
        # Encoding a video takes milliseconds of the sink's main thread.
        if any(kind.startswith(topic) for topic in self._topics):
            send_frames(self.socket, encode(message))

    def _receive_subscriptions(self) -> None:
        """Read the subscription messages of XPUB: the first subscription to each topic and the last
        cancellation.
        """
        self.drain_monitor()  # first: a descriptor may belong to another connection by now
        for _ in range(_SUBSCRIPTIONS_WAITING):
            incoming = receive(self.socket)
            if incoming is None:
                break
            frames = incoming.frames
            request = bytes(frames[0])
            action = request[:1]
            topic = request[1:]
            useful = len(frames) == 1 and any(kind.startswith(topic) for kind in _KINDS)
            if action == b"\x00":
                self._topics.discard(topic)
            elif action == b"\x01" and useful:
                self._topics.add(topic)
                self.connections.know(incoming.descriptor)
            else:
                self.wire_errors["subscription"] += 1  # no message ever has this topic
        self.limit_connections(time.monotonic(), drained=True)


def _newest(
    endpoint: str,
    topic: bytes,
    wanted: type[M],
    timeout_s: float | None,
    *,
    every: bool,
    configure: SocketConfig,
) -> Iterator[M]:
    """Yield messages of one kind.

    A thread drains the socket, so that the newest is yielded, not the backlog.

    ZeroMQ's own CONFLATE cannot do this: it keeps only the last part of a multipart message.
    """
    endpoint = endpoint if "://" in endpoint else f"tcp://{endpoint}"
    if tcp_address(endpoint) is None and not endpoint.startswith("ipc://"):
        raise InputError(
            "The address of the taps is invalid",
            expected=f"such as {DEFAULT_ENDPOINT} or tcp://[::1]:5703",
            got=endpoint,
            hint="`taps` under [network] in the rig file has it.",
        )
    context = Context()
    socket = make_socket(
        context,
        zmq.SUB,
        max_message_bytes=MAX_PAYLOAD_BYTES,
        heartbeat_s=_HEARTBEAT_S,
        send_queue=4,
        receive_queue=4,
    )
    socket.setsockopt(zmq.SUBSCRIBE, topic)
    configure(socket)
    connect(socket, answering(endpoint))
    # Newest wins: a slow program sees the current scene, not one from minutes ago.
    waiting = deque[M](maxlen=None if every else 1)
    arrived = threading.Condition()
    stop = threading.Event()

    def drain() -> None:
        while not stop.is_set():
            if not socket.poll(100):
                continue
            incoming = receive(socket)
            try:
                message = None if incoming is None else decode(incoming.frames)
            except WireError:
                continue
            if isinstance(message, wanted):
                with arrived:
                    waiting.append(message)
                    arrived.notify()

    thread = threading.Thread(target=drain, name="tap", daemon=True)
    thread.start()
    try:
        while True:
            with arrived:
                if not arrived.wait_for(lambda: bool(waiting), timeout_s):
                    raise TransportError(
                        f"No data from {endpoint} within {timeout_s:g} s",
                        hint="Is the sink running, is this its [network] taps address, and does "
                        "it need keys?",
                    )
                message = waiting.popleft()
            yield message
    finally:
        stop.set()
        thread.join()
        socket.close(linger=0)
        context.term()


def subscribe(
    endpoint: str = DEFAULT_ENDPOINT,
    *,
    timeout_s: float | None = None,
    every: bool = False,
    configure: SocketConfig = unencrypted,
) -> Iterator[Reconstruction]:
    """Yield reconstructions from a running sink, in order of seq, the newest when the caller is
    slow.

    Parameters
    ----------
    endpoint
        The ``[network] taps`` address of the rig, with or without ``tcp://``.
    timeout_s
        Time out after this long without data; None waits without limit.
    every
        Keep all that arrive in the meantime, not only the newest (memory grows while the caller is
        slow).
    configure
        For an encrypted rig: ``client_config(read_key_pair(KEY_FILE), SINK_KEY)`` of
        `sci_stream.security.curve` and `sci_stream.security.keys`.

    Yields
    ------
    Reconstruction
        ``.video`` is a (B, H, W) read-only array on the 0–1 scale, a Bayer mosaic if ``.bayer`` is
        set.

    Raises
    ------
    InputError
        If ``endpoint`` is no address.
    TransportError
        If nothing arrives within ``timeout_s``.
    """
    return _newest(
        endpoint, b"reconstruction", Reconstruction, timeout_s, every=every, configure=configure
    )


def subscribe_status(
    endpoint: str, *, timeout_s: float | None = None, configure: SocketConfig = unencrypted
) -> Iterator[Heartbeat]:
    """Yield the sink's status reports, the newest when the caller is slow."""
    return _newest(endpoint, b"heartbeat", Heartbeat, timeout_s, every=False, configure=configure)
