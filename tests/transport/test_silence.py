"""Causes of silence: a cut link, a slow link, a hanging peer, or a pause of this process."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import zmq

from sci_stream.delivery.dispatch_queue import DispatchQueue
from sci_stream.transport.client_connection import ClientConnection, PeerEvent, identity_of
from sci_stream.transport.connections import (
    MISSED_HEARTBEATS,
    PauseDetector,
    TcpProgress,
    tcp_progress,
)
from sci_stream.transport.dispatcher import Dispatcher
from sci_stream.transport.results_server import ResultsServer
from sci_stream.wire.codec import encode
from sci_stream.wire.messages import Heartbeat, Message, Welcome
from tests.transport.cable import Cable
from tests.transport.peers import hello, snapshot, until

BEAT_S = 0.5


class Bench:
    """A server, a cable and a client, polled by the test with a fake clock."""

    def __init__(self, context: zmq.Context, endpoint: str) -> None:
        self.server = ResultsServer(context, endpoint, Welcome("sink", "s", BEAT_S))
        self.cable = Cable(endpoint)
        self.dealer = ClientConnection(context, self.cable.endpoint, hello(), heartbeat_s=BEAT_S)
        self.now_s = 100.0
        self.got: list[Message] = []
        self.events: list[PeerEvent] = []

    def poll(self) -> None:
        """Poll both sides without advancing the clock."""
        self.server.receive(self.now_s)
        self.server.tick(self.now_s)
        messages, events = self.dealer.receive(self.now_s)
        self.got += messages
        self.events += events

    def pass_time(self, seconds: float) -> None:
        """Advance the clock in the steps of a node's loop."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += BEAT_S / 5
            self.poll()

    def close(self) -> None:
        self.dealer.close()
        self.server.close()
        self.cable.close()


@pytest.fixture
def bench(context: zmq.Context, free_endpoint: Callable[[], str]) -> Iterator[Bench]:
    made = Bench(context, free_endpoint())
    until(lambda: made.dealer.connected, made.poll)
    yield made
    made.close()


def test_silently_cut_connection_is_reestablished(bench: Bench) -> None:
    bench.events.clear()
    bench.cable.cut()
    until(lambda: bench.dealer.reopened, lambda: bench.pass_time(BEAT_S / 5))
    until(
        lambda: PeerEvent.BACK in bench.events, bench.poll
    )  # no time passes while a busy machine connects
    assert bench.dealer.reopened == 1
    assert bench.cable.connections == 2
    assert bench.events == [PeerEvent.BACK]
    assert len(bench.server.peers) == 1


def test_hanging_peer_is_not_reconnected_repeatedly(bench: Bench) -> None:
    # Its host answers, the process does not: each connection is given longer than the one before.
    for _ in range(1000):
        bench.now_s += BEAT_S / 5
        bench.dealer.receive(bench.now_s)
        if bench.dealer.reopened:
            until(lambda: bench.dealer.monitor.open, lambda: bench.dealer.receive(bench.now_s))
    assert 2 <= bench.dealer.reopened <= 7, "in 100 s, after 1.5, 3, 6, 12, 24, 30 and 30 s"


def test_slow_transfer_is_not_silence(bench: Bench) -> None:
    bench.cable.allowance = 0
    large = dataclasses.replace(snapshot(0), counts=np.ones((256, 256), np.uint16))
    (identity,) = bench.server.peers
    assert bench.server.send(identity, encode(large))
    bench.events.clear()
    line = bench.dealer.monitor
    for _ in range(4 * MISSED_HEARTBEATS):
        before = line.progress()
        assert before is not None
        bench.cable.allowance = 1000
        until(
            lambda before=before: (line.progress() or before).arrived > before.arrived, lambda: None
        )
        bench.pass_time(BEAT_S)
    assert bench.dealer.connected
    assert bench.got == []
    assert bench.dealer.reopened == 0
    bench.cable.allowance = None
    until(lambda: bench.got, bench.poll)
    # The same time without a byte is silence.
    bench.cable.allowance = 0
    until(lambda: bench.dealer.reopened, lambda: bench.pass_time(BEAT_S / 5))
    assert not bench.dealer.connected


def test_paused_node_keeps_its_peers(bench: Bench) -> None:
    bench.events.clear()
    bench.now_s += 100 * BEAT_S
    # First the client, which has received nothing since.
    bench.dealer.receive(bench.now_s)
    assert bench.dealer.connected
    assert bench.server.tick(bench.now_s) == []
    assert bench.dealer.reopened == 0


def test_server_that_receives_nothing_keeps_its_peers(bench: Bench) -> None:
    for _ in range(5 * 2 * MISSED_HEARTBEATS):
        bench.now_s += BEAT_S / 5
        assert bench.server.tick(bench.now_s, receiving=False) == []
    bench.poll()
    assert not any(peer.lost for peer in bench.server.peers.values())


def test_pause_is_longer_than_a_heartbeat() -> None:
    pauses = PauseDetector(heartbeat_s=1.0)
    assert [pauses.pause_s(now_s) for now_s in (5.0, 5.5, 6.5, 9.0, 9.5)] == [
        0.0,
        0.0,
        0.0,
        2.5,
        0.0,
    ]


def test_hello_under_foreign_identity_changes_nothing(bench: Bench, context: zmq.Context) -> None:
    unknown = context.socket(zmq.DEALER)
    unknown.setsockopt(zmq.IDENTITY, b"left over")
    unknown.connect(bench.server.socket.getsockopt_string(zmq.LAST_ENDPOINT))
    unknown.send_multipart(encode(hello(credit=2)))
    before = dict(bench.server.peers)
    until(lambda: bench.server.wire_errors["identity"], bench.poll)
    assert set(bench.server.peers) == set(before)
    unknown.close(linger=0)


def test_hello_without_identity_is_ignored(
    context: zmq.Context, free_endpoint: Callable[[], str]
) -> None:
    bench = Bench(context, free_endpoint())
    leftovers = context.socket(zmq.DEALER)  # as ZeroMQ delivers those of a replaced connection
    leftovers.connect(bench.server.socket.getsockopt_string(zmq.LAST_ENDPOINT))
    leftovers.send_multipart(encode(hello()))
    leftovers.send_multipart([b"nonsense", b""])
    until(lambda: bench.server.wire_errors["unknown_kind"], bench.poll)
    assert bench.server.wire_errors["identity"] == 0
    assert bench.server.peers.keys() <= {identity_of(bench.dealer.hello)}
    leftovers.close(linger=0)
    bench.close()


def test_tcp_progress_counts_bytes_where_known() -> None:
    assert tcp_progress(-1) is None
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
    ):
        far, _ = server.accept()
        with far:
            before = tcp_progress(near.fileno())
            assert before is not None
            near.sendall(b"12345")
            far.sendall(b"123")
            after = TcpProgress(before.acknowledged + 5, unsent=0, arrived=1)
            until(lambda: tcp_progress(near.fileno()) == after, lambda: time.sleep(0.001))
            assert near.recv(10) == b"123", "it only read the statistics"
    one, other = socket.socketpair()
    with one, other:
        assert tcp_progress(one.fileno()) is None


class Watchers:
    """A dispatcher and two nodes with a fake clock."""

    def __init__(self, context: zmq.Context, endpoint: str) -> None:
        queue: DispatchQueue = DispatchQueue(capacity=8, block=4)
        self.dispatcher = Dispatcher(context, endpoint, Welcome("acquire", "d", BEAT_S), queue)
        self.nodes = {
            name: ClientConnection(context, endpoint, hello(name, 2), heartbeat_s=BEAT_S)
            for name in "ab"
        }
        self.now_s = 100.0

    def poll(self) -> None:
        self.dispatcher.poll(self.now_s)


@pytest.fixture
def watchers(context: zmq.Context, free_endpoint: Callable[[], str]) -> Iterator[Watchers]:
    made = Watchers(context, free_endpoint())

    def all_turn() -> None:
        made.poll()
        for node in made.nodes.values():
            node.receive(made.now_s)

    until(lambda: made.dispatcher.ready_nodes == 2, all_turn)
    yield made
    for node in made.nodes.values():
        node.close()
    made.dispatcher.close()


def test_frozen_node_is_lost_after_three_heartbeats(watchers: Watchers) -> None:
    watchers.dispatcher.offer(snapshot(0))
    speaking = watchers.nodes["b"]
    until(lambda: watchers.dispatcher.queue_figures["in_flight"] == 1, watchers.poll)
    while any(speaking.receive(watchers.now_s)):
        pass
    peers = watchers.dispatcher.peers
    # Counted from the last sign of the other node: one may still have been on its way.
    while watchers.now_s + BEAT_S / 4 <= peers[b"a@a"].heard_s + MISSED_HEARTBEATS * BEAT_S:
        watchers.now_s += BEAT_S / 4
        heard = peers[b"b@a"].heard_s
        speaking.try_send(encode(Heartbeat(node="b", status={})))
        until(lambda heard=heard: peers[b"b@a"].heard_s != heard, watchers.poll)
        silent_s = watchers.now_s - peers[b"a@a"].heard_s
        assert watchers.dispatcher.ready_nodes == 2, f"lost after {silent_s / BEAT_S} heartbeats"
    watchers.now_s += BEAT_S / 4
    watchers.poll()
    assert watchers.dispatcher.ready_nodes == 1
