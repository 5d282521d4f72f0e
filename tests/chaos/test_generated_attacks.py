"""Generated HTTP requests and messages at a running rig: no node crashes or grows, and each is
answered in words.

`test_mutated_messages.py` changes bytes, most of which the codec refuses. Here messages are
well-formed and single values are changed, so that they reach the nodes; requests follow the grammar
of HTTP, with some parts out of place.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import socket
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from sci_stream.errors import WireError
from sci_stream.transport.sockets import make_socket
from sci_stream.wire.codec import decode, encode
from sci_stream.wire.messages import Ping, Pong
from tests.chaos.test_mutated_messages import counted, reconstructed
from tests.e2e.kit import RunningRig, assert_accounted_for, wait_for
from tests.hostile_messages import good_frames
from tests.ports import free_ports
from tests.wire_samples import samples

pytestmark = pytest.mark.rig

_MAX_GROWTH_BYTES = 48 << 20
# A node rightly acts on these: keys decide who may send at all.
_MEANT = {b"series_start", b"calibration", b"done"}

VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31 - 1,
        2**31,
        2**48,
        2**53 + 1,
        2**63 - 1,
        2**63,
        2**64 - 1,
        -(2**63),
    ),
    *(0.5, -0.0, 1e-320, 1e300, -1e300, float("inf"), float("-inf"), float("nan")),
    *(
        "",
        "\0",
        "a" * 5000,
        "../../etc/passwd",
        "run-1",
        "\x1b[2J",
        "é" * 100,
        "9" * 400,
        "NaN",
        "{}",
    ),
    *(b"", b"\xff\xfe", [], [[]] * 8, {}, {"": {}}, {"a": [1, {"b": None}]}, list(range(300))),
)


def changed_messages(seed: int) -> Iterator[list[bytes]]:
    """Yield well-formed messages with one to three values changed, at any depth; payloads keep a
    fitting checksum.
    """
    draw = random.Random(seed)
    kinds = [good_frames(kind) for kind in sorted(samples())]
    while True:
        frames = list(draw.choice(kinds))
        header = msgpack.unpackb(frames[1])
        for _ in range(draw.randint(1, 3)):
            _change(header, draw)
        for at in range(2, len(frames)):
            if draw.random() < 0.3:
                size = draw.choice((0, 1, len(frames[at]), 2 * len(frames[at])))
                frames[at] = draw.randbytes(size)
                with contextlib.suppress(KeyError, IndexError, TypeError, AttributeError):
                    header["payloads"][at - 2]["crc32"] = zlib.crc32(frames[at])
        try:
            frames[1] = msgpack.packb(header)
        except (ValueError, TypeError, OverflowError, UnicodeEncodeError):
            continue
        yield frames


def _change(node: Any, draw: random.Random) -> None:
    """Change a value somewhere in a header in place."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and draw.random() < 0.7:
            node = node[key]
            continue
        match draw.randrange(6):
            case 0 if isinstance(node, dict):
                del node[key]
            case 1 if isinstance(node, dict):
                node[draw.choice(("x", "payloads", "v", "id", "__class__", ""))] = copy.deepcopy(
                    draw.choice(VALUES)
                )
            case 2:
                node[key] = node[draw.choice(keys)]
            case _:
                node[key] = copy.deepcopy(draw.choice(VALUES))
        return


METHODS = (
    "GET",
    "POST",
    "HEAD",
    "OPTIONS",
    "PUT",
    "DELETE",
    "TRACE",
    "CONNECT",
    "PRI",
    "get",
    "",
    "G\0T",
    "A" * 300,
)
PATHS = (
    *("/", "/status", "/healthz", "/readyz", "/metrics", "/history", "/live", "/control/set"),
    *(
        "/control/do",
        "/control/recording",
        "/control/still",
        "/control/tone",
        "/static/live.js",
        "/static/../app.py",
    ),
    *(
        "/static/%2e%2e/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/%00",
        "//",
        "*",
        "http://127.0.0.1/status",
    ),
    *(
        "/recordings",
        "/recordings/..%2f..%2frig.toml",
        "/%",
        "/%zz",
        "/" + "a" * 9000,
        "/status?" + "a=1&" * 2000,
    ),
    *(
        "/?token=" + "x" * 500,
        "/status?token=%ff%fe",
        "/é",
        "/\x7f",
        "/status#x",
        "/control/" + "%2f" * 50,
    ),
)
HEADERS = (
    *(
        "Content-Length: -1",
        "Content-Length: 99999999999999999999",
        "Content-Length: 5",
        "Content-Length: 5, 6",
    ),
    *(
        "Content-Length: 0x5",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "Expect: 100-continue",
    ),
    *(
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: "
        "13\r\nSec-WebSocket-Key: eA==",
    ),
    *(
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: "
        "99\r\nSec-WebSocket-Key: \xff",
    ),
    *(
        "Upgrade: h2c",
        "Connection: close",
        "Connection: " + "x" * 900,
        "Range: bytes=0-,5-2,-9",
        "Range: bytes=a",
    ),
    *(
        "Origin: http://evil.example",
        "Origin: http://[",
        "Cookie: sci=\x01; ;=; a",
        "Cookie: " + "a=b; " * 400,
    ),
    *(
        "Authorization: Bearer ",
        "Authorization: Bearer \xff\xfe",
        "Authorization: Basic Og==",
        "Accept: text/html",
    ),
    *(
        "Content-Type: application/json",
        "Content-Type: multipart/form-data; boundary=",
        "If-None-Match: *",
    ),
    *(
        "If-Modified-Since: Thu, 99 Foo 9999 99:99:99 GMT",
        ": empty",
        "No colon",
        " folded",
        "X" * 3000 + ": y",
    ),
)
BODIES = (
    *(
        "",
        "{}",
        "[]",
        "null",
        '{"node": "sink"}',
        '{"node": "sink", "parameters": {"recording": "x"}}',
        "[" * 9000,
    ),
    *(
        '{"node": "reconstruct", "parameters": {"iterations": 1e999}}',
        '{"node": {"a": 1}}',
        '{"a": "\\ud800"}',
        "\0" * 99,
    ),
    *(
        '{"on": 3}',
        '{"exposure_ev": NaN}',
        '{"exposure_ev": -1e308}',
        "5\r\nhello\r\n0\r\n\r\n",
        "ffffffffff\r\nx",
        "x" * 70_000,
    ),
)
HOSTS = (
    "127.0.0.1",
    "localhost",
    "evil.example",
    "[::1",
    "127.0.0.1:99999",
    "",
    "a b",
    "127.0.0.1\x00",
)


def requests(seed: int) -> Iterator[bytes]:
    """Yield HTTP requests made of parts that are valid, odd or broken; a third has bytes changed
    too.
    """
    draw = random.Random(seed)
    while True:
        method = draw.choice(METHODS[:2]) if draw.random() < 0.7 else draw.choice(METHODS)
        version = (
            "HTTP/1.1"
            if draw.random() < 0.9
            else draw.choice(("HTTP/1.0", "HTTP/2.0", "HTTP/9", "", "http/1.1"))
        )
        lines = [f"{method} {draw.choice(PATHS)} {version}"]
        lines += [f"Host: {HOSTS[0] if draw.random() < 0.8 else draw.choice(HOSTS)}"] * (
            draw.random() < 0.95
        )
        lines += draw.sample(HEADERS, draw.choice((0, 1, 1, 2, 3)))
        body = draw.choice(BODIES)
        if method == "POST" and draw.random() < 0.7:
            lines += [
                "Content-Type: application/json",
                f"Content-Length: {len(body.encode('utf-8', 'surrogatepass'))}",
            ]
        end = "\r\n" if draw.random() < 0.95 else "\n"
        request = bytearray((end.join(lines) + end + end + body).encode("latin-1", "replace"))
        if draw.random() < 0.3:
            for _ in range(draw.randint(1, 6)):
                at = draw.randrange(len(request))
                request[at : at + draw.randint(0, 2)] = draw.randbytes(draw.randint(0, 3))
        yield bytes(request)


def ask(port: int, request: bytes, source: str) -> tuple[int, bytes]:
    """Send a request from an address of this host; return the status, 0 if closed without an
    answer, and the rest.
    """
    received = b""
    with contextlib.suppress(OSError), socket.socket() as connection:
        connection.settimeout(20.0)
        connection.bind((source, 0))
        connection.connect(("127.0.0.1", port))
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        while (part := connection.recv(65536)) and len(received) < 1 << 16:
            received += part
            if b"\r\n\r\n" in received and received.startswith(b"HTTP/1.1 101"):
                break
    head, _, rest = received.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    return (int(words[1]), rest) if len(words) > 1 and words[1].isdigit() else (0, rest)


def attack_pages(ports: list[int], n: int, seed: int) -> Counter[int]:
    """Send n requests to the pages in turn; return the answers by status."""
    answers: Counter[int] = Counter()
    source = requests(seed)
    for number in range(n):
        request = next(source)
        # Each address of this host has a rate of its own; at one rate most requests would go no
        # further.
        status, rest = ask(
            ports[number % len(ports)], request, f"127.0.{number % 97}.{2 + number % 200}"
        )
        answers[status] += 1
        assert rest or not 400 <= status < 500 or request.startswith(b"HEAD"), (
            f"{status} without a word: {request!r}"
        )
    return answers


def attack_socket(endpoint: str, n: int, seed: int) -> Counter[str]:
    """Send n changed messages to an address; return how many the codec refuses, by reason, and how
    many it does not.
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
    sender.connect(endpoint)
    sent: Counter[str] = Counter()
    source = changed_messages(seed)
    try:
        while sent.total() < n:
            frames = next(source)
            try:
                decode(frames)
                reason = "valid"
            except WireError as error:
                reason = error.reason
            if reason == "valid" and frames[0] in _MEANT:
                continue
            sent[reason] += 1
            assert sender.poll(60_000, zmq.POLLOUT)
            sender.send_multipart(frames)
            while sender.poll(0):
                sender.recv_multipart()
        sender.send_multipart(
            encode(Ping(sent_ns=n))
        )  # its answer shows that all before it was read
        deadline_s = time.monotonic() + 120.0
        while True:
            assert sender.poll(60_000), "the last word is answered"
            assert time.monotonic() < deadline_s
            if isinstance(decode(sender.recv_multipart()), Pong):
                return sent
    finally:
        sender.close(linger=0)
        context.term()


@pytest.mark.parametrize(
    "n", [300, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_rig_survives_generated_requests_and_messages(tmp_path: Path, n: int) -> None:
    acquire, sink, reconstruct, page = free_ports(4)
    changes: dict[str, Any] = {
        "network": {"heartbeat_s": 5.0},
        "reconstruct": {"solver": "identity", "iterations": 1},
        "camera": {"options": {"snapshot_rate_hz": 5.0}},
        "health": {
            "enabled": True,
            "acquire_port": acquire,
            "sink_port": sink,
            "reconstruct_port": reconstruct,
        },
        "preview": {"enabled": True, "port": page},
    }
    with RunningRig(tmp_path, changes) as rig:
        wait_for(lambda: reconstructed(sink) >= 10, "every node has grown to its size")
        before = {
            name: (process.pid, process.memory_info().rss) for name, process in rig.nodes().items()
        }
        answers = attack_pages([page, sink, page, acquire, page, reconstruct], n, seed=1)
        refused = attack_socket(rig.rig.network.results, n // 2, seed=2)
        refused += attack_socket(rig.rig.network.dispatch, n // 2, seed=3)
        wait_for(lambda: reconstructed(sink) >= 20, "it continues")
        after = {
            name: (process.pid, process.memory_info().rss) for name, process in rig.nodes().items()
        }
        # The figures are those of the last report, which is written twice a second.
        wait_for(
            lambda: (Counter(counted(sink)) + Counter(counted(acquire))).total() > 0,
            "refusals are counted",
        )
        rig.process.terminate()
        summary = rig.finish(timeout_s=120.0)
    assert answers.total() == n
    assert not [status for status in answers if status >= 500 and status not in {501, 503, 505}], (
        answers
    )
    assert answers[200] > 0
    assert {name: pid for name, (pid, _) in after.items()} == {
        name: pid for name, (pid, _) in before.items()
    }
    grown = {name: (after[name][1] - before[name][1]) >> 20 for name in after}
    assert all(after[name][1] < before[name][1] + _MAX_GROWTH_BYTES for name in after), grown
    assert refused["valid"] > n // 100, "some reach the nodes"
    assert summary["restarts"] == 0
    assert_accounted_for(summary)
    assert json.dumps(summary)
