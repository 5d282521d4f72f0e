"""The acquire node's side of dispatch: a ROUTER in front of the dispatch queue."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from sci_stream.clock import unix_ns
from sci_stream.delivery.dispatch_queue import DispatchQueue, Entry
from sci_stream.delivery.ledger import DropReason
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.security.curve import SocketConfig, plain
from sci_stream.transport.client_connection import UNKNOWN_PEER, answer
from sci_stream.transport.connection_limit import ConnectionLimit, Standing
from sci_stream.transport.liveness import MISSED_HEARTBEATS, PauseDetector
from sci_stream.transport.remote_memory import export_frames, welcoming
from sci_stream.transport.router import RouterReceiver
from sci_stream.transport.sockets import Monitor, ReceivedMessage, bind_near, make_socket, readable, receive, send_to
from sci_stream.wire import (
    CalibrationMissing,
    CalibrationRequest,
    Done,
    Goodbye,
    Heartbeat,
    Hello,
    Limits,
    Message,
    Ping,
    Welcome,
    encode,
)

log = logging.getLogger(__name__)

# Limit per call, so that a flooding peer cannot block the node.
_MESSAGES_A_TURN = 1024


@dataclass(frozen=True, slots=True)
class Settled:
    """A settled snapshot: safe at the sink, or ``given_up`` with a reason."""

    seq: int
    given_up: str = ""


@dataclass(slots=True)
class _Peer:
    hello: Hello
    heard_s: float
    reads: bool
    """Whether snapshots can be shared with it in memory."""
    progress_s: float
    """When it last held nothing or settled a snapshot."""


class Dispatcher:
    """Dispatch snapshots to reconstruct nodes and redeliver those of lost nodes.

    A node joins with a HELLO with credit and leaves by GOODBYE, by timeout or by a broken connection, which is detected
    at once. The first HELLO is answered with the calibration; a node sends credit 0 until it has loaded the
    calibration, and again when it accepts no more snapshots. A node that holds snapshots and settles none for
    ``solve_timeout_s`` is lost, too, however lively its heartbeats.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        queue: DispatchQueue[Snapshot],
        *,
        node: str,
        incarnation: str,
        heartbeat_s: float,
        limits: Limits,
        configure: SocketConfig = plain,
        solve_timeout_s: float = math.inf,
    ) -> None:
        self._queue = queue
        self._solve_timeout_s = solve_timeout_s
        self._heartbeat_s = heartbeat_s
        self._receiver = RouterReceiver("dispatch", limits, log)
        self.wire_errors = self._receiver.wire_errors
        self._welcome = Welcome(node=node, incarnation=incarnation, heartbeat_s=heartbeat_s)
        self._peers: dict[bytes, _Peer] = {}
        self._calibrations: dict[str, Sequence[bytes | memoryview]] = {}
        self._exported: dict[int, Sequence[bytes | memoryview]] = {}
        self._current = ""
        self._series = ""
        self._said_s = float("-inf")
        self._pauses = PauseDetector(heartbeat_s)
        self.period_ns = 0
        self.socket = make_socket(
            context,
            zmq.ROUTER,
            max_message_bytes=limits.max_payload_bytes,
            heartbeat_s=heartbeat_s,
            send_queue=64,
            receive_queue=256,
        )
        configure(self.socket)
        bind_near(self.socket, endpoint, "dispatch")
        self._connections = ConnectionLimit()
        self.monitor = Monitor(self.socket, self._connections)

    @property
    def ready_nodes(self) -> int:
        """Reconstruct nodes that have credit."""
        return sum(credit > 0 for credit in self._queue.nodes.values())

    @property
    def queue_figures(self) -> dict[str, int]:
        """Numbers of queued snapshots, of snapshots in flight, and of free credits."""
        return {
            "queue_depth": self._queue.waiting,
            "in_flight": self._queue.in_flight,
            "credit": max(0, self._queue.total_credit - self._queue.in_flight),
        }

    def heard_s(self, name: str) -> float | None:
        """Monotonic time of the last message of a node; None if it is unknown."""
        peer = self._peers.get(name.encode())
        return None if peer is None else peer.heard_s

    def announce(self, calibration: Calibration) -> None:
        """Set the current calibration and send it to every node."""
        self._current = calibration.hash
        self._calibrations = {calibration.hash: encode(calibration)}
        for identity in list(self._peers):
            self._send(identity, self._calibrations[self._current])

    def reset_timeouts(self, now_s: float) -> None:
        """Expect no results for now: the sink does not accept any."""
        for peer in self._peers.values():
            peer.progress_s = now_s

    def offer(self, snapshot: Snapshot, *, promised: bool = False) -> list[int]:
        """Queue a snapshot (see `DispatchQueue.offer`); return the sequence numbers that are dropped for it."""
        self._series = snapshot.id.series
        return [entry.seq for entry in self._queue.offer(snapshot.id.seq, snapshot, promised=promised)]

    @property
    def redelivered(self) -> int:
        """Number of redeliveries."""
        return self._queue.redelivered

    def clear(self) -> list[int]:
        """Give up all queued and in-flight snapshots; return their sequence numbers."""
        self._exported.clear()
        return [entry.seq for entry in self._queue.clear()]

    def poll(self, now_s: float) -> list[Settled]:
        """Receive, detect lost nodes and dispatch. Never blocks."""
        settled: list[Settled] = []
        stood_still_s = self._pauses.lasted_s(now_s)
        for peer in self._peers.values():
            peer.heard_s = min(now_s, peer.heard_s + stood_still_s)
            peer.progress_s = min(now_s, peer.progress_s + stood_still_s)
        disconnected = self.monitor.drain().disconnected  # first: a descriptor may belong to another connection by now
        for _ in range(_MESSAGES_A_TURN):
            incoming = receive(self.socket)
            if incoming is None:
                break
            identity = bytes(incoming.frames[0])
            self._connections.heard(incoming.descriptor, Standing.HEARD)
            with self._receiver.guard(identity, now_s):
                settled += self._handle(identity, incoming, now_s)
        self._receiver.refused_connections(self.monitor.take_refused(), now_s)
        self._receiver.closed(self._connections.enforce(now_s, drained=not readable(self.socket)), now_s)
        beat_due = now_s - self._said_s >= self._heartbeat_s
        if beat_due or disconnected:
            # With ROUTER_MANDATORY this is a probe: sending to a broken connection fails at once.
            self._said_s = now_s
            beat = encode(Heartbeat(node=self._welcome.node, status={}))
            for identity in list(self._peers):
                if not self._send(identity, beat):
                    settled += self._lose(identity, "connection broken")
        for identity, peer in list(self._peers.items()):
            if now_s - peer.heard_s > MISSED_HEARTBEATS * self._heartbeat_s:
                settled += self._lose(identity, "heartbeat timeout")
            # A node without snapshots has nothing to return: its time to solve starts with the next one.
            elif not self._queue.holds(identity.decode(errors="replace")):
                peer.progress_s = now_s
            elif now_s - peer.progress_s > self._solve_timeout_s:
                settled += self._lose(identity, f"no result for {self._solve_timeout_s:g} s")
        return settled + self._hand_out()

    def _handle(self, identity: bytes, incoming: ReceivedMessage, now_s: float) -> list[Settled]:
        message = self._receiver.read(identity, incoming, now_s, lambda said: self._send(identity, encode(said)))
        if message is None:
            return []
        peer = self._peers.get(identity)
        if peer is not None:
            peer.heard_s = now_s
        if isinstance(message, Hello):
            self._greet(identity, incoming, message, now_s)
            return []
        # A failure is progress too: the node works.
        if isinstance(message, Done) and peer is not None:
            peer.progress_s = now_s
        return self._handle_known(identity, message)

    def _handle_known(self, identity: bytes, message: Message) -> list[Settled]:
        name = identity.decode(errors="replace")
        match message:
            case Done() if message.series != self._series:
                pass  # late and of an earlier series: its numbers now mean other snapshots
            case Done() if message.ok:
                # Even from a node presumed lost: the sink has the result, so no other copy is needed.
                self._exported.pop(message.seq, None)
                return [Settled(message.seq)] if self._queue.done(name, message.seq) else []
            case Done():
                entry = self._queue.failed(name, message.seq)
                log.warning(
                    *("%s could not reconstruct snapshot %d: %s", name, message.seq, message.reason),
                    extra={"series": message.series, "seq": message.seq},
                )
                return [] if entry is None else self._given_up([entry], DropReason.RECONSTRUCT_FAILED)
            case CalibrationRequest():
                missing = encode(CalibrationMissing(hash=message.hash))
                self._send(identity, self._calibrations.get(message.hash, missing))
            case Goodbye():
                return self._lose(identity, "goodbye")
            case Heartbeat() if identity not in self._peers:
                # It considers itself known, but was presumed lost meanwhile.
                self._send(identity, encode(UNKNOWN_PEER))
            case Heartbeat():
                pass
            case Ping():
                self._send(identity, encode(answer(message)))
            case _:
                self.wire_errors["unexpected_kind"] += 1
        return []

    def _greet(self, identity: bytes, incoming: ReceivedMessage, hello: Hello, now_s: float) -> None:
        name = identity.decode(errors="replace")
        known = self._peers.get(identity)
        if not self._receiver.accept_hello(
            identity,
            hello,
            now_s,
            known=known is not None,
            peers=len(self._peers),
            answer=lambda said: self._send(identity, encode(said)),
        ):
            return
        self._peers[identity] = _Peer(hello, now_s, hello.reads and incoming.process != 0, progress_s=now_s)
        self._connections.heard(incoming.descriptor, Standing.KNOWN)
        self._send(identity, encode(welcoming(self._welcome, incoming, hello)))
        if known is None:
            log.info("reconstruct node %s joined (%s)", name, hello.device)
            if self._current:
                self._send(identity, self._calibrations[self._current])
        elif hello.credit > 0 and known.hello.credit > 0:
            # HELLO after an interruption: messages in flight may be lost. The node lists those it has.
            self._queue.recall(name)
        self._queue.join(name, hello.credit)

    def _lose(self, identity: bytes, why: str) -> list[Settled]:
        if self._peers.pop(identity, None) is None:
            return []
        name = identity.decode(errors="replace")
        before = self._queue.redelivered
        settled = self._given_up(self._queue.leave(name), DropReason.NODE_FAILURES)
        log.warning(
            "reconstruct node %s lost: %s; redelivering %d snapshots", name, why, self._queue.redelivered - before
        )
        return settled

    def _given_up(self, entries: list[Entry[Snapshot]], why: str) -> list[Settled]:
        for entry in entries:
            self._exported.pop(entry.seq, None)
        return [Settled(entry.seq, why) for entry in entries]

    def _hand_out(self) -> list[Settled]:
        settled: list[Settled] = []
        while (assigned := self._queue.assign()) is not None:
            name, entry = assigned
            snapshot = dataclasses.replace(
                entry.item,
                backlog=self._queue.waiting,
                period_ns=self.period_ns * max(1, self.ready_nodes),
                redelivered=entry.attempts - 1,
                dispatched_ns=unix_ns(),
            )
            identity, frames = name.encode(), encode(snapshot)
            if (peer := self._peers.get(identity)) is not None and peer.reads:
                # Kept until it is settled: the node reads the memory when it solves the snapshot.
                self._exported[entry.seq], frames = frames, export_frames(frames)
            if not self._send(identity, frames):
                settled += self._lose(identity, "connection broken")
        return settled

    def _send(self, identity: bytes, frames: Sequence[bytes | memoryview]) -> bool:
        return send_to(self.socket, identity, frames)

    def close(self) -> None:
        """Leave."""
        self.monitor.close()
        self.socket.close()
