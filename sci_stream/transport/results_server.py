"""The sink's side: one ROUTER that takes results, raw snapshots and reports from all nodes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from sci_stream.delivery.clock_offset import significant_ns
from sci_stream.parameters import Parameter, declarations, is_declaration
from sci_stream.transport.router import MAX_PEERS, Peer, RouterServer
from sci_stream.transport.sockets import BYTES_PER_CALL, ReceivedMessage
from sci_stream.wire.messages import Goodbye, Heartbeat, Hello, Message

log = logging.getLogger(__name__)

MAX_STATUS_BYTES = 32 << 10
"""Size of a node's status: that of a reconstruct node has 3 KiB, a camera with many settings adds
as much."""

# Heartbeats and recording must get their turn while results arrive without pause.
_MESSAGES_PER_CALL = 16
# A lost node is shown for so long, one of the rig for ever.
_FORGET_S = 60.0
# 2⁶³ ns: Unix times in ns are 64-bit integers.
_MAX_MS = 2**63 / 1e6


@dataclass
class ReportingPeer(Peer):
    """A node that reports to the sink: its last status, its controls, and whether it has timed out.

    A process that has ended is not ``reachable``; one that only waits for a processor is.
    """

    lost: bool = False
    reachable: bool = True
    status: dict[str, int | float | str] = field(default_factory=dict)
    parameters: list[Parameter] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)

    def report(self, status: Mapping[str, int | float | str]) -> None:
        """Take over a status; parameters and actions are parsed only if they have changed."""
        declared = {key: value for key, value in status.items() if is_declaration(key)}
        if declared != {key: value for key, value in self.status.items() if is_declaration(key)}:
            self.parameters, self.actions = declarations(declared)
        self.status = dict(status)


def _is_ms(value: object) -> TypeGuard[float]:
    """Return whether a node's report is a difference of two Unix times in ms."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_MS


@dataclass(eq=False, repr=False)
class ResultsServer(RouterServer[ReportingPeer]):
    """Receive from acquire and reconstruct nodes; count and survive malformed input."""

    address = "results"
    send_queue = 1024
    receive_queue = 8

    _clocks: dict[str, int] = field(default_factory=dict, init=False)
    _replaced: deque[bytes] = field(default_factory=lambda: deque(maxlen=MAX_PEERS), init=False)

    def receive(self, now_s: float) -> list[tuple[bytes, Message]]:
        """Receive some pending messages; return (sender identity, message) for those that concern
        the node.
        """
        return list(self._receive_messages(now_s, _MESSAGES_PER_CALL, BYTES_PER_CALL))

    def _answered(self, identity: bytes, incoming: ReceivedMessage, now_s: float) -> Message | None:
        """Update the register of peers; return a message for the node."""
        message = super()._answered(identity, incoming, now_s)
        peer = None if message is None else self.peers.get(identity)
        if peer is not None:
            peer.lost = False
            peer.reachable = True
        match message:
            case Hello():
                self._register(identity, message, now_s)
            case Heartbeat():
                if peer is not None and self._is_short(identity, message):
                    peer.report(message.status)
                    self._note_clock(peer)
            case Goodbye():
                self.peers.pop(identity, None)
            case _:
                return message
        return None

    def _is_short(self, identity: bytes, heartbeat: Heartbeat) -> bool:
        """Return whether a status is one that a node can have: all are shown to every viewer twice
        a second.
        """
        size = sum(
            len(key) + (len(value) if isinstance(value, str) else 8)
            for key, value in heartbeat.status.items()
        )
        if size > MAX_STATUS_BYTES:
            self.refuse(
                identity,
                "status",
                f"a status of {size} characters, expected at most {MAX_STATUS_BYTES}",
            )
        return size <= MAX_STATUS_BYTES

    def _register(self, identity: bytes, hello: Hello, now_s: float) -> None:
        peer = self.peers.get(identity)
        if peer is None:
            log.info("%s node %s connected", hello.kind_of_node, hello.node)
            # A restarted process replaces its predecessor, whose identity will not return.
            same = [key for key, other in self.peers.items() if other.hello.node == hello.node]
            if same and identity in self._replaced:
                # It returned: two nodes have the same name, and each would replace the other
                # repeatedly.
                log.error(
                    "two nodes are named %s: start each with its own --index, to tell them apart",
                    hello.node,
                )
                same = []
            for old in same:
                self._replaced.append(old)
                del self.peers[old]
            self._clocks.pop(hello.node, None)
        new = self.peers[identity] = ReportingPeer(hello, now_s)
        if peer is not None:
            new.report(peer.status)

    def _forget_lost(self, now_s: float, silent_s: float = 0.0) -> None:
        """Forget lost nodes that the rig does not know, and that have been silent for longer than
        ``silent_s``.
        """
        for identity, peer in list(self.peers.items()):
            if peer.lost and peer.hello.node not in self.known and now_s - peer.heard_s > silent_s:
                del self.peers[identity]

    def _note_clock(self, peer: ReportingPeer) -> None:
        offset_ms, uncertainty_ms = (
            peer.status.get(f"clock_{word}_ms") for word in ("offset", "uncertainty")
        )
        if _is_ms(offset_ms) and _is_ms(uncertainty_ms):
            self._clocks.pop(peer.hello.node, None)
            self._clocks[peer.hello.node] = significant_ns(offset_ms, uncertainty_ms)
            if len(self._clocks) > 2 * MAX_PEERS:
                del self._clocks[next(iter(self._clocks))]

    def clock_of(self, node: str) -> int | None:
        """Return this host's clock minus that of a node's host, ns; None until the node has
        reported it.

        0 if they may be equal. For a node that has left, the last report.
        """
        return self._clocks.get(node)

    def tick(self, now_s: float, *, receiving: bool = True) -> list[ReportingPeer]:
        """Send heartbeats when due; return the peers that have just timed out: none in a turn
        without `receive`.
        """
        lost = [
            peer
            for key in self._silent_peers(now_s, receiving=receiving)
            if not (peer := self.peers[key]).lost
        ]
        for peer in lost:
            peer.lost = True
            log.warning(
                "%s node %s lost: heartbeat timeout", peer.hello.kind_of_node, peer.hello.node
            )
        self._forget_lost(now_s, _FORGET_S)
        for identity in self._send_heartbeats(now_s):
            self.peers[identity].reachable = False
        return lost
