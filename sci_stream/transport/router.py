"""The server end of a connection: a ROUTER socket that checks messages, limits their rates and
detects silent nodes.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Generic, TypeVar

import zmq

from sci_stream.clock import unix_ns
from sci_stream.delivery.rate_limit import KeyedRateLimiter, TokenBucket
from sci_stream.errors import SciStreamError, WireError
from sci_stream.optics.calibration import Calibration
from sci_stream.security.curve import Context, SocketConfig, unencrypted
from sci_stream.transport.client_connection import UNKNOWN_PEER, identity_of
from sci_stream.transport.connections import MISSED_HEARTBEATS, PauseDetector, ServerSocket
from sci_stream.transport.sockets import ReceivedMessage, readable, receive, send_frames
from sci_stream.wire.codec import decode, encode, payload_bytes
from sci_stream.wire.header import MAX_PAYLOAD_BYTES
from sci_stream.wire.messages import (
    CalibrationRequest,
    ControlResult,
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

MAX_PEERS = 256
"""Maximum number of nodes: four times the reconstruct nodes that a rig can have."""

# HELLO, heartbeat, ping and similar messages of one peer; with the shortest heartbeat it sends 40
# per second.
_CONTROL_PER_S = 100.0
_CONTROL_BURST = 400
# Calibrations requested or sent by one peer: each may be as large as many snapshots.
_CALIBRATIONS_PER_S = 1.0
_CALIBRATIONS_BURST = 8
# Places of a name of the rig: a restarted node connects before its predecessor is lost.
_PLACES = 2
# New nodes of other names, all together.
_JOINS_PER_S = 20.0
_JOINS_BURST = MAX_PEERS
# A peer that sends nonsense must not have an answer sent for each message.
_REFUSALS_PER_S = 1.0
_REFUSALS_BURST = 5

_CONTROL_MESSAGES = (Hello, Heartbeat, Ping, Goodbye, ControlResult)


def answer(ping: Ping) -> Pong:
    """Answer a ping with this host's clock."""
    now_ns = unix_ns()
    return Pong(sent_ns=ping.sent_ns, received_ns=now_ns, answered_ns=now_ns)


@dataclass
class Peer:
    """A connected node: its latest HELLO, and the monotonic time of its last message."""

    hello: Hello
    heard_s: float


P = TypeVar("P", bound=Peer)


@dataclass(eq=False, repr=False)
class RouterServer(ServerSocket, Generic[P]):
    """A ROUTER socket that nodes connect to.

    Credit, the sender's queue and the camera limit snapshots, results and their acknowledgements.
    All other messages are rate-limited here: requests over the limit are dropped and counted under
    ``rate``. Places are reserved for the nodes of the rig, whose names are ``known``. ``welcome``
    answers HELLO; ``configure`` encrypts the socket.
    """

    kind: ClassVar[int] = zmq.ROUTER

    context: Context
    endpoint: str
    welcome: Welcome
    _: KW_ONLY
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    configure: SocketConfig = unencrypted
    known: Collection[str] = ()
    peers: dict[bytes, P] = field(default_factory=dict, init=False)
    """Connected nodes by identity; a subclass adds and removes them."""

    def __post_init__(self) -> None:
        heartbeat_s = self.welcome.heartbeat_s
        super().__init__(
            self.context,
            self.endpoint,
            self.configure,
            max_message_bytes=self.max_payload_bytes,
            heartbeat_s=heartbeat_s,
        )
        self._control_rate = KeyedRateLimiter[bytes](_CONTROL_PER_S, _CONTROL_BURST)
        self._calibration_rate = KeyedRateLimiter[bytes](_CALIBRATIONS_PER_S, _CALIBRATIONS_BURST)
        self._refusal_rate = KeyedRateLimiter[bytes](_REFUSALS_PER_S, _REFUSALS_BURST)
        self._join_rate = TokenBucket(_JOINS_PER_S, _JOINS_BURST)
        self._beat_s = float("-inf")
        self._pauses = PauseDetector(heartbeat_s)
        self._pause_s = 0.0

    # --- receiving

    def _receive_messages(
        self, now_s: float, max_messages: int, max_bytes: float = math.inf
    ) -> Iterator[tuple[bytes, Message]]:
        """Receive pending messages; yield (sender identity, message) for those that the node has to
        handle.

        A HELLO is yielded once it is accepted and answered.
        """
        self.drain_monitor()  # first: a descriptor may belong to another connection by now
        taken_bytes = 0
        for _ in range(max_messages):
            incoming = receive(self.socket) if taken_bytes < max_bytes else None
            if incoming is None:
                return
            identity = bytes(incoming.frames[0])
            message = None
            with self.guard(identity):
                message = self._answered(identity, incoming, now_s)
            if message is not None:
                taken_bytes += payload_bytes(message)
                yield identity, message

    def _answered(self, identity: bytes, incoming: ReceivedMessage, now_s: float) -> Message | None:
        """Decode a message and answer it if the answer is the same for all nodes; None if that
        settles it.
        """
        message = self._read(identity, incoming, now_s)
        peer = self.peers.get(identity)
        if message is not None and peer is not None:
            peer.heard_s = now_s
        match message:
            case Hello():
                return self._accept_hello(identity, incoming, message, now_s)
            case Ping():
                self.reply(identity, answer(message))
                return None
            case Heartbeat() if peer is None:
                # It considers itself known, but was presumed lost meanwhile.
                self.reply(identity, UNKNOWN_PEER)
                return None
        return message

    def _read(self, identity: bytes, incoming: ReceivedMessage, now_s: float) -> Message | None:
        """Decode a received message; None if it is refused, which is counted, or over the rate
        limit.
        """
        try:
            message = decode(incoming.frames[1:], self.max_payload_bytes)
        except WireError as error:
            self.wire_errors[error.reason] += 1
            log.warning("message to the %s address refused: %s", self.address, error)
            if error.reason == "version" and self._refusal_rate.take(identity, now_s):
                self.reply(identity, Refused(reason=error.reason, text=str(error)))
            return None
        rate = None
        if isinstance(message, _CONTROL_MESSAGES):
            rate = self._control_rate
        elif isinstance(message, Calibration | CalibrationRequest):
            rate = self._calibration_rate
        if rate is not None and not rate.take(identity, now_s):
            self.wire_errors["rate"] += 1
            kind = type(message).__name__
            log.warning(
                "rate limit exceeded at %s: %s from %s", self.address, kind, _name(identity)
            )
            return None
        return message

    def _accept_hello(
        self, identity: bytes, incoming: ReceivedMessage, hello: Hello, now_s: float
    ) -> Hello | None:
        """Welcome a node; None, counted, if it is refused."""
        if identity != identity_of(hello):
            # Under an identity of ZeroMQ's from a connection that a newer one of the same node has
            # replaced. An unknown sender may have none either: its connection will be closed.
            self.wire_errors["identity"] += not identity.startswith(b"\0")
            return None
        if identity not in self.peers and not self._has_place(hello.node, now_s):
            count = len(self.peers)
            self.wire_errors["rate"] += 1
            log.warning(
                "%s refused: %d nodes are connected, or too many joined at once", hello.node, count
            )
            if self._refusal_rate.take(identity, now_s):
                self.reply(
                    identity,
                    Refused(
                        reason="too_many", text=f"{count} nodes are connected; try again later"
                    ),
                )
            return None
        self.connections.know(incoming.descriptor)
        self.reply(identity, self.welcome)
        return hello

    def _has_place(self, node: str, now_s: float) -> bool:
        """Return whether a new node may join."""
        names = Counter(peer.hello.node for peer in self.peers.values())
        if node in self.known and names[node] < _PLACES:
            return True
        self._forget_lost(now_s)
        others = len(self.peers) - sum(min(names[known], _PLACES) for known in self.known)
        return others < MAX_PEERS - _PLACES * len(self.known) and self._join_rate.take(now_s)

    def _forget_lost(self, now_s: float) -> None:
        """Forget nodes that are lost, to make room; nothing where they are removed at once."""

    @contextmanager
    def guard(self, identity: bytes) -> Iterator[None]:
        """Keep a failure on one message from ending the node: it is counted under ``failed`` and
        logged.

        Errors of this project pass: a full disk, for instance, is no fault of the message.
        """
        try:
            yield
        except SciStreamError:
            raise
        except Exception:  # whatever a message provokes: the next one may be good
            self.wire_errors["failed"] += 1
            log.exception(
                "message from %s to the %s address failed: skipped", _name(identity), self.address
            )

    def refuse(self, identity: bytes, reason: str, text: str) -> None:
        """Count and log a message that is valid but impossible here."""
        self.wire_errors[reason] += 1
        log.warning(
            "message from %s to the %s address refused: %s", _name(identity), self.address, text
        )

    # --- connections

    def _silent_peers(self, now_s: float, *, receiving: bool = True) -> list[bytes]:
        """Count refused connections, close those over the limit, and return the peers that have
        timed out.

        Call once per loop iteration. A pause of this process, or of its ``receiving``, is no
        silence of its peers.
        """
        self.drain_monitor()
        self.limit_connections(now_s, drained=not readable(self.socket))
        if not receiving:
            return []
        self._pause_s = self._pauses.pause_s(now_s)
        for peer in self.peers.values():
            peer.heard_s = min(now_s, peer.heard_s + self._pause_s)
        timeout_s = MISSED_HEARTBEATS * self.welcome.heartbeat_s
        return [
            identity for identity, peer in self.peers.items() if now_s - peer.heard_s > timeout_s
        ]

    # --- sending

    def _send_heartbeats(self, now_s: float, *, probe: bool = False) -> list[bytes]:
        """Send heartbeats when they are due; return the peers that cannot be reached.

        ``probe``: also when a connection has closed. With ROUTER_MANDATORY, sending to a broken
        connection fails at once.
        """
        closed = self.disconnected
        self.disconnected = False
        if now_s - self._beat_s < self.welcome.heartbeat_s and not (probe and closed):
            return []
        self._beat_s = now_s
        beat = encode(Heartbeat(node=self.welcome.node, status={}))
        return [identity for identity in self.peers if not self.send(identity, beat)]

    def reply(self, identity: bytes, message: Message) -> bool:
        """Send to one peer; False if it is lost or its queue is full: it will ask again."""
        return self.send(identity, encode(message))

    def send(self, identity: bytes, frames: Sequence[bytes | memoryview]) -> bool:
        """Send an encoded message to one peer; False if it is lost or its queue is full."""
        try:
            send_frames(self.socket, [identity, *frames])
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            # ROUTER_MANDATORY reports a lost peer this way; the caller's timeout removes it.
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True


def _name(identity: bytes) -> str:
    return identity.decode("ascii", "replace") if identity.isascii() else identity.hex()
