"""The acquire node's side of dispatch: a ROUTER in front of the dispatch queue."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from sci_stream.clock import unix_ns
from sci_stream.delivery.dispatch_queue import DispatchQueue, Entry
from sci_stream.delivery.ledger import DropReason
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Value
from sci_stream.transport.router import MAX_PEERS, Peer, RouterServer
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

# A node that has returned nothing yet gets one snapshot; one that keeps it while others are done
# gets none for a while, longer each time. Patience is this many times the slowest result so far,
# and at least so long.
_PATIENCE, _LEAST_PATIENCE_S = 20.0, 20.0
_BARRED_FIRST_S, _BARRED_MAX_S = 30.0, 3600.0
# The usual time of a solve is an exponential mean; of solves of milliseconds, the pauses of an
# operating system are many, and no person sees a fifth of a second.
_SMOOTHING, _LEAST_WAIT_S = 0.2, 0.2
# With slow solves, a node gets its next snapshot only when it has done this share of its present
# one.
_SLOW_SOLVE_S, _PREFETCH_AT = 0.1, 0.7
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


@dataclass
class ReconstructPeer(Peer):
    """A reconstruct node, when it last settled a snapshot or held none, and whether it has returned
    a result.
    """

    progress_s: float
    is_proven: bool = False


@dataclass(eq=False, repr=False)
class Dispatcher(RouterServer[ReconstructPeer]):
    """Dispatch snapshots to reconstruct nodes and redeliver those of lost nodes.

    A node joins with a HELLO with credit and leaves by GOODBYE, by timeout or by a broken
    connection, which is detected at once. The first HELLO is answered with the calibration; a node
    sends credit 0 until it has loaded the calibration, and again when it accepts no more snapshots.
    A node that holds snapshots and settles none for ``solve_timeout_s`` is lost, too, however
    lively its heartbeats. When a snapshot has waited ``max_wait_s`` for a node, or for 0 as long as
    a solve takes, the newest goes first (`DispatchQueue.drop_stale`); None: never.
    """

    # Room for all snapshots that a node may hold: a full queue is taken for a broken connection.
    address, send_queue, receive_queue = "dispatch", 2048, 256

    queue: DispatchQueue[Snapshot]
    """Queued and dispatched snapshots."""
    _: KW_ONLY
    solve_timeout_s: float = math.inf
    max_wait_s: float | None = None
    period_ns: int = field(default=0, init=False)
    _calibrations: dict[str, Sequence[bytes | memoryview]] = field(default_factory=dict, init=False)
    _series: str = field(default="", init=False)
    _slowest_s: float = field(default=0.0, init=False)
    _solve_s: float = field(default=0.0, init=False)
    _barred: dict[bytes, tuple[float, float]] = field(default_factory=dict, init=False)

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

    def reset_timeouts(self, now_s: float) -> None:
        """Expect no results for now: the sink does not accept any."""
        for peer in self.peers.values():
            peer.progress_s = now_s

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
        for identity, peer in list(self.peers.items()):
            peer.progress_s = min(now_s, peer.progress_s + self._pause_s)
            # A node without snapshots has nothing to return: its time to solve starts with the next
            # one.
            if not self.queue.holds(identity.decode(errors="replace")):
                peer.progress_s = now_s
            elif now_s - peer.progress_s > (patience_s := self._patience_s):
                if self._slowest_s:  # others do return results
                    self._bar(identity, now_s)
                settled += self._lose(identity, f"no result for {patience_s:g} s")
        self._admit(now_s)
        return settled + self._hand_out()

    @property
    def _patience_s(self) -> float:
        """Time within which a node that holds snapshots must settle one."""
        usual_s = (
            max(_LEAST_PATIENCE_S, _PATIENCE * self._slowest_s) if self._slowest_s else math.inf
        )
        return min(self.solve_timeout_s, usual_s)

    def _bar(self, identity: bytes, now_s: float) -> None:
        """Give a node no snapshots for a while; one that restarts gets some again."""
        _, before_s = self._barred.get(identity, (0.0, _BARRED_FIRST_S / 2))
        pause_s = min(2 * before_s, _BARRED_MAX_S)
        self._barred[identity] = now_s + pause_s, pause_s
        while len(self._barred) > MAX_PEERS:
            del self._barred[next(iter(self._barred))]

    def _admit(self, now_s: float) -> None:
        """Set the credit of each node."""
        for identity, peer in self.peers.items():
            credit = peer.hello.credit
            # A snapshot that waits in a node is no longer the newest when its solve begins.
            is_early = now_s - peer.progress_s < _PREFETCH_AT * self._solve_s
            if self.max_wait_s is not None and self._solve_s > _SLOW_SOLVE_S and is_early:
                credit = min(credit, 1)
            if not peer.is_proven:
                until_s, _ = self._barred.get(identity, (0.0, 0.0))
                credit = min(credit, int(now_s >= until_s))
            self.queue.join(identity.decode(errors="replace"), credit)

    def _handle(self, identity: bytes, message: Message, now_s: float) -> list[Settled]:
        name = identity.decode(errors="replace")
        # A failure is progress too: the node works.
        if isinstance(message, Done) and (peer := self.peers.get(identity)) is not None:
            if message.ok and self.queue.holds(name):
                took_s = now_s - peer.progress_s
                self._slowest_s = max(self._slowest_s, took_s)
                self._solve_s += (_SMOOTHING if self._solve_s else 1.0) * (took_s - self._solve_s)
                peer.is_proven = True
                self._barred.pop(identity, None)
            peer.progress_s = now_s
        match message:
            case Hello():
                self._join(identity, message, now_s)
            case Done() if message.series != self._series:
                pass  # late and of an earlier series: its numbers now mean other snapshots
            case Done() if message.ok:
                # Even from a node presumed lost: the sink has the result, so no other copy is
                # needed.
                return (
                    [Settled(message.seq, masks=message.masks)]
                    if self.queue.done(name, message.seq)
                    else []
                )
            case Done():
                entry = self.queue.failed(name, message.seq)
                log.warning(
                    *(
                        "%s could not reconstruct snapshot %d: %s",
                        name,
                        message.seq,
                        message.reason,
                    ),
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
        name = identity.decode(errors="replace")
        known = self.peers.get(identity)
        self.peers[identity] = ReconstructPeer(
            hello, now_s, now_s, known is not None and known.is_proven
        )
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
        name = identity.decode(errors="replace")
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
        wait_s = self.max_wait_s or (
            max(self._solve_s, _LEAST_WAIT_S) if self._solve_s else math.inf
        )
        if self.max_wait_s is None or wait_s == math.inf:
            return []
        oldest_ns = unix_ns() - round(wait_s * 1e9)
        return self.queue.drop_stale(lambda snapshot: snapshot.host_time_ns < oldest_ns)
