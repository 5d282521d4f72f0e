"""The sink's side: one ROUTER that takes results, raw snapshots and reports from all nodes."""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import zmq

from sci_stream.delivery.clock_offset import significant_ns
from sci_stream.security.curve import SocketConfig, plain
from sci_stream.transport.client_connection import UNKNOWN_PEER, answer
from sci_stream.transport.liveness import MISSED_HEARTBEATS, PauseDetector
from sci_stream.transport.remote_memory import welcoming
from sci_stream.transport.router import MOST_PEERS, RouterReceiver
from sci_stream.transport.sockets import (
    ENOUGH_BYTES_A_TURN,
    Monitor,
    ReceivedMessage,
    bind_near,
    make_socket,
    receive,
    send_to,
)
from sci_stream.wire import Goodbye, Heartbeat, Hello, Limits, Message, Ping, Welcome, encode, payload_bytes

log = logging.getLogger(__name__)

_MESSAGES_A_TURN = 16


@dataclass(slots=True)
class Peer:
    """A node that reports to the sink: who it is, when it was last heard, what it said of itself."""

    hello: Hello
    heard_s: float
    lost: bool = False
    status: dict[str, int | float | str] = field(default_factory=dict)


class ResultsServer:
    """Receives from acquire and reconstruct nodes; counts, and survives, whatever is not a message."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        *,
        node: str,
        incarnation: str,
        heartbeat_s: float,
        limits: Limits,
        dress: SocketConfig = plain,
    ) -> None:
        self._reception = RouterReceiver("results", limits, log)
        self.wire_errors = self._reception.wire_errors
        self._heartbeat_s = heartbeat_s
        self._welcome = Welcome(node=node, incarnation=incarnation, heartbeat_s=heartbeat_s)
        self._said_s = float("-inf")
        self._standstill = PauseDetector(heartbeat_s)
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
        dress(self.socket)
        bind_near(self.socket, endpoint, "results")
        self._monitor = Monitor(self.socket)

    def receive(self, now_s: float) -> list[tuple[bytes, Message]]:
        """Take in some of what has come: (sender's identity, message) for what is the node's business."""
        out: list[tuple[bytes, Message]] = []
        taken_bytes = 0
        for _ in range(_MESSAGES_A_TURN):
            parcel = receive(self.socket) if taken_bytes < ENOUGH_BYTES_A_TURN else None
            if parcel is None:
                break
            identity = bytes(parcel.frames[0])
            message = self._reception.read(identity, parcel, now_s, functools.partial(self.reply, identity))
            if message is not None and self._known(identity, parcel, message, now_s):
                out.append((identity, message))
                taken_bytes += payload_bytes(message)
        return out

    def _known(self, identity: bytes, parcel: ReceivedMessage, message: Message, now_s: float) -> bool:
        """Keep the register of peers; return whether the message is for the node."""
        peer = self.peers.get(identity)
        if peer is not None:
            peer.heard_s = now_s
            peer.lost = False
        match message:
            case Hello():
                self._greet(identity, parcel, message, now_s)
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

    def _greet(self, identity: bytes, parcel: ReceivedMessage, hello: Hello, now_s: float) -> None:
        peer = self.peers.get(identity)
        if not self._reception.welcomes(
            identity,
            hello,
            now_s,
            known=peer is not None,
            peers=len(self.peers),
            answer=functools.partial(self.reply, identity),
        ):
            return
        if peer is None:
            log.info("%s node %s reports in", hello.kind_of_node, hello.node)
            # One process replaces another of the same name: the old one's identity will not come back.
            same = [key for key, other in self.peers.items() if other.hello.node == hello.node]
            if same and identity in self._replaced:
                # It came back: there are two of them, and each would drive the other out for ever.
                log.error(
                    "two nodes are named %s: start each of a kind with an --index of its own, so that they can be told "
                    "apart",
                    hello.node,
                )
                same = []
            for old in same:
                self._replaced.append(old)
                del self.peers[old]
            self._clocks.pop(hello.node, None)
        self.peers[identity] = Peer(hello, now_s, status=peer.status if peer else {})
        self.reply(identity, welcoming(self._welcome, parcel, hello))

    def _note_clock(self, peer: Peer) -> None:
        offset_ms, uncertainty_ms = (peer.status.get(f"clock_{word}_ms") for word in ("offset", "uncertainty"))
        if isinstance(offset_ms, int | float) and isinstance(uncertainty_ms, int | float):
            self._clocks.pop(peer.hello.node, None)
            self._clocks[peer.hello.node] = significant_ns(offset_ms, uncertainty_ms)
            if len(self._clocks) > 2 * MOST_PEERS:
                del self._clocks[next(iter(self._clocks))]

    def clock_of(self, node: str) -> int | None:
        """Return this host's clock less that of a node's host, ns; None as long as the node has not told it.

        0 where it may be the same. Of a node that has left, what it last said.
        """
        return self._clocks.get(node)

    def tick(self, now_s: float) -> list[Peer]:
        """Send heartbeats when due; return the peers that have just been found lost."""
        lost = []
        refused_before = self._monitor.refused
        self._monitor.drain()
        self._reception.strangers(self._monitor.refused - refused_before, now_s)
        stood_still_s = self._standstill.lasted_s(now_s)
        for peer in self.peers.values():
            peer.heard_s = min(now_s, peer.heard_s + stood_still_s)
            if not peer.lost and now_s - peer.heard_s > MISSED_HEARTBEATS * self._heartbeat_s:
                peer.lost = True
                lost.append(peer)
                log.warning("%s node %s is silent", peer.hello.kind_of_node, peer.hello.node)
        if now_s - self._said_s >= self._heartbeat_s:
            self._said_s = now_s
            for identity in self.peers:
                self.reply(identity, Heartbeat(node=self._welcome.node, status={}))
        return lost

    def reply(self, identity: bytes, message: Message) -> bool:
        """Send to one peer; False if it is gone or does not read: it will ask again when it is back."""
        return self.forward(identity, encode(message))

    def forward(self, identity: bytes, frames: Sequence[bytes | memoryview]) -> bool:
        """Send an encoded message to one peer; False if it is gone or does not read."""
        return send_to(self.socket, identity, frames)

    def close(self) -> None:
        """Leave."""
        self._monitor.close()
        self.socket.close()
