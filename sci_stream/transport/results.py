"""The sink's side: one ROUTER that takes results, raw snapshots and reports from all nodes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import zmq

from sci_stream.errors import WireError
from sci_stream.transport.curve import Dress, plain
from sci_stream.transport.dealer import UNKNOWN_PEER, answer, identity_of
from sci_stream.transport.patience import MISSED_HEARTBEATS, Standstill
from sci_stream.transport.sockets import Monitor, bind_near, make_socket, receive_frames, send_to
from sci_stream.wire import Goodbye, Heartbeat, Hello, Limits, Message, Ping, Refused, Welcome, decode, encode

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
        dress: Dress = plain,
    ) -> None:
        self._limits = limits
        self._heartbeat_s = heartbeat_s
        self._welcome = Welcome(node=node, incarnation=incarnation, heartbeat_s=heartbeat_s)
        self._said_s = float("-inf")
        self._standstill = Standstill(heartbeat_s)
        self.peers: dict[bytes, Peer] = {}
        self.wire_errors: Counter[str] = Counter()
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
        for _ in range(_MESSAGES_A_TURN):
            frames = receive_frames(self.socket)
            if frames is None:
                break
            identity = bytes(frames[0])
            try:
                message = decode(frames[1:], self._limits)
            except WireError as error:
                self._refuse(identity, error)
                continue
            if self._known(identity, message, now_s):
                out.append((identity, message))
        return out

    def _refuse(self, identity: bytes, error: WireError) -> None:
        self.wire_errors[error.reason] += 1
        log.warning("message to the results address refused: %s", error)
        if error.reason == "version":
            self.reply(identity, Refused(reason=error.reason, text=str(error)))

    def _known(self, identity: bytes, message: Message, now_s: float) -> bool:
        """Keep the register of peers; return whether the message is for the node."""
        peer = self.peers.get(identity)
        if peer is not None:
            peer.heard_s = now_s
            peer.lost = False
        match message:
            case Hello() if identity != identity_of(message):
                # From a connection that a newer one of the same node has replaced, or from nobody who may say so.
                self.wire_errors["identity"] += 1
                return False
            case Hello():
                if peer is None:
                    log.info("%s node %s reports in", message.kind_of_node, message.node)
                    # One process replaces another of the same name: the old one's identity will not come back.
                    for old in [key for key, other in self.peers.items() if other.hello.node == message.node]:
                        del self.peers[old]
                self.peers[identity] = Peer(message, now_s, status=peer.status if peer else {})
                self.reply(identity, self._welcome)
                return False
            case Heartbeat():
                if peer is None:
                    self.reply(identity, UNKNOWN_PEER)
                else:
                    peer.status = dict(message.status)
                return False
            case Ping():
                self.reply(identity, answer(message))
                return False
            case Goodbye():
                self.peers.pop(identity, None)
                return False
        return True

    def tick(self, now_s: float) -> list[Peer]:
        """Send heartbeats when due; return the peers that have just been found lost."""
        lost = []
        refused_before = self._monitor.refused
        self._monitor.drain()
        if self._monitor.refused > refused_before:
            self.wire_errors["handshake"] += self._monitor.refused - refused_before
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
