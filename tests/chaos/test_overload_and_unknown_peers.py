"""Several faults at once: overload, settings, crashes of two nodes; and unknown peers in any
number.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from sci_stream.wire.codec import encode
from sci_stream.wire.messages import Hello
from tests.e2e.kit import RunningRig, assert_accounted_for, merged
from tests.e2e.test_overload import BURST, resident_mib
from tests.ports import free_ports

pytestmark = [pytest.mark.rig, pytest.mark.slow, pytest.mark.timeout(600)]

_GREETING = b"\xff" + b"\0" * 8 + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" * 32


def test_settings_and_two_crashes_at_once_under_overload(tmp_path: Path) -> None:
    (page,) = free_ports(1)
    tiny = {
        "camera": {"options": {"width_px": 16, "height_px": 16}},
        "preview": {"enabled": True, "port": page},
    }
    with RunningRig(tmp_path, merged(BURST, tiny)) as rig:
        rig.wait_for_count("reconstructed", 5)
        early = resident_mib(rig)
        for iterations, pair in enumerate(
            itertools.combinations(("acquire", "reconstruct-0", "sink"), 2), start=5
        ):
            body = {"node": "reconstruct-0", "parameters": {"iterations": iterations}}
            request = Request(f"http://127.0.0.1:{page}/control/set", json.dumps(body).encode())
            request.add_header("Content-Type", "application/json")
            assert json.load(urlopen(request, timeout=60))["ok"]
            for node in pair:
                rig.kill(node)
            rig.wait_until(
                f"{iterations} iterations",
                lambda report, number=iterations: report.get("iterations") == number,
            )
        late = resident_mib(rig)
        rig.process.terminate()
        summary = rig.finish(120)
    assert_accounted_for(summary)
    assert [change["new"] for change in summary["changes"] if "again" not in change["who"]] == [
        5,
        6,
        7,
    ]
    assert all(late[node] < early[node] + 64 for node in early)


def say_hello(connection: socket.socket, name: str) -> None:
    """Say HELLO on a connection as a DEALER of ZeroMQ would, which takes three descriptors."""
    incarnation = os.urandom(4).hex()

    def property_(key: bytes, value: bytes) -> bytes:
        return bytes([len(key)]) + key + struct.pack(">I", len(value)) + value

    identity = f"{name}@{incarnation}".encode()
    ready = b"\x05READY" + property_(b"Socket-Type", b"DEALER") + property_(b"Identity", identity)
    frames = [bytes(frame) for frame in encode(Hello(name, "reconstruct", incarnation, credit=4))]
    connection.sendall(_GREETING + bytes([4, len(ready)]) + ready)
    answer = b""
    while b"READY" not in answer:
        answer += connection.recv(4096) or b"READY"
    for more, frame in zip([1] * (len(frames) - 1) + [0], frames, strict=True):
        size = (
            bytes([more | 2]) + struct.pack(">Q", len(frame))
            if len(frame) > 255
            else bytes([more, len(frame)])
        )
        connection.sendall(size + frame)


@contextlib.contextmanager
def unknown_peers(rig: RunningRig, n: int) -> Iterator[None]:
    """Let ``n`` unknown peers come to each address, hold on for a while, leave, and come again."""
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            with contextlib.ExitStack() as present:
                for index in range(n):
                    for endpoint in map(
                        urlsplit, (rig.rig.network.dispatch, rig.rig.network.results)
                    ):
                        if over.is_set():
                            return
                        with contextlib.suppress(OSError):
                            address = endpoint.hostname, endpoint.port
                            say_hello(
                                present.enter_context(socket.create_connection(address, 2)),
                                f"n{index}",
                            )
                over.wait(3)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("n", [10, 257, 1000])
def test_crashed_nodes_return_among_unknown_peers(tmp_path: Path, n: int) -> None:
    with RunningRig(tmp_path, {"policy": {"mode": "record"}}) as rig:
        rig.wait_for_count("reconstructed", 5)
        with unknown_peers(rig, n):
            time.sleep(5)
            for node, count in (("reconstruct-0", "reconstructed"), ("acquire", "acquired")):
                rig.kill(node)
                reached = next(rig.reports())[f"ledger.{count}"]
                report = rig.wait_for_count(count, reached + 5)
            assert sum(key.startswith("nodes.") for key in report) <= 256
            rig.process.terminate()
            assert_accounted_for(rig.finish(120))
