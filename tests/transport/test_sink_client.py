"""Messages posted to the sink arrive despite restarts of the sink."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import zmq

from sci_stream.errors import TransportError
from sci_stream.model import Reconstruction
from sci_stream.transport.client_connection import ClientConnection, PeerEvent
from sci_stream.transport.results_server import ResultsServer
from sci_stream.transport.router import answer
from sci_stream.transport.sink_client import SinkClient
from sci_stream.wire.messages import Accepted, Message, Ping, Pong, Welcome, acknowledgement_of
from tests.hostile_messages import hostile_messages
from tests.transport.peers import (
    HEARTBEAT_S,
    SERIES,
    hello,
    reconstruction,
    send_until_counted,
    until,
)


class Bench:
    """A client and a server, polled by the test's thread."""

    def __init__(
        self, context: zmq.Context, endpoint: str, *, node_heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self.context = context
        self.endpoint = endpoint
        self.link = SinkClient(
            ClientConnection(context, endpoint, hello(), heartbeat_s=node_heartbeat_s)
        )
        self.server: ResultsServer | None = None
        self.accepting = True
        self.got: list[tuple[bytes, Message]] = []
        self.safe: list[Accepted] = []
        self.events: list[PeerEvent] = []

    def serve(self, incarnation: str) -> None:
        deadline_s = time.monotonic() + 60.0
        while self.server is None:
            try:
                self.server = ResultsServer(
                    self.context,
                    self.endpoint,
                    Welcome("sink", incarnation, HEARTBEAT_S),
                )
            except TransportError:
                # Within one process ZeroMQ frees the address of a closed socket a little later.
                assert time.monotonic() < deadline_s
                time.sleep(0.01)

    def kill_server(self) -> None:
        assert self.server is not None
        self.server.close()
        self.server = None

    def poll(self) -> None:
        now_s = time.monotonic()
        if self.server is not None:
            for identity, message in self.server.receive(now_s):
                self.got.append((identity, message))
                if self.accepting and isinstance(message, Reconstruction):
                    self.server.reply(
                        identity, Accepted(series=SERIES, seq=message.id.seq, of="reconstruction")
                    )
            self.server.tick(now_s)
        news = self.link.poll(now_s)
        self.safe += news.safe
        self.events += news.events
        self.link.send_due()

    def seqs(self) -> list[int]:
        return [message.id.seq for _, message in self.got if isinstance(message, Reconstruction)]

    def close(self) -> None:
        self.link.connection.close()
        if self.server is not None:
            self.server.close()


@pytest.fixture
def bench(context: zmq.Context, free_endpoint: Callable[[], str]) -> Iterator[Bench]:
    made = Bench(context, free_endpoint())
    yield made
    made.close()


def test_message_is_kept_until_acknowledged(bench: Bench) -> None:
    bench.serve("s1")
    bench.accepting = False
    key = acknowledgement_of(reconstruction(0))
    bench.link.post(reconstruction(0), time.monotonic())
    until(lambda: bench.seqs() == [0], bench.poll)
    assert key in bench.link.outbox
    assert bench.server is not None
    bench.server.reply(bench.got[0][0], Accepted(series=SERIES, seq=0, of="reconstruction"))
    until(lambda: bench.safe == [key], bench.poll)
    assert key not in bench.link.outbox


def test_one_acknowledgement_covers_a_run_of_messages(bench: Bench) -> None:
    bench.serve("s1")
    bench.accepting = False
    for seq in range(4):
        bench.link.post(reconstruction(seq), time.monotonic())
    until(lambda: bench.seqs() == [0, 1, 2, 3], bench.poll)
    assert bench.server is not None
    bench.server.reply(bench.got[0][0], Accepted(SERIES, 1, "reconstruction", count=2))
    until(lambda: len(bench.safe) == 2, bench.poll)
    assert bench.safe == [acknowledgement_of(reconstruction(seq)) for seq in (1, 2)]
    assert len(bench.link.outbox) == 2


def test_messages_posted_before_the_sink_starts_arrive(bench: Bench) -> None:
    for seq in range(3):
        bench.link.post(reconstruction(seq), time.monotonic())
    for _ in range(20):
        bench.poll()
    bench.serve("s1")
    until(lambda: len(bench.safe) == 3, bench.poll)
    assert bench.seqs() == [0, 1, 2]
    assert bench.events == [PeerEvent.NEW]


def test_restarted_sink_receives_unacknowledged_messages(bench: Bench) -> None:
    bench.serve("s1")
    bench.accepting = False
    bench.link.post(reconstruction(0), time.monotonic())
    until(lambda: bench.seqs() == [0], bench.poll)
    bench.kill_server()
    for _ in range(20):
        bench.poll()
    bench.serve("s2")
    bench.accepting = True
    until(lambda: len(bench.safe) == 1, bench.poll)
    assert bench.seqs() == [0, 0]
    assert bench.events.count(PeerEvent.NEW) == 2


def test_sink_lists_peers_and_detects_silent_ones(bench: Bench) -> None:
    bench.serve("s1")
    bench.link.connection.status = {"in_hand": 3}
    server = bench.server
    assert server is not None
    until(
        lambda: any(peer.status.get("in_hand") == 3 for peer in server.peers.values()), bench.poll
    )
    lost: list[str] = []
    until(
        lambda: lost == ["reconstruct-0"],
        lambda: lost.extend(peer.hello.node for peer in server.tick(time.monotonic())),
    )


def test_clock_offset_is_known_with_hello_and_per_process(
    context: zmq.Context, free_endpoint: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first results of a node that was restarted would be given by a clock that no one
    knows.
    """
    hour_ns = 3_600_000_000_000

    def an_hour_ahead(ping: Ping) -> Pong:
        by_now = answer(ping)
        return replace(
            by_now,
            received_ns=by_now.received_ns + hour_ns,
            answered_ns=by_now.answered_ns + hour_ns,
        )

    bench = Bench(context, free_endpoint(), node_heartbeat_s=60.0)
    bench.serve("s1")
    assert bench.server is not None
    until(lambda: bench.server.clock_of("reconstruct-0") is not None, bench.poll)
    assert bench.server.clock_of("reconstruct-0") == 0, "one process has one clock"
    bench.kill_server()
    monkeypatch.setattr("sci_stream.transport.router.answer", an_hour_ahead)
    bench.serve("s2")
    seen: list[int | None] = []
    until(
        lambda: seen and seen[-1] is not None,
        lambda: (bench.poll(), seen.append(bench.server.clock_of("reconstruct-0"))),
    )
    assert {None, seen[-1]} == set(seen), "figures of the earlier process do not apply to this one"
    assert seen[-1] == pytest.approx(hour_ns, abs=10**9)
    bench.close()


def test_hostile_messages_to_the_sink_are_counted_and_survived(bench: Bench) -> None:
    bench.serve("s1")
    raw = bench.context.socket(zmq.DEALER)
    raw.connect(bench.endpoint)
    cases = [case for case in hostile_messages() if case.frames]
    server = bench.server
    assert server is not None
    send_until_counted(raw, cases, server.wire_errors.total, bench.poll)
    for case in cases:
        assert server.wire_errors[case.reason] > 0, case.name
    bench.link.post(reconstruction(0), time.monotonic())
    until(lambda: len(bench.safe) == 1, bench.poll)
    raw.close(linger=0)


def test_hostile_messages_from_a_sink_are_counted_and_survived(bench: Bench) -> None:
    bench.serve("s1")
    until(lambda: bench.link.connection.connected, bench.poll)
    server = bench.server
    assert server is not None
    identity = next(iter(server.peers))
    cases = [case for case in hostile_messages() if case.frames]
    for case in cases:
        until(lambda frames=case.frames: server.send(identity, frames), bench.poll)
    until(lambda: bench.link.connection.wire_errors.total() >= len(cases), bench.poll)
    for case in cases:
        assert bench.link.connection.wire_errors[case.reason] > 0, case.name
