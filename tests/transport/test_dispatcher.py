"""Snapshots reach reconstruct nodes over real sockets, and come back from those that are lost."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from sci_stream.delivery import admission
from sci_stream.delivery.admission import Admission
from sci_stream.delivery.dispatch_queue import DispatchQueue
from sci_stream.errors import TransportError
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.transport.client_connection import ClientConnection, PeerEvent
from sci_stream.transport.dispatcher import Dispatcher, Settled
from sci_stream.wire.codec import encode
from sci_stream.wire.messages import CalibrationMissing, CalibrationRequest, Done, Message, Welcome
from tests.hostile_messages import hostile_messages
from tests.transport.peers import HEARTBEAT_S, SERIES, hello, send_until_counted, snapshot, until


class Bench:
    """A dispatcher and its nodes, all polled by the test's thread."""

    def __init__(
        self,
        context: zmq.Context,
        endpoint: str,
        heartbeat_s: float = HEARTBEAT_S,
        **more: Admission,
    ) -> None:
        self.context = context
        self.endpoint = endpoint
        self.heartbeat_s = heartbeat_s
        self.dispatcher = Dispatcher(
            context,
            endpoint,
            Welcome("acquire", "d", self.heartbeat_s),
            DispatchQueue(capacity=8, block=4),
            **more,
        )
        self.nodes: dict[str, ClientConnection] = {}
        self.got: dict[str, list[Message]] = {}
        self.events: list[PeerEvent] = []
        self.settled: list[Settled] = []

    def add(self, name: str, credit: int = 2, incarnation: str = "a") -> ClientConnection:
        node = ClientConnection(
            self.context,
            self.endpoint,
            hello(name, 0, incarnation),
            heartbeat_s=self.heartbeat_s,
        )
        self.nodes[name], self.got[name] = node, []
        until(lambda: node.connected, self.poll)
        if credit:
            node.handshake(hello(name, credit, incarnation))
            before = self.dispatcher.ready_nodes
            until(lambda: self.dispatcher.ready_nodes > before, self.poll)
        return node

    def poll(self) -> None:
        now_s = time.monotonic()
        self.settled += self.dispatcher.poll(now_s)
        for name, node in self.nodes.items():
            messages, events = node.receive(now_s)
            self.got[name] += messages
            self.events += events

    def seqs(self, name: str) -> list[int]:
        return [message.id.seq for message in self.got[name] if isinstance(message, Snapshot)]

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
        self.dispatcher.close()


@pytest.fixture
def bench(context: zmq.Context, free_endpoint: Callable[[], str]) -> Iterator[Bench]:
    made = Bench(context, free_endpoint())
    yield made
    made.close()


def test_snapshots_are_sent_on_credit(bench: Bench) -> None:
    node = bench.add("a", credit=2)
    for seq in range(4):
        assert bench.dispatcher.offer(snapshot(seq)) == []
    until(lambda: bench.seqs("a") == [0], bench.poll)
    node.try_send(encode(Done(series=SERIES, seq=0, ok=True, reason="")))
    until(lambda: bench.seqs("a") == [0, 1, 2], bench.poll)
    node.try_send(encode(Done(series=SERIES, seq=1, ok=True, reason="")))
    until(lambda: bench.seqs("a") == [0, 1, 2, 3], bench.poll)
    assert bench.settled == [Settled(0), Settled(1)]


def test_node_that_solves_nothing_delays_one_snapshot(
    context: zmq.Context, free_endpoint: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_LEAST_PATIENCE_S", 0.5)
    bench = Bench(context, free_endpoint())
    bench.add("good", credit=2)
    bench.add("hole", credit=1000)
    for seq in range(8):
        bench.dispatcher.offer(snapshot(seq))
    answered: set[int] = set()

    def poll() -> None:
        bench.poll()
        for seq in set(bench.seqs("good")) - answered:
            answered.add(seq)
            bench.nodes["good"].try_send(encode(Done(series=SERIES, seq=seq, ok=True, reason="")))

    until(lambda: len(bench.settled) == 8, poll)
    assert sorted(settled.seq for settled in bench.settled) == list(range(8))
    assert not any(settled.given_up for settled in bench.settled)
    assert len(bench.seqs("hole")) == 1
    bench.nodes.pop("hole").close()
    bench.add("hole", credit=1, incarnation="restarted")
    bench.nodes.pop("good").close()
    bench.dispatcher.offer(snapshot(8))
    until(lambda: bench.seqs("hole") == [8], bench.poll)
    bench.close()


def test_full_send_queue_is_no_broken_connection(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    node = bench.add("a", credit=500)
    bench.dispatcher.offer(snapshot(0))
    until(lambda: bench.seqs("a"), bench.poll)
    node.try_send(encode(Done(series=SERIES, seq=0, ok=True, reason="")))
    until(lambda: bench.settled, bench.poll)
    large = np.zeros((512, 512), np.uint16)
    for seq in range(1, 401):
        bench.dispatcher.offer(dataclasses.replace(snapshot(seq), counts=large), promised=True)
    bench.dispatcher.poll(time.monotonic())
    assert "connection broken" not in caplog.text
    assert bench.dispatcher.queue_figures["in_flight"] == 400


def test_snapshot_arrives_bit_for_bit(bench: Bench) -> None:
    bench.add("a")
    bench.dispatcher.offer(snapshot(7))
    until(lambda: bench.seqs("a"), bench.poll)
    got = bench.got["a"][0]
    assert isinstance(got, Snapshot)
    np.testing.assert_array_equal(got.counts, snapshot(7).counts)
    assert got.dispatched_ns > 0


def test_goodbye_requeues_snapshots_of_the_node(bench: Bench) -> None:
    bench.add("a")
    bench.dispatcher.offer(snapshot(0))
    until(lambda: bench.seqs("a"), bench.poll)
    bench.nodes.pop("a").close()
    bench.add("b")
    until(lambda: bench.seqs("b") == [0], bench.poll)
    got = bench.got["b"][0]
    assert isinstance(got, Snapshot)
    assert got.redelivered == 1


def test_broken_connection_is_detected_before_heartbeat_timeout(
    context: zmq.Context, free_endpoint: Callable[[], str]
) -> None:
    # Three of these are longer than `until` waits.
    bench = Bench(context, free_endpoint(), heartbeat_s=20.0)
    bench.add("a")
    bench.add("b")
    bench.dispatcher.offer(snapshot(0))
    until(lambda: bench.seqs("a") or bench.seqs("b"), bench.poll)
    holder = "a" if bench.seqs("a") else "b"
    other = "b" if holder == "a" else "a"
    crashed = bench.nodes.pop(holder)
    crashed.monitor.close()
    crashed.socket.close()
    until(lambda: bench.seqs(other) == [0], bench.poll)
    bench.close()


def test_silent_node_is_lost_after_three_heartbeats(bench: Bench) -> None:
    bench.add("a")
    bench.add("b", credit=0)
    bench.dispatcher.offer(snapshot(0))
    until(lambda: bench.seqs("a"), bench.poll)
    frozen = bench.nodes.pop("a")
    bench.nodes["b"].handshake(hello("b", 2))
    until(lambda: bench.seqs("b") == [0], bench.poll)
    frozen.close()


def test_lost_node_that_wakes_up_rejoins(bench: Bench) -> None:
    node = bench.add("a")
    del bench.nodes["a"]
    until(lambda: bench.dispatcher.ready_nodes == 0, bench.poll)
    bench.nodes["a"] = node
    until(lambda: bench.dispatcher.ready_nodes == 1, bench.poll)


def test_node_with_heartbeats_but_no_results_is_lost(
    context: zmq.Context, free_endpoint: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(context, free_endpoint(), admission=Admission(solve_timeout_s=0.2))
    bench.add("a")
    bench.dispatcher.offer(snapshot(0))
    # It joins again each time, and gets the snapshot again until that was tried often enough.
    until(lambda: bench.settled == [Settled(0, "node_failures")], bench.poll)
    assert set(bench.seqs("a")) == {0}
    assert "lost: no result for 0.2 s" in caplog.text
    assert "heartbeat timeout" not in caplog.text
    bench.close()


def test_node_whose_results_the_sink_cannot_take_is_kept(
    context: zmq.Context, free_endpoint: Callable[[], str]
) -> None:
    bench = Bench(context, free_endpoint(), admission=Admission(solve_timeout_s=0.2))
    node = bench.add("a")
    bench.dispatcher.offer(snapshot(0))
    until(lambda: bench.seqs("a"), bench.poll)
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < 0.6:
        bench.dispatcher.admission.expect_nothing(time.monotonic())
        bench.poll()
    node.try_send(encode(Done(series=SERIES, seq=0, ok=True, reason="")))
    until(lambda: bench.settled == [Settled(0)], bench.poll)
    bench.close()


def test_failed_snapshot_is_retried_then_given_up(bench: Bench) -> None:
    node = bench.add("a")
    bench.dispatcher.offer(snapshot(0))
    for attempt in range(3):
        until(lambda expected=attempt + 1: len(bench.seqs("a")) == expected, bench.poll)
        node.try_send(encode(Done(series=SERIES, seq=0, ok=False, reason="out of memory")))
    until(lambda: bench.settled == [Settled(0, "reconstruct_failed")], bench.poll)


def test_late_result_of_other_series_settles_nothing(bench: Bench) -> None:
    node = bench.add("a")
    bench.dispatcher.offer(snapshot(0))
    until(lambda: bench.seqs("a") == [0], bench.poll)
    node.try_send(encode(Done(series="series-0", seq=0, ok=True, reason="")))
    node.try_send(encode(Done(series="series-0", seq=0, ok=False, reason="late")))
    node.try_send(encode(Done(series=SERIES, seq=0, ok=True, reason="")))
    until(lambda: bench.settled, bench.poll)
    assert bench.settled == [Settled(0)]
    assert bench.seqs("a") == [0], "it was not redelivered"


def test_calibration_follows_welcome_and_request(bench: Bench) -> None:
    calibration = Calibration(np.ones((2, 4, 6), np.float32))
    bench.dispatcher.announce(calibration)
    node = bench.add("a", credit=0)
    until(lambda: bench.got["a"], bench.poll)
    got = bench.got["a"].pop()
    assert isinstance(got, Calibration)
    assert got.hash == calibration.hash
    node.try_send(encode(CalibrationRequest(hash=calibration.hash)))
    node.try_send(encode(CalibrationRequest(hash="f" * 32)))
    until(lambda: len(bench.got["a"]) == 2, bench.poll)
    assert isinstance(bench.got["a"][0], Calibration)
    assert isinstance(bench.got["a"][1], CalibrationMissing)


def test_hostile_messages_are_counted_and_survived(bench: Bench) -> None:
    bench.add("a")
    raw = bench.context.socket(zmq.DEALER)
    raw.connect(bench.endpoint)
    cases = [case for case in hostile_messages() if case.frames]
    send_until_counted(raw, cases, bench.dispatcher.wire_errors.total, bench.poll)
    for case in cases:
        assert bench.dispatcher.wire_errors[case.reason] > 0, case.name
    bench.dispatcher.offer(snapshot(0))
    until(lambda: bench.seqs("a") == [0], bench.poll)
    raw.close(linger=0)


def test_address_in_use_is_one_clear_error(bench: Bench) -> None:
    with pytest.raises(TransportError, match="in use"):
        Bench(bench.context, bench.endpoint)


def test_address_of_other_machine_is_one_clear_error(context: zmq.Context, tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="Cannot bind"):
        Bench(context, f"ipc://{tmp_path}/no/such/folder")
