"""Refused peers are reported once on both sides: another release, a duplicate name, a flood, too
many nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from sci_stream.config import PreviewSection
from sci_stream.delivery.dispatch_queue import DispatchQueue
from sci_stream.errors import TransportError, WireError
from sci_stream.transport import router
from sci_stream.transport.client_connection import ClientConnection
from sci_stream.transport.connections import MISSED_HEARTBEATS
from sci_stream.transport.dispatcher import Dispatcher
from sci_stream.transport.results_server import ResultsServer
from sci_stream.web.control_client import RigControl
from sci_stream.web.preview import WebPreview
from sci_stream.wire import header
from sci_stream.wire.codec import decode, encode
from sci_stream.wire.messages import CalibrationRequest, Heartbeat, Message, Ping, Refused, Welcome
from tests.transport.peers import hello, until

BEAT_S = 60.0
"""Nothing is said by itself in these tests."""


class Bench:
    """A server with raw sockets connected to it."""

    def __init__(self, context: zmq.Context, endpoint: str, known: tuple[str, ...] = ()) -> None:
        self._context = context
        self._endpoint = endpoint
        self.server = ResultsServer(context, endpoint, Welcome("sink", "s", BEAT_S), known=known)
        self.now_s = 1000.0
        self._raw: list[zmq.Socket[bytes]] = []

    def connect(self, identity: str = "reconstruct-0@a") -> zmq.Socket[bytes]:
        raw: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        raw.setsockopt(zmq.IDENTITY, identity.encode())
        raw.connect(self._endpoint)
        self._raw.append(raw)
        return raw

    def poll(self) -> None:
        self.server.receive(self.now_s)
        self.server.tick(self.now_s)

    def answer(self, raw: zmq.Socket[bytes]) -> Message:
        until(lambda: raw.poll(0), self.poll)
        return decode(raw.recv_multipart())

    def close(self) -> None:
        for raw in self._raw:
            raw.close(linger=0)
        self.server.close()


@pytest.fixture
def bench(context: zmq.Context, free_endpoint: Callable[[], str]) -> Iterator[Bench]:
    made = Bench(context, free_endpoint())
    yield made
    made.close()


def test_other_release_is_named_on_both_sides(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raw = bench.connect()
    other = header.SCHEMA_VERSION - 1
    with monkeypatch.context() as another_release:
        another_release.setattr(header, "SCHEMA_VERSION", other)
        said = encode(hello())
    raw.send_multipart(said)
    until(lambda: raw.poll(0), bench.poll)
    answer = raw.recv_multipart()
    assert bench.server.wire_errors == {"version": 1}
    assert not bench.server.peers
    words = (f"expected version {header.SCHEMA_VERSION}", f"got {other}", "same release")
    assert all(word in caplog.text for word in words)
    refused = decode(answer)
    assert isinstance(refused, Refused)
    assert all(word in refused.text for word in words), "a peer of this version is informed"
    with monkeypatch.context() as another_release:
        another_release.setattr(header, "SCHEMA_VERSION", other)
        with pytest.raises(WireError) as at_its_end:
            decode(answer)
    assert f"expected version {other}" in str(at_its_end.value), (
        "and a peer of another version reports it"
    )
    assert "same release" in str(at_its_end.value)


def test_refusal_is_logged_by_the_refused_node(
    bench: Bench, context: zmq.Context, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = bench.server.socket.getsockopt_string(zmq.LAST_ENDPOINT)
    dealer = ClientConnection(context, endpoint, hello(), heartbeat_s=BEAT_S)

    def poll() -> None:
        bench.poll()
        heard.extend(dealer.receive(bench.now_s)[0])

    heard: list[Message] = []
    until(lambda: dealer.connected, poll)
    bench.server.reply(b"reconstruct-0@a", Refused(reason="version", text="of another release"))
    bench.server.reply(b"reconstruct-0@a", CalibrationRequest(hash="0" * 32))
    until(lambda: heard, poll)
    assert caplog.text.count("of another release") == 1
    dealer.close()


def test_node_without_a_key_is_not_told_that_it_is_wrong(
    context: zmq.Context, caplog: pytest.LogCaptureFixture
) -> None:
    encrypted = context.socket(zmq.ROUTER)
    encrypted.curve_publickey, encrypted.curve_secretkey = zmq.curve_keypair()
    encrypted.curve_server = True
    port = encrypted.bind_to_random_port("tcp://127.0.0.1")
    dealer = ClientConnection(context, f"tcp://127.0.0.1:{port}", hello(), heartbeat_s=BEAT_S)
    until(lambda: "another program answers there" in caplog.text, lambda: dealer.receive(0.0))
    assert "key" not in caplog.text
    dealer.close()
    encrypted.close()


def test_two_nodes_of_one_name_are_named(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    first, second = bench.connect("reconstruct-0@a"), bench.connect("reconstruct-0@b")
    for _ in range(3):
        for raw, incarnation in ((first, "a"), (second, "b")):
            raw.send_multipart(encode(hello(incarnation=incarnation)))
            bench.answer(raw)
    assert set(bench.server.peers) == {b"reconstruct-0@a", b"reconstruct-0@b"}, (
        "neither replaces the other"
    )
    assert caplog.text.count("two nodes are named reconstruct-0") == 1
    assert "--index" in caplog.text


def test_restarted_node_replaces_its_predecessor(bench: Bench) -> None:
    for incarnation in "ab":
        raw = bench.connect(f"reconstruct-0@{incarnation}")
        raw.send_multipart(encode(hello(incarnation=incarnation)))
        bench.answer(raw)
    assert set(bench.server.peers) == {b"reconstruct-0@b"}


def test_flooding_node_is_not_answered(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    raw = bench.connect()
    for _ in range(1000):
        raw.send_multipart(encode(Ping(sent_ns=0)))
    until(lambda: bench.server.wire_errors["rate"] == 1000 - router._CONTROL_BURST, bench.poll)
    assert "rate limit exceeded at results: Ping" in caplog.text
    pongs = 0
    while raw.poll(0):
        raw.recv_multipart()
        pongs += 1
    assert pongs <= router._CONTROL_BURST
    bench.now_s += 1.0
    raw.send_multipart(encode(Ping(sent_ns=1)))
    bench.answer(raw)


def test_bad_messages_are_all_counted(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    raw = bench.connect()
    for _ in range(500):
        raw.send_multipart([b"nonsense", b""])
    until(lambda: bench.server.wire_errors["unknown_kind"] == 500, bench.poll)
    assert "message to the results address refused" in caplog.text


def test_too_many_nodes_are_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MAX_PEERS", 2)
    for index in range(3):
        raw = bench.connect(f"reconstruct-{index}@a")
        raw.send_multipart(encode(hello(f"reconstruct-{index}")))
        answer = bench.answer(raw)
    assert isinstance(answer, Refused)
    assert answer.reason == "too_many"
    assert len(bench.server.peers) == 2
    assert bench.server.wire_errors == {"rate": 1}


def test_nodes_of_the_rig_keep_their_places(
    context: zmq.Context, free_endpoint, monkeypatch
) -> None:
    monkeypatch.setattr(router, "MAX_PEERS", 6)
    bench = Bench(context, free_endpoint(), known=("acquire", "reconstruct-0"))
    for index in range(4):
        raw = bench.connect(f"stranger-{index}@a")
        raw.send_multipart(encode(hello(f"stranger-{index}")))
        assert isinstance(bench.answer(raw), Refused) == (index >= 2)
    raw = bench.connect("reconstruct-0@b")
    raw.send_multipart(encode(hello("reconstruct-0", incarnation="b")))
    assert isinstance(bench.answer(raw), Welcome)
    for _ in range(4 * MISSED_HEARTBEATS + 4):  # in steps: a jump would be a pause of this process
        bench.now_s += BEAT_S / 4
        bench.server.tick(bench.now_s)
    raw = bench.connect("stranger-4@a")
    raw.send_multipart(encode(hello("stranger-4")))
    assert isinstance(bench.answer(raw), Welcome), "in the place of one that is lost"
    bench.close()


def test_names_of_the_rig_take_no_more_places(
    context: zmq.Context, free_endpoint, monkeypatch
) -> None:
    """Any program that can connect can use them, and return under an identity that was replaced."""
    monkeypatch.setattr(router, "MAX_PEERS", 4)
    bench = Bench(context, free_endpoint(), known=("reconstruct-0",))
    for index in [*range(6), *range(6)]:
        raw = bench.connect(f"reconstruct-0@{index}")
        raw.send_multipart(encode(hello("reconstruct-0", incarnation=str(index))))
        bench.answer(raw)
    assert 2 <= len(bench.server.peers) <= 4
    bench.close()


def test_status_of_impossible_length_is_refused(bench: Bench) -> None:
    raw = bench.connect()
    raw.send_multipart(encode(hello()))
    assert isinstance(bench.answer(raw), Welcome)
    raw.send_multipart(encode(Heartbeat("reconstruct-0", {"device": "cpu"})))
    raw.send_multipart(
        encode(Heartbeat("reconstruct-0", {f"set.k{i}": "x" * 1000 for i in range(100)}))
    )
    until(lambda: bench.server.wire_errors["status"] == 1, bench.poll)
    (peer,) = bench.server.peers.values()
    assert peer.status == {"device": "cpu"}


def test_calibration_requests_are_rate_limited(
    context: zmq.Context, free_endpoint: Callable[[], str]
) -> None:
    endpoint = free_endpoint()
    dispatcher = Dispatcher(
        context,
        endpoint,
        Welcome("acquire", "d", BEAT_S),
        DispatchQueue(capacity=8, block=4),
    )
    raw: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    raw.connect(endpoint)
    for _ in range(100):
        raw.send_multipart(encode(CalibrationRequest(hash="0" * 32)))
    until(
        lambda: dispatcher.wire_errors["rate"] == 100 - router._CALIBRATIONS_BURST,
        lambda: dispatcher.poll(5.0),
    )
    raw.close(linger=0)
    dispatcher.close()


def test_wrong_token_is_one_clear_message_on_both_sides(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    section = PreviewSection(port=0, token="s3cret")
    preview = WebPreview(section, tmp_path)
    url = preview.start()
    try:
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(TransportError, match="token is wrong") as refused,
        ):
            RigControl(url.replace("s3cret", "secret")).nodes()
        assert "it is the [preview] token of the rig" in caplog.text
        assert "s3cret" not in caplog.text + str(refused.value)
    finally:
        preview.close()
