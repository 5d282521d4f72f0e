"""Mutated messages at every socket of a running rig: no node crashes or grows, and each message is
counted.

The corpus of `tests/hostile_messages.py` is hand-made; this module mutates valid messages at
random.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import zmq

from sci_stream.errors import WireError
from sci_stream.security.curve import SocketConfig, client_config, unencrypted
from sci_stream.security.keys import read_key_pair
from sci_stream.transport.client_connection import ClientConnection
from sci_stream.transport.results_server import ResultsServer
from sci_stream.transport.sockets import make_socket
from sci_stream.wire.codec import decode, encode
from sci_stream.wire.messages import Ping, Pong, Welcome
from tests.e2e.conftest import CommandHere
from tests.e2e.kit import RunningRig, assert_accounted_for, wait_for
from tests.e2e.test_encrypted import keys, unknown_peers
from tests.hostile_messages import good_frames
from tests.ports import free_endpoint, free_ports
from tests.rig_in_process import RunningRigSolvedHere
from tests.transport.peers import hello, until
from tests.wire_samples import samples

pytestmark = pytest.mark.rig

_MEANT = {"series_start", "calibration", "done"}
"""Kinds that a node rightly acts on if they stay valid: keys decide who may send at all."""


def mutated(seed: int) -> Iterator[list[bytes]]:
    """Yield valid messages with one to three mutations."""
    draw = random.Random(seed)
    good = [good_frames(kind) for kind in sorted(samples()) if kind not in _MEANT]
    while True:
        frames = list(draw.choice(good))
        for _ in range(draw.randint(1, 3)):
            frames = _changed(frames, draw)
        yield frames


def _changed(frames: list[bytes], draw: random.Random) -> list[bytes]:
    which = draw.randrange(len(frames))
    part = frames[which]
    at = draw.randrange(len(part) + 1)
    match draw.randrange(7):
        case 0 if part:  # bits
            flipped = bytearray(part)
            flipped[draw.randrange(len(part))] ^= 1 << draw.randrange(8)
            part = bytes(flipped)
        case 1:  # cut
            part = part[:at]
        case 2:  # noise
            part = part[:at] + draw.randbytes(draw.randint(1, 64)) + part[at:]
        case 3:  # part of another message
            part = part[:at] + good_frames(draw.choice(sorted(samples())))[1][at:]
        case 4:  # one frame more
            return [*frames[: which + 1], part, *frames[which + 1 :]]
        case 5 if len(frames) > 1:  # one frame less
            return [*frames[:which], *frames[which + 1 :]]
        case _:  # in another order
            frames = list(frames)
            draw.shuffle(frames)
            return frames
    return [*frames[:which], part, *frames[which + 1 :]]


def reason_of(frames: list[bytes]) -> str | None:
    """Return why a message is refused; None if it is still valid."""
    try:
        decode(frames)
    except WireError as error:
        return error.reason
    return None


def besiege(
    rig: RunningRig, endpoint: str, n: int, seed: int, configure: SocketConfig
) -> Counter[str]:
    """Send mutated messages to an address; return the number that must be refused there,
    by reason.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sender = make_socket(
        context,
        zmq.DEALER,
        max_message_bytes=1 << 20,
        heartbeat_s=5.0,
        send_queue=100,
        receive_queue=1000,
    )
    configure(sender)
    sender.connect(endpoint)
    expected: Counter[str] = Counter()
    source = mutated(seed)
    try:
        while expected.total() < n:
            frames = next(source)
            reason = reason_of(frames)
            if reason is None:
                continue
            expected[reason] += 1
            assert sender.poll(60_000, zmq.POLLOUT)
            sender.send_multipart(frames)
            while sender.poll(0):
                sender.recv_multipart()
        # The answer to this proves that everything before it was read; closing earlier would
        # discard data in flight.
        sender.send_multipart(encode(Ping(sent_ns=n)))
        answered = False
        while not answered:
            assert sender.poll(60_000), "the last message is answered"
            answered = isinstance(decode(sender.recv_multipart()), Pong)
    finally:
        sender.close(linger=0)
        context.term()
    return expected


@contextlib.contextmanager
def pester(endpoint: str, n: int, seed: int, configure: SocketConfig) -> Iterator[None]:
    """Subscribe to n topics that the taps never publish, and stay connected so that no subscription
    is discarded.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    listener = make_socket(
        context,
        zmq.XSUB,
        max_message_bytes=1 << 20,
        heartbeat_s=5.0,
        send_queue=n,
        receive_queue=1000,
    )
    configure(listener)
    listener.connect(endpoint)
    draw = random.Random(seed)
    source = mutated(seed)
    try:
        for _ in range(n):
            listener.send(b"\x01" + next(source)[0][:40] + draw.randbytes(4))
        yield
        assert not listener.poll(0), "the taps published nothing"
    finally:
        listener.close(linger=0)
        context.term()


def knock(port: int, n: int, seed: int) -> None:
    """Send noise and broken requests to an HTTP address and read every answer."""
    draw = random.Random(seed)
    good = (
        b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
        b"Content-Length: 5\r\n\r\n12345"
    )
    for _ in range(n):
        at = draw.randrange(len(good))
        broken = good[:at] + draw.randbytes(draw.randint(1, 32)) + good[at + draw.randint(0, 4) :]
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
        ):
            connection.sendall(broken)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass


@pytest.mark.parametrize(
    ("n", "encrypted"),
    [
        pytest.param(
            300, True, id="encrypted"
        ),  # `tests/e2e/test_outlets.py` counts those that arrive in plain
        pytest.param(
            10_000, True, id="many, encrypted", marks=[pytest.mark.slow, pytest.mark.timeout(900)]
        ),
        pytest.param(
            10_000, False, id="many, plain", marks=[pytest.mark.slow, pytest.mark.timeout(900)]
        ),
    ],
)
def test_rig_survives_mutated_messages(
    tmp_path: Path, command_here: CommandHere, n: int, encrypted: bool
) -> None:
    acquire, sink, reconstruct, page = free_ports(4)
    changes: dict[str, Any] = {
        "network": {"heartbeat_s": 5.0},
        "reconstruct": {"iterations": 1},
        "health": {
            "enabled": True,
            "acquire_port": acquire,
            "sink_port": sink,
            "reconstruct_port": reconstruct,
        },
        "preview": {"enabled": True, "port": page},
    }
    configure = unencrypted
    if encrypted:
        changes["security"] = security = keys(tmp_path, command_here)
        # Only a peer with an allowed key gets this far.
        configure = client_config(read_key_pair(tmp_path / "key"), str(security["sink_key"]))
    with RunningRigSolvedHere(tmp_path, changes) as rig:
        wait_for(lambda: reconstructed(sink) >= 10, "every node has reached its working size")
        network = rig.rig.network
        before = {
            name: (process.pid, process.memory_info().rss) for name, process in rig.nodes().items()
        }
        for port in (acquire, sink, reconstruct, page):
            knock(port, n // 10, 3)
        refused = besiege(rig, network.results, n, 1, configure)
        besieged = besiege(rig, network.dispatch, n, 2, configure)
        with pester(network.taps, n, 4, configure):
            wait_until_counted(rig, sink, refused + Counter(subscription=n))
        refused["subscription"] = n
        if encrypted:
            with unknown_peers(rig) as (sender, listener):
                for _, frames in zip(range(n), mutated(5), strict=False):
                    with contextlib.suppress(
                        zmq.Again
                    ):  # ZeroMQ stops retrying a peer that rejects the handshake
                        sender.send_multipart(frames or [b""], zmq.NOBLOCK)
                wait_for(lambda: counted(sink).get("handshake"), "the unknown peers are refused")
                assert not listener.poll(0), "the taps sent nothing to an unknown peer"
        wait_until_counted(rig, acquire, besieged)
        assert without_unknown_peers(counted(acquire)) == besieged
        after = {
            name: (process.pid, process.memory_info().rss) for name, process in rig.nodes().items()
        }
        rig.process.terminate()
        summary = rig.finish(timeout_s=120.0)
        if encrypted:
            assert read_key_pair(tmp_path / "key").secret.decode() not in rig.output
    assert {name: pid for name, (pid, _) in after.items()} == {
        name: pid for name, (pid, _) in before.items()
    }
    for name in after:
        assert after[name][1] < before[name][1] + (32 << 20), f"{name} grew"
    ledger = assert_accounted_for(summary)
    # A busy machine solves fewer than the camera takes, and the rest outlasts the drain.
    assert set(ledger["dropped"]) <= {"queue_full", "drain_timeout"}
    assert without_unknown_peers(summary["wire_errors"]) == refused
    assert summary["restarts"] == 0
    if n > 1000:
        # The log names the cause but cannot be flooded.
        assert rig.output.count("message to the dispatch address refused") < n / 2


def counted(port: int) -> dict[str, float]:
    """Return a node's refused messages by reason, from its metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        text = response.read().decode()
    pattern = r'^sci_stream_wire_errors_total\{reason="(\w+)"\} (\S+)$'
    return {reason: float(count) for reason, count in re.findall(pattern, text, re.MULTILINE)}


def wait_until_counted(rig: RunningRig, port: int, expected: Counter[str]) -> None:
    """Wait until a node has counted all messages sent to it."""
    try:
        wait_for(lambda: sum_of(counted(port)) >= expected.total(), "all are counted")
    except AssertionError as error:
        raise AssertionError(f"{error}: {counted(port)} of {expected}\n{rig.output}") from None


def sum_of(reasons: Mapping[str, float]) -> float:
    """Return the total without messages that break no rule of the codec."""
    return sum(without_unknown_peers(reasons).values())


def without_unknown_peers(reasons: Mapping[str, float]) -> dict[str, float]:
    """Return the reasons that concern the content of a message."""
    return {
        reason: count
        for reason, count in reasons.items()
        if reason not in {"unexpected_kind", "handshake"}
    }


@pytest.mark.parametrize("n", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_node_survives_mutated_messages_from_sink(n: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint = free_endpoint()
    server = ResultsServer(context, endpoint, Welcome("sink", "s", 5.0))
    dealer = ClientConnection(context, endpoint, hello(), heartbeat_s=5.0)

    def poll() -> None:
        now_s = time.monotonic()
        server.receive(now_s)
        server.tick(now_s)
        dealer.receive(now_s)

    try:
        until(lambda: dealer.connected, poll)
        (identity,) = server.peers
        source = mutated(6)
        expected: Counter[str] = Counter()
        while expected.total() < n:
            frames = next(source)
            reason = reason_of(frames)
            if reason is not None:
                expected[reason] += 1
                until(lambda frames=frames: server.send(identity, frames), poll)
                poll()
        until(lambda: dealer.wire_errors.total() >= n, poll)
        assert dealer.wire_errors == expected
        assert dealer.connected
    finally:
        dealer.close()
        server.close()
        context.term()


def reconstructed(port: int) -> float:
    """Return the number of snapshots that the sink has of this series;
    0 while it does not answer.
    """
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
            text = response.read().decode()
    except OSError:
        return 0.0
    found = re.search(
        r'^sci_stream_snapshots_total\{outcome="reconstructed"\} (\S+)$', text, re.MULTILINE
    )
    return float(found[1]) if found else 0.0
