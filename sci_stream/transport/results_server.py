"""The sink's side: one ROUTER that takes results, raw snapshots and reports from all nodes."""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeGuard

import zmq

from sci_stream.delivery.clock_offset import significant_ns
from sci_stream.security.curve import SocketConfig, plain
from sci_stream.transport.client_connection import UNKNOWN_PEER, answer
from sci_stream.transport.connection_limit import ConnectionLimit, Standing
from sci_stream.transport.liveness import MISSED_HEARTBEATS, PauseDetector
from sci_stream.transport.remote_memory import welcoming
from sci_stream.transport.router import MOST_PEERS, RouterReceiver
from sci_stream.transport.sockets import (
    ENOUGH_BYTES_A_TURN,
    Monitor,
    ReceivedMessage,
    bind_near,
    make_socket,
    readable,
    receive,
    send_to,
)
from sci_stream.wire import Goodbye, Heartbeat, Hello, Limits, Message, Ping, Welcome, encode, payload_bytes

log = logging.getLogger(__name__)

# Heartbeats and recording must get their turn while results arrive without pause.
_MESSAGES_A_TURN = 16
# 2⁶³ ns: Unix times in ns are 64-bit integers.
_MOST_MS = 2**63 / 1e6


@dataclass(slots=True)
class Peer:
    """A node that reports to the sink: identity, time of the last message, status."""

    hello: Hello
    heard_s: float
    lost: bool = False
    status: dict[str, int | float | str] = field(default_factory=dict)


def _is_ms(value: object) -> TypeGuard[float]:
    """Return whether a node's report is a difference of two Unix times in ms."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST_MS


class ResultsServer:
    """Receive from acquire and reconstruct nodes; count and survive malformed input."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        *,
        node: str,
        incarnation: str,
        heartbeat_s: float,
        limits: Limits,
        configure: SocketConfig = plain,
    ) -> None:
        self._receiver = RouterReceiver("results", limits, log)
        self.wire_errors = self._receiver.wire_errors
        self._heartbeat_s = heartbeat_s
        self._welcome = Welcome(node=node, incarnation=incarnation, heartbeat_s=heartbeat_s)
        self._said_s = float("-inf")
        self._pauses = PauseDetector(heartbeat_s)
        self.peers: dict[bytes, Peer] = {}
        self._clocks: dict[str, int] = {}
        self._replaced: deque[bytes] = deque(maxlen=MOST_PEERS)
        self.socket = make_socket(
            context,
            zmq.ROUTER,
            max_message_bytes=limits.max_payload_bytes,
            heartbeat_s=heartbeat_s,
            send_queue=1024,
            receive_queue=8,
        )
        configure(self.socket)
        bind_near(self.socket, endpoint, "results")
        self._connections = ConnectionLimit()
        self._monitor = Monitor(self.socket, self._connections)

    def receive(self, now_s: float) -> list[tuple[bytes, Message]]:
        """Receive some pending messages; return (sender identity, message) for those that concern the node."""
        out: list[tuple[bytes, Message]] = []
        taken_bytes = 0
        self._monitor.drain()  # first: a descriptor may belong to another connection by now
        for _ in range(_MESSAGES_A_TURN):
            incoming = receive(self.socket) if taken_bytes < ENOUGH_BYTES_A_TURN else None
            if incoming is None:
                break
            identity = bytes(incoming.frames[0])
            self._connections.heard(incoming.descriptor, Standing.HEARD)
            with self.guard(identity, now_s):
                message = self._receiver.read(identity, incoming, now_s, functools.partial(self.reply, identity))
                if message is not None and self._known(identity, incoming, message, now_s):
                    out.append((identity, message))
                    taken_bytes += payload_bytes(message)
        return out

    def guard(self, identity: bytes, now_s: float) -> AbstractContextManager[None]:
        """Return a context for handling one message; see `RouterReceiver.guard`."""
        return self._receiver.guard(identity, now_s)

    def refuse(self, identity: bytes, reason: str, text: str, now_s: float) -> None:
        """Count and log a message that is valid but impossible here."""
        self._receiver.refuse(identity, reason, text, now_s)

    def _known(self, identity: bytes, incoming: ReceivedMessage, message: Message, now_s: float) -> bool:
        """Update the register of peers; return whether the message is for the node."""
        peer = self.peers.get(identity)
        if peer is not None:
            peer.heard_s = now_s
            peer.lost = False
        match message:
            case Hello():
                self._greet(identity, incoming, message, now_s)
                return False
            case Heartbeat():
                if peer is None:
                    self.reply(identity, UNKNOWN_PEER)
                else:
                    peer.status = dict(message.status)
                    self._note_clock(peer)
                return False
            case Ping():
                self.reply(identity, answer(message))
                return False
            case Goodbye():
                self.peers.pop(identity, None)
                return False
        return True

    def _greet(self, identity: bytes, incoming: ReceivedMessage, hello: Hello, now_s: float) -> None:
        peer = self.peers.get(identity)
        if not self._receiver.accept_hello(
            identity,
            hello,
            now_s,
            known=peer is not None,
            peers=len(self.peers),
            answer=functools.partial(self.reply, identity),
        ):
            return
        if peer is None:
            log.info("%s node %s connected", hello.kind_of_node, hello.node)
            # A restarted process replaces its predecessor, whose identity will not return.
            same = [key for key, other in self.peers.items() if other.hello.node == hello.node]
            if same and identity in self._replaced:
                # It returned: two nodes have the same name, and each would replace the other repeatedly.
                log.error(
                    "two nodes are named %s: start each with its own --index, to tell them apart",
                    hello.node,
                )
                same = []
            for old in same:
                self._replaced.append(old)
                del self.peers[old]
            self._clocks.pop(hello.node, None)
        self.peers[identity] = Peer(hello, now_s, status=peer.status if peer else {})
        self._connections.heard(incoming.descriptor, Standing.KNOWN)
        self.reply(identity, welcoming(self._welcome, incoming, hello))

    def _note_clock(self, peer: Peer) -> None:
        offset_ms, uncertainty_ms = (peer.status.get(f"clock_{word}_ms") for word in ("offset", "uncertainty"))
        if _is_ms(offset_ms) and _is_ms(uncertainty_ms):
            self._clocks.pop(peer.hello.node, None)
            self._clocks[peer.hello.node] = significant_ns(offset_ms, uncertainty_ms)
            if len(self._clocks) > 2 * MOST_PEERS:
                del self._clocks[next(iter(self._clocks))]

    def clock_of(self, node: str) -> int | None:
        """Return this host's clock minus that of a node's host, ns; None until the node has reported it.

        0 if they may be equal. For a node that has left, the last report.
        """
        return self._clocks.get(node)

    def tick(self, now_s: float) -> list[Peer]:
        """Send heartbeats when due; return the peers that have just timed out."""
        lost = []
        self._monitor.drain()
        self._receiver.refused_connections(self._monitor.take_refused(), now_s)
        self._receiver.closed(self._connections.enforce(now_s, drained=not readable(self.socket)), now_s)
        stood_still_s = self._pauses.lasted_s(now_s)
        for peer in self.peers.values():
            peer.heard_s = min(now_s, peer.heard_s + stood_still_s)
            if not peer.lost and now_s - peer.heard_s > MISSED_HEARTBEATS * self._heartbeat_s:
                peer.lost = True
                lost.append(peer)
                log.warning("%s node %s lost: heartbeat timeout", peer.hello.kind_of_node, peer.hello.node)
        if now_s - self._said_s >= self._heartbeat_s:
            self._said_s = now_s
            for identity in self.peers:
                self.reply(identity, Heartbeat(node=self._welcome.node, status={}))
        return lost

    def reply(self, identity: bytes, message: Message) -> bool:
        """Send to one peer; False if it is lost or its queue is full: it will ask again."""
        return self.forward(identity, encode(message))

    def forward(self, identity: bytes, frames: Sequence[bytes | memoryview]) -> bool:
        """Send an encoded message to one peer; False if it is lost or its queue is full."""
        return send_to(self.socket, identity, frames)

    def close(self) -> None:
        """Leave."""
        self._monitor.close()
        self.socket.close()
