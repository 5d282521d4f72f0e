"""One node's connection to another: introduces itself, keeps the connection alive, says what it hears."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import logging
from collections import Counter, deque
from collections.abc import Sequence

import zmq

from sci_stream.clock import unix_ns
from sci_stream.delivery.clock_offset import ClockOffset
from sci_stream.delivery.rate_limit import TokenBucket
from sci_stream.errors import WireError
from sci_stream.security.curve import SocketConfig, plain
from sci_stream.transport.liveness import MISSED_HEARTBEATS, Moved, PauseDetector
from sci_stream.transport.local_sockets import nearest
from sci_stream.transport.remote_memory import UNREADABLE, can_read, lend, read_parcel, show
from sci_stream.transport.sockets import (
    ENOUGH_BYTES_A_TURN,
    Monitor,
    ReceivedMessage,
    make_socket,
    receive,
    send_frames,
)
from sci_stream.wire import (
    Goodbye,
    Heartbeat,
    Hello,
    Limits,
    Message,
    Ping,
    Pong,
    Refused,
    Welcome,
    encode,
    payload_bytes,
)

log = logging.getLogger(__name__)

UNKNOWN_PEER = Refused(reason="unknown_peer", text="say hello first: you were given up, or this is another process")
"""The answer to a heartbeat from a node that is not known (any more)."""

_MESSAGES_A_TURN = 32
_COMPLAIN_EVERY_S = 10.0
_ASK_AGAIN_S = 1.0
_REOPEN_FIRST_S, _REOPEN_MOST_S = 1.0, 30.0
"""A connection over which nothing comes is given up after this; each further one for which that holds lives longer."""


def identity_of(hello: Hello) -> bytes:
    """Return the identity under which a node connects."""
    return f"{hello.node}@{hello.incarnation}".encode()


def answer(ping: Ping) -> Pong:
    """Say what this host's clock says."""
    now_ns = unix_ns()
    return Pong(sent_ns=ping.sent_ns, received_ns=now_ns, answered_ns=now_ns)


class PeerEvent(enum.Enum):
    """What happened to the peer at the other end."""

    NEW = "new"
    """It answered for the first time, or it is another process than before: it remembers nothing."""
    BACK = "back"
    """The connection was interrupted and is there again: what was on its way may be lost."""
    LOST = "lost"
    """It has been silent for too long."""


class ClientConnection:
    """A DEALER socket that says hello until it is welcomed, sends heartbeats and notices the peer's absence.

    Parameters
    ----------
    hello
        Who this node is; its ``node`` and ``incarnation`` make the socket's identity. Replace it through `introduce`.
    dress
        Prepares the socket for an encrypted connection.
    heartbeat_s
        Distance of heartbeats; the peer is lost after `MISSED_HEARTBEATS` of them without a word.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        hello: Hello,
        *,
        heartbeat_s: float,
        limits: Limits,
        queue: int = 8,
        dress: SocketConfig = plain,
    ) -> None:
        self.endpoint = endpoint
        self.hello = hello
        self.status: dict[str, int | float | str] = {}
        """How it goes, as heartbeats tell the peer; how far the clocks are apart comes on top."""
        self.wire_errors: Counter[str] = Counter()
        self.clock = ClockOffset()
        self._heartbeat_s = heartbeat_s
        self._limits = limits
        self.socket = make_socket(
            context,
            zmq.DEALER,
            max_message_bytes=limits.max_payload_bytes,
            heartbeat_s=heartbeat_s,
            send_queue=queue,
            receive_queue=queue,
        )
        self.socket.setsockopt(zmq.IDENTITY, identity_of(hello))
        self.monitor = Monitor(self.socket)
        dress(self.socket)
        self.socket.connect(nearest(endpoint))
        self._reads = self._lends = False
        self._unreadable = ""
        self._peer: str | None = None
        self._heard_s = 0.0
        self._said_s = float("-inf")
        self._interrupted = False
        self._complained_s = float("-inf")
        self._ask_again_s = float("inf")
        self._unsaid: deque[Message] = deque()
        self._lines = TokenBucket(1.0, 20)
        self._standstill = PauseDetector(heartbeat_s)
        self._opened_s = 0.0
        self._patience_s = self._first_patience_s = max(_REOPEN_FIRST_S, MISSED_HEARTBEATS * heartbeat_s)
        self._moved = Moved(0, 0, 0)
        self.delivering_s = float("-inf")
        """When more of what waits to be sent was last seen to arrive at the peer's host, monotonic."""
        self.reopened = 0
        """How often the connection was made anew because nothing came over it."""

    @property
    def connected(self) -> bool:
        """Whether the peer has welcomed this node and is not presumed lost."""
        return self._peer is not None and not self._interrupted

    def introduce(self, hello: Hello) -> None:
        """Say hello anew, for example with another credit."""
        self.hello = hello
        self.say(self._introduction)

    @property
    def _introduction(self) -> Hello:
        """The hello, with what it takes to lend if the peer is on this host."""
        near = nearest(self.endpoint) != self.endpoint
        return dataclasses.replace(self.hello, shows=show(), reads=self._reads) if near else self.hello

    def say(self, message: Message) -> None:
        """Send a small message, at the next turn if it cannot go now; in the order they were said."""
        self._unsaid.append(message)
        self._say_on()

    def _say_on(self) -> None:
        while self._unsaid and self.send(encode(self._unsaid[0])):
            self._unsaid.popleft()

    def send(self, frames: Sequence[bytes | memoryview], *, kept: bool = False) -> bool:
        """Send a message if it can go now; return whether it went.

        ``kept``: the caller keeps the frames until the peer says that it has them, so that they may be lent.
        """
        try:
            send_frames(self.socket, lend(frames) if kept and self._lends else frames)
        except zmq.Again:
            return False
        return True

    def receive(self, now_s: float) -> tuple[list[Message], list[PeerEvent]]:
        """Take in what has come: messages that are the node's business, and what became of the peer."""
        messages: list[Message] = []
        events: list[PeerEvent] = []
        stood_still_s = self._standstill.lasted_s(now_s)
        self._heard_s = min(now_s, self._heard_s + stood_still_s)
        self._opened_s = min(now_s, self._opened_s + stood_still_s)
        connected, disconnected, refused = self.monitor.drain()
        if refused:
            self._ask_again_s = min(self._ask_again_s, now_s + _ASK_AGAIN_S)
        if refused and now_s - self._complained_s > _COMPLAIN_EVERY_S:
            self._complained_s = now_s
            log.error("%s cannot be spoken to: %s", self.endpoint, refused)
        if disconnected:
            self._interrupted = True
        if connected:
            self._opened_s, self._moved = now_s, Moved(0, 0, 0)
            self._lends = False
            self.send(encode(self._introduction))
        self._say_on()
        taken_bytes = 0
        for _ in range(_MESSAGES_A_TURN):
            parcel = receive(self.socket) if taken_bytes < ENOUGH_BYTES_A_TURN else None
            if parcel is None:
                break
            self._heard_s = now_s
            self._patience_s = self._first_patience_s
            message = self._read(parcel, now_s)
            if message is None:
                continue
            taken_bytes += payload_bytes(message)
            event = self._peer_event(message)
            if event is not None:
                events.append(event)
            if not isinstance(message, (Welcome, Heartbeat, Refused)):
                messages.append(message)
        if self._heard_s == now_s:
            self._look_at_line(now_s)  # so that these bytes are not taken for news later
        return messages, events

    def _read(self, parcel: ReceivedMessage, now_s: float) -> Message | None:
        """Return the message in a parcel; None if it is refused, which is counted, or over with."""
        try:
            message = read_parcel(parcel, parcel.frames, self._limits)
        except WireError as error:
            self.wire_errors[error.reason] += 1
            if self._lines.take(now_s):
                log.warning("message from %s refused: %s", self.endpoint, error)
            if error.reason == UNREADABLE:
                # For good: else what tried out well would be lent, refused and tried out again without end.
                self._unreadable = self._peer or ""
                self._learn_to_read(can=False)
            return None
        if isinstance(message, Pong):
            first = self.clock.offset_ns is None
            self.clock.add(message.sent_ns, message.received_ns, message.answered_ns, unix_ns())
            if first:
                self.beat()  # what is sent from now on is stamped by a clock that the peer knows
            return None
        if isinstance(message, Welcome):
            self._lends = message.reads
            readable = message.incarnation != self._unreadable and can_read(parcel.process, message.shows)
            self._learn_to_read(can=readable)
        return message

    def _peer_event(self, message: Message) -> PeerEvent | None:
        if message == UNKNOWN_PEER:
            self._interrupted = True
            self.send(encode(self._introduction))
            return None
        if isinstance(message, Refused):
            if message.reason == UNREADABLE:
                self._lends = False
            if self._heard_s - self._complained_s > _COMPLAIN_EVERY_S:
                self._complained_s = self._heard_s
                log.error("%s refuses this node: %s", self.endpoint, message.text)
            return None
        if isinstance(message, Welcome):
            known, self._peer = self._peer, message.incarnation
            interrupted, self._interrupted = self._interrupted, False
            if known != message.incarnation:
                # What was said to another process means nothing to this one, except who speaks.
                self._unsaid = deque(said for said in self._unsaid if isinstance(said, Hello))
                self.clock = ClockOffset()
                self.send(encode(Ping(sent_ns=unix_ns())))
                return PeerEvent.NEW
            return PeerEvent.BACK if interrupted else None
        return None

    def _learn_to_read(self, *, can: bool) -> None:
        """Say so if what this node can read of the peer's memory has changed."""
        if can != self._reads:
            self._reads = can
            self.introduce(self.hello)

    def tick(self, now_s: float) -> list[PeerEvent]:
        """Do what is due by time: hello, heartbeat, noticing silence. Call every few tens of milliseconds."""
        events: list[PeerEvent] = []
        if now_s >= self._ask_again_s:
            # ZeroMQ gives a connection up for good once its key was refused; by now it may be allowed.
            self._ask_again_s = float("inf")
            self._reopen()
        beat_due = now_s - self._said_s >= self._heartbeat_s
        if beat_due:
            self._look_at_line(now_s)
        silent = now_s - self._heard_s > MISSED_HEARTBEATS * self._heartbeat_s
        if self._peer is not None and silent and not self._interrupted:
            self._interrupted = True
            events.append(PeerEvent.LOST)
        if self.monitor.open and now_s - max(self._heard_s, self._opened_s) > self._patience_s:
            # The cable was cut, or an address is gone: nothing on this connection would ever tell.
            log.warning("nothing comes from %s: connecting anew", self.endpoint)
            self._patience_s = min(2 * self._patience_s, max(_REOPEN_MOST_S, self._first_patience_s))
            self.reopened += 1
            self._reopen()
        if beat_due:
            self._said_s = now_s
            if self.connected:
                self.send(encode(Ping(sent_ns=unix_ns())))
                self.beat()
            else:
                self.send(encode(self._introduction))
        return events

    def beat(self) -> None:
        """Say how it goes, and how far the peer's clock is off this one's."""
        self.send(encode(Heartbeat(node=self.hello.node, status={**self.status, **self.clock.status()})))

    def _look_at_line(self, now_s: float) -> None:
        """Take bytes that move for a sign of life: a long message on a slow link takes longer than any patience."""
        moved = self.monitor.line.moved()
        if moved is None:
            return
        if moved.arrived > self._moved.arrived:
            self._heard_s = max(self._heard_s, now_s)
        if moved.acknowledged > self._moved.acknowledged and moved.unsent:
            self.delivering_s = now_s
        self._moved = moved

    def _reopen(self) -> None:
        self._interrupted = True
        with contextlib.suppress(zmq.ZMQError):
            self.socket.disconnect(nearest(self.endpoint))
        self.monitor.gone()
        self.socket.connect(nearest(self.endpoint))

    def close(self, *, say_goodbye: bool = True) -> None:
        """Leave; the peer need not wait for heartbeats that will not come."""
        if say_goodbye:
            self.send(encode(Goodbye(node=self.hello.node)))
        self.monitor.close()
        self.socket.close()
