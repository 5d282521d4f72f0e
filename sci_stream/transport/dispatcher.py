"""The acquire node's side of dispatch: a ROUTER in front of the dispatch queue."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from sci_stream.clock import unix_ns
from sci_stream.delivery.admission import Admission
from sci_stream.delivery.dispatch_queue import DispatchQueue, Entry
from sci_stream.delivery.ledger import DropReason
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Value
from sci_stream.transport.router import Peer, RouterServer
from sci_stream.wire.codec import encode
from sci_stream.wire.messages import (
    CalibrationMissing,
    CalibrationRequest,
    Done,
    Goodbye,
    Heartbeat,
    Hello,
    Message,
)

log = logging.getLogger(__name__)

# Limit per call, so that a flooding peer cannot block the node.
_MESSAGES_PER_CALL = 1024


@dataclass(frozen=True)
class Settled:
    """A settled snapshot: safe at the sink, or ``given_up`` with a reason;
    ``masks`` as in `Done`.
    """

    seq: int
    given_up: str = ""
    masks: Mapping[str, Value] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class Dispatcher(RouterServer[Peer]):
    """Dispatch snapshots to reconstruct nodes and redeliver those of lost nodes.

    A node joins with a HELLO with credit and leaves by GOODBYE, by timeout or by a broken
    connection, which is detected at once. The first HELLO is answered with the calibration; a node
    sends credit 0 until it has loaded the calibration, and again when it accepts no more snapshots.
    A node that is overdue (`Admission`) is lost, too, however lively its heartbeats. Where
    snapshots are stale, the newest goes first (`DispatchQueue.drop_stale`).
    """

    # Room for all snapshots that a node may hold: a full queue is taken for a broken connection.
    address = "dispatch"
    send_queue = 2048
    receive_queue = 256

    queue: DispatchQueue[Snapshot]
    """Queued and dispatched snapshots."""
    _: KW_ONLY
    admission: Admission = field(default_factory=Admission)
    period_ns: int = field(default=0, init=False)
    _calibrations: dict[str, Sequence[bytes | memoryview]] = field(default_factory=dict, init=False)
    _series: str = field(default="", init=False)

    @property
    def ready_nodes(self) -> int:
        """Reconstruct nodes that have credit."""
        return sum(credit > 0 for credit in self.queue.nodes.values())

    @property
    def queue_figures(self) -> dict[str, int]:
        """Numbers of queued snapshots, of snapshots in flight, and of free credits."""
        return {
            "queue_depth": self.queue.waiting,
            "in_flight": self.queue.in_flight,
            "credit": max(0, sum(self.queue.nodes.values()) - self.queue.in_flight),
        }

    def announce(self, calibration: Calibration) -> None:
        """Set the current calibration and send it to every node."""
        self._calibrations = {calibration.hash: encode(calibration)}
        for identity in self.peers:
            self._send_calibration(identity)

    def _send_calibration(self, identity: bytes) -> None:
        for frames in self._calibrations.values():  # one, once it is announced
            self.send(identity, frames)

    def offer(self, snapshot: Snapshot, *, promised: bool = False) -> list[int]:
        """Queue a snapshot (see `DispatchQueue.offer`); return the sequence numbers that are
        dropped for it.
        """
        self._series = snapshot.id.series
        return [
            entry.seq for entry in self.queue.offer(snapshot.id.seq, snapshot, promised=promised)
        ]

    def poll(self, now_s: float) -> list[Settled]:
        """Receive, detect lost nodes and dispatch. Never blocks."""
        settled: list[Settled] = []
        for identity, message in self._receive_messages(now_s, _MESSAGES_PER_CALL):
            with self.guard(identity):
                settled += self._handle(identity, message, now_s)
        for identity in self._send_heartbeats(now_s, probe=True):
            settled += self._lose(identity, "connection broken")
        for identity in self._silent_peers(now_s):
            settled += self._lose(identity, "heartbeat timeout")
        for identity in list(self.peers):
            name = _name(identity)
            holds = bool(self.queue.holds(name))
            had_s = self.admission.overdue(name, now_s, holds=holds, pause_s=self._pause_s)
            if had_s is not None:
                settled += self._lose(identity, f"no result for {had_s:g} s")
        self._admit(now_s)
        return settled + self._hand_out()

    def _admit(self, now_s: float) -> None:
        """Set the credit of each node."""
        for identity, peer in self.peers.items():
            name = _name(identity)
            self.queue.join(name, self.admission.credit(name, peer.hello.credit, now_s))

    def _handle(self, identity: bytes, message: Message, now_s: float) -> list[Settled]:
        name = _name(identity)
        if isinstance(message, Done):
            solved = message.ok and bool(self.queue.holds(name))
            self.admission.settle(name, now_s, solved=solved)
        match message:
            case Hello():
                self._join(identity, message, now_s)
            case Done() if message.series != self._series:
                pass  # late and of an earlier series: its numbers now mean other snapshots
            case Done() if message.ok:
                # Even from a node presumed lost: the sink has the result, so no other copy is
                # needed.
                if self.queue.done(name, message.seq):
                    return [Settled(message.seq, masks=message.masks)]
                return []
            case Done():
                entry = self.queue.failed(name, message.seq)
                log.warning(
                    "%s could not reconstruct snapshot %d: %s",
                    name,
                    message.seq,
                    message.reason,
                    extra={"series": message.series, "seq": message.seq},
                )
                return [] if entry is None else [Settled(entry.seq, DropReason.RECONSTRUCT_FAILED)]
            case CalibrationRequest():
                missing = encode(CalibrationMissing(hash=message.hash))
                self.send(identity, self._calibrations.get(message.hash, missing))
            case Goodbye():
                return self._lose(identity, "goodbye")
            case Heartbeat():
                pass
            case _:
                self.wire_errors["unexpected_kind"] += 1
        return []

    def _join(self, identity: bytes, hello: Hello, now_s: float) -> None:
        name = _name(identity)
        known = self.peers.get(identity)
        self.peers[identity] = Peer(hello, now_s)
        self.admission.join(name, now_s)
        if known is None:
            log.info("reconstruct node %s joined (%s)", name, hello.device)
            self._send_calibration(identity)
        elif hello.credit > 0 and known.hello.credit > 0:
            # HELLO after an interruption: messages in flight may be lost. The node lists those it
            # has.
            self.queue.recall(name)
        self._admit(now_s)

    def _lose(self, identity: bytes, why: str) -> list[Settled]:
        if self.peers.pop(identity, None) is None:
            return []
        name = _name(identity)
        self.admission.leave(name)
        before = self.queue.redelivered
        settled = [Settled(entry.seq, DropReason.NODE_FAILURES) for entry in self.queue.leave(name)]
        log.warning(
            "reconstruct node %s lost: %s; redelivering %d snapshots",
            name,
            why,
            self.queue.redelivered - before,
        )
        return settled

    def _hand_out(self) -> list[Settled]:
        settled = [Settled(entry.seq, DropReason.QUEUE_FULL) for entry in self._drop_stale()]
        while (assigned := self.queue.assign()) is not None:
            name, entry = assigned
            snapshot = dataclasses.replace(
                entry.item,
                backlog=self.queue.waiting,
                period_ns=self.period_ns * max(1, self.ready_nodes),
                redelivered=entry.attempts - 1,
                dispatched_ns=unix_ns(),
            )
            identity = name.encode()
            if not self.send(identity, encode(snapshot)):
                settled += self._lose(identity, "connection broken")
        return settled

    def _drop_stale(self) -> list[Entry[Snapshot]]:
        wait_s = self.admission.stale_after_s
        if wait_s == math.inf:
            return []
        oldest_ns = unix_ns() - round(wait_s * 1e9)
        return self.queue.drop_stale(lambda snapshot: snapshot.host_time_ns < oldest_ns)


def _name(identity: bytes) -> str:
    return identity.decode(errors="replace")
