"""A node's connection to another: handshake, heartbeats and liveness."""

from __future__ import annotations

import contextlib
import enum
import logging
from collections import Counter, deque
from collections.abc import Sequence

import zmq

from sci_stream.clock import unix_ns
from sci_stream.delivery.clock_offset import ClockOffset
from sci_stream.errors import WireError
from sci_stream.security.curve import Context, SocketConfig, unencrypted
from sci_stream.transport.connections import MISSED_HEARTBEATS, Monitor, PauseDetector, TcpProgress
from sci_stream.transport.sockets import (
    BYTES_PER_CALL,
    ReceivedMessage,
    connect,
    make_socket,
    preferred_endpoint,
    receive,
    send_frames,
)
from sci_stream.wire.codec import decode, encode, payload_bytes
from sci_stream.wire.header import MAX_PAYLOAD_BYTES
from sci_stream.wire.messages import (
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    Ping,
    Pong,
    Refused,
    Welcome,
)

log = logging.getLogger(__name__)

UNKNOWN_PEER = Refused(
    reason="unknown_peer", text="unknown peer: send HELLO first (session expired or restart)"
)
"""Answer to a heartbeat from an unknown node."""

# Messages queued in each direction.
_QUEUE = 8
# Bounds one loop iteration: heartbeats are due in between even if the peer floods this node.
_MESSAGES_PER_CALL = 32
# A key may be added to the list while the node runs: then it should not wait for the full backoff.
_RETRY_REFUSED_S = 1.0
# A connection without received data is reopened after this; the interval grows with each attempt.
_REOPEN_FIRST_S = 1.0
_REOPEN_MAX_S = 30.0


def identity_of(hello: Hello) -> bytes:
    """Return the socket identity of a node."""
    return f"{hello.node}@{hello.incarnation}".encode()


class PeerEvent(enum.Enum):
    """Liveness events of the peer."""

    NEW = "new"
    """Welcomed by a peer for the first time, or by a restarted one, which has no state."""
    BACK = "back"
    """The connection was interrupted and restored: messages in flight may be lost."""


class ClientConnection:
    """A DEALER socket that sends HELLO until it is welcomed, sends heartbeats and detects the loss
    of its peer.

    ``node`` and ``incarnation`` of ``hello``, which `handshake` replaces, form the socket identity.
    The peer is lost after `MISSED_HEARTBEATS` intervals of ``heartbeat_s`` without a message.
    ``configure`` encrypts the socket.
    """

    def __init__(
        self,
        context: Context,
        endpoint: str,
        hello: Hello,
        *,
        heartbeat_s: float,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        configure: SocketConfig = unencrypted,
    ) -> None:
        self.endpoint = endpoint
        self.hello = hello
        self.status: dict[str, int | float | str] = {}
        """Status sent with heartbeats, to which the clock offset is added."""
        self.wire_errors = Counter[str]()
        self.clock = ClockOffset()
        self._heartbeat_s = heartbeat_s
        self._max_payload_bytes = max_payload_bytes
        self.socket = make_socket(
            context,
            zmq.DEALER,
            max_message_bytes=max_payload_bytes,
            heartbeat_s=heartbeat_s,
            send_queue=_QUEUE,
            receive_queue=_QUEUE,
        )
        # Name and incarnation: a restarted node must not receive messages of its predecessor.
        self.socket.setsockopt(zmq.IDENTITY, identity_of(hello))
        self.monitor = Monitor(self.socket)
        configure(self.socket)
        connect(self.socket, preferred_endpoint(endpoint))
        self._peer: str | None = None
        self._heard_s = 0.0
        self._sent_s = float("-inf")
        self._interrupted = False
        self._retry_refused_s = float("inf")
        self._refusal = ""
        self._unsent = deque[Message]()
        self._pauses = PauseDetector(heartbeat_s)
        self._opened_s = 0.0
        self._reopen_after_s = self._first_reopen_after_s = max(
            _REOPEN_FIRST_S, MISSED_HEARTBEATS * heartbeat_s
        )
        self._tcp_progress = TcpProgress(0, 0, 0)
        self.delivering_s = float("-inf")
        """Monotonic time at which queued bytes last arrived at the peer's host."""
        self.reopened = 0
        """Number of reconnects because no data arrived."""

    @property
    def connected(self) -> bool:
        """Whether the peer has welcomed this node and is not presumed lost."""
        return self._peer is not None and not self._interrupted

    def handshake(self, hello: Hello) -> None:
        """Send HELLO again, for example with another credit."""
        self.hello = hello
        self.send(hello)

    def send(self, message: Message) -> None:
        """Send a small message, in order; queue it if the socket is full."""
        self._unsent.append(message)
        self._flush_unsent()

    def _flush_unsent(self) -> None:
        while self._unsent and self.try_send(encode(self._unsent[0])):
            self._unsent.popleft()

    def try_send(self, frames: Sequence[bytes | memoryview]) -> bool:
        """Send a message unless the socket is full; return whether it was sent."""
        try:
            send_frames(self.socket, frames)
        except zmq.Again:
            return False
        return True

    def receive(self, now_s: float) -> tuple[list[Message], list[PeerEvent]]:
        """Receive pending data: messages for the node, and liveness events of the peer.

        Send due messages.

        Call it every few tens of milliseconds.
        """
        messages: list[Message] = []
        events: list[PeerEvent] = []
        pause_s = self._pauses.pause_s(now_s)
        # While this process was stopped the peer's messages waited in its own queue: that is not
        # the peer's silence.
        self._heard_s = min(now_s, self._heard_s + pause_s)
        self._opened_s = min(now_s, self._opened_s + pause_s)
        connected, disconnected, refused = self.monitor.drain()
        if refused:
            self._retry_refused_s = min(self._retry_refused_s, now_s + _RETRY_REFUSED_S)
            if refused[-1] != self._refusal:  # once: it is refused again several times a second
                log.error("cannot connect to %s: %s", self.endpoint, refused[-1])
            self._refusal = refused[-1]
        # Order matters: a reconnection within one call ends as connected, but counts as
        # interrupted.
        if disconnected:
            self._interrupted = True
        if connected:
            self._opened_s = now_s
            self._tcp_progress = TcpProgress(0, 0, 0)
            self._refusal = ""
            self.try_send(encode(self.hello))
        self._flush_unsent()
        taken_bytes = 0
        for _ in range(_MESSAGES_PER_CALL):
            incoming = receive(self.socket) if taken_bytes < BYTES_PER_CALL else None
            if incoming is None:
                break
            self._heard_s = now_s
            self._reopen_after_s = self._first_reopen_after_s
            message = self._read(incoming)
            if message is None:
                continue
            taken_bytes += payload_bytes(message)
            # Every message proves that the peer lives, but only some change its state.
            if (event := self._peer_event(message)) is not None:
                events.append(event)
            if not isinstance(message, (Welcome, Heartbeat, Refused)):
                messages.append(message)
        if self._heard_s == now_s:
            self._note_tcp_progress(now_s)  # so that these bytes do not count as activity later
        self._send_due(now_s)
        return messages, events

    def _read(self, incoming: ReceivedMessage) -> Message | None:
        """Decode a received message; None if it is refused, which is counted,
        or already handled.
        """
        try:
            message = decode(incoming.frames, self._max_payload_bytes)
        except WireError as error:
            self.wire_errors[error.reason] += 1
            log.warning("message from %s refused: %s", self.endpoint, error)
            return None
        if isinstance(message, Pong):
            first = self.clock.offset_ns is None
            self.clock.add(message.sent_ns, message.received_ns, message.answered_ns, unix_ns())
            if first:
                self.send_heartbeat()  # from now on the peer knows the offset of this clock
            return None
        return message

    def _peer_event(self, message: Message) -> PeerEvent | None:
        # The peer has restarted or given this node up: both are solved by a new handshake.
        if message == UNKNOWN_PEER:
            self._interrupted = True
            self.try_send(encode(self.hello))
            return None
        if isinstance(message, Refused):
            log.error("%s refuses this node: %s", self.endpoint, message.text)
            return None
        if isinstance(message, Welcome):
            known = self._peer
            self._peer = message.incarnation
            interrupted = self._interrupted
            self._interrupted = False
            # A new incarnation has no state of ours: the node must introduce its series and resend.
            if known != message.incarnation:
                # Messages for the previous process mean nothing to this one, except the handshake.
                self._unsent = deque(queued for queued in self._unsent if isinstance(queued, Hello))
                self.clock = ClockOffset()
                self.try_send(encode(Ping(sent_ns=unix_ns())))
                return PeerEvent.NEW
            return PeerEvent.BACK if interrupted else None
        return None

    def _send_due(self, now_s: float) -> None:
        """Send due HELLOs and heartbeats, and detect silence."""
        if now_s >= self._retry_refused_s:
            # ZeroMQ never retries a connection whose key was refused, but the key may be allowed by
            # now.
            self._retry_refused_s = float("inf")
            self._reopen()
        beat_due = now_s - self._sent_s >= self._heartbeat_s
        if beat_due:
            self._note_tcp_progress(now_s)
        self._interrupted |= now_s - self._heard_s > MISSED_HEARTBEATS * self._heartbeat_s
        if self.monitor.open and now_s - max(self._heard_s, self._opened_s) > self._reopen_after_s:
            # The network was cut or an address has changed: this connection would never notice.
            log.warning("no data from %s: reconnecting", self.endpoint)
            self._reopen_after_s = min(
                2 * self._reopen_after_s, max(_REOPEN_MAX_S, self._first_reopen_after_s)
            )
            self.reopened += 1
            self._reopen()
        if beat_due:
            self._sent_s = now_s
            if self.connected:
                self.try_send(encode(Ping(sent_ns=unix_ns())))
                self.send_heartbeat()
            else:
                self.try_send(encode(self.hello))

    def send_heartbeat(self) -> None:
        """Send a heartbeat with the status and the clock offset."""
        self.try_send(
            encode(Heartbeat(node=self.hello.node, status={**self.status, **self.clock.status()}))
        )

    def _note_tcp_progress(self, now_s: float) -> None:
        """Count moving bytes as activity: a long message on a slow link takes longer than the
        heartbeat timeout.
        """
        progress = self.monitor.progress()
        if progress is None:
            return
        if progress.arrived > self._tcp_progress.arrived:
            self._heard_s = max(self._heard_s, now_s)
        if progress.acknowledged > self._tcp_progress.acknowledged and progress.unsent:
            self.delivering_s = now_s
        self._tcp_progress = progress

    def _reopen(self) -> None:
        self._interrupted = True
        with contextlib.suppress(zmq.ZMQError):
            self.socket.disconnect(preferred_endpoint(self.endpoint))
        self.monitor.mark_closed()
        connect(self.socket, preferred_endpoint(self.endpoint), self.reopened)

    def close(self) -> None:
        """Send GOODBYE, so that the peer need not wait for the timeout."""
        self.try_send(encode(Goodbye(node=self.hello.node)))
        self.monitor.close()
        self.socket.close()
