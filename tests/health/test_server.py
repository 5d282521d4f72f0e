"""The health server reports liveness, readiness and status; clients without the token learn
nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from sci_stream.errors import TransportError
from sci_stream.health import Health, NodeMetrics
from sci_stream.health.report import ALIVE_WITHIN_S
from sci_stream.health.server import HealthConnection, HealthServer
from tests import plain_http
from tests.chaos.test_generated_attacks import attack_pages


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Node:
    health: Health
    clock: Clock
    server: HealthServer

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.server.url.rpartition(":")[2])

    def get(self, path: str, **headers: str) -> httpx.Response:
        return plain_http.get(self.server.url + path, headers=headers, timeout=60)


@pytest.fixture
def node() -> Iterator[Node]:
    clock = Clock()
    health = Health(NodeMetrics("sink", "sink"), clock)
    server = HealthServer(health, "127.0.0.1", 0)
    yield Node(health, clock, server)
    server.close()


def test_node_is_live_while_loop_runs_and_ready_when_reported(node: Node) -> None:
    assert node.get("/healthz").status_code == 200
    starting = node.get("/readyz")
    assert (starting.status_code, starting.text) == (503, "starting\n")
    node.health.report("", {"state": "running"}, {"acquired": 3})
    assert node.get("/readyz").status_code == 200
    assert node.get("/status").json() == {"state": "running", "ready": True, "not_ready": ""}
    assert "sci_stream_ready 1.0" in node.get("/metrics").text
    node.health.report("the disk is full", {}, {})
    assert node.get("/readyz").text == "the disk is full\n"


def test_node_with_hanging_loop_is_neither_live_nor_ready(node: Node) -> None:
    node.health.report("", {}, {})
    node.clock.now_s += ALIVE_WITHIN_S + 2
    for path in ("/healthz", "/readyz"):
        answer = node.get(path)
        assert answer.status_code == 503
        assert "event loop blocked for 7.0 s" in answer.text
    node.health.mark_alive()
    assert node.get("/healthz").status_code == 200


def test_unknown_path_lists_available_ones(node: Node) -> None:
    answer = node.get("/metrics/../../etc/passwd")
    assert answer.status_code == 404
    assert "/metrics" in answer.text


def test_rebound_host_name_is_refused(node: Node) -> None:
    assert node.get("/status", Host="evil.example:5712").status_code == 403
    assert node.get("/status", Host="localhost:1").status_code == 200
    assert node.get("/status", Host="[::1]:1").status_code == 200


def test_token_protects_figures_and_reason() -> None:
    health = Health(NodeMetrics("sink", "sink"), Clock())  # the loop is not under test
    health.report("the camera of bench 4 is lost", {}, {})
    server = HealthServer(health, "127.0.0.1", 0, token="hush")
    try:
        for path in ("/status", "/metrics"):
            assert plain_http.get(server.url + path).status_code == 401
            wrong = plain_http.get(server.url + path, headers={"Authorization": "Bearer hish"})
            assert wrong.status_code == 401
            assert (
                plain_http.get(
                    server.url + path, headers={"Authorization": "Bearer hush"}
                ).status_code
                == 200
            )
        unknown = plain_http.get(server.url + "/readyz", headers={"Host": "rig.example"})
        assert (unknown.status_code, unknown.text) == (503, "no\n")
        known = plain_http.get(server.url + "/readyz", headers={"Authorization": "Bearer hush"})
        assert known.text == "the camera of bench 4 is lost\n"
    finally:
        server.close()


def test_guesses_and_floods_are_limited_per_address(node: Node) -> None:
    # With a fake clock: a busy machine may take longer for the guesses than a loop may hang.
    server = HealthServer(
        Health(NodeMetrics("sink", "sink"), Clock()), "127.0.0.1", 0, token="hush"
    )
    try:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            guesses = [
                client.get("/status", headers={"Authorization": f"Bearer {n}"}).status_code
                for n in range(40)
            ]
            assert 401 in guesses
            assert 429 in guesses
            assert client.get("/healthz").status_code == 200, (
                "a supervisor on the same host still gets its liveness"
            )
    finally:
        server.close()
    answers = [node.get("/healthz").status_code for _ in range(3)]
    assert answers == [200, 200, 200], "another node's address is not affected"


def test_silent_client_does_not_block_others(node: Node) -> None:
    silent = [socket.create_connection(node.address) for _ in range(4)]
    try:
        assert node.get("/healthz").status_code == 200
    finally:
        for connection in silent:
            connection.close()


def test_address_in_use_error_names_the_remedy(node: Node) -> None:
    port = int(node.server.url.rpartition(":")[2])
    with pytest.raises(TransportError, match=r"\[health\]") as refused:
        HealthServer(node.health, "127.0.0.1", port)
    assert str(port) in str(refused.value)


def test_malformed_request_is_answered_and_not_logged(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    for garbage in (
        b"\0" * 4096 + b"\r\n\r\n",
        b"GET " + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /status HTTP/1.1\r\n\r\n",
        b"GET /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    ):
        with socket.create_connection(node.address) as connection:
            connection.settimeout(10)
            connection.sendall(garbage)
            assert connection.recv(4096).startswith(b"HTTP/1.1 400")
    assert json.loads(node.get("/status").text)["ready"] is False
    assert [
        record
        for record in caplog.records
        if record.levelno >= logging.WARNING and "uvicorn" in record.name
    ] == []


@pytest.mark.parametrize("token", [None, "hush"])
def test_generated_requests_are_answered_without_errors(
    token: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    server = HealthServer(Health(NodeMetrics("sink", "sink"), Clock()), "127.0.0.1", 0, token)
    try:
        answers = attack_pages([int(server.url.rpartition(":")[2])], 1000, seed=4)
    finally:
        server.close()
    assert answers[503] > 0, "/readyz of a node that is starting"
    assert set(answers) <= {0, 200, 307, 400, 401, 403, 404, 405, 503}, answers
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_path_of_a_refused_request_does_not_forge_log_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = HealthServer(Health(NodeMetrics("sink", "sink")), "127.0.0.1", 0, token="hush")
    try:
        assert plain_http.get(server.url + "/status%0aERROR%20forged%1b[2J").status_code == 401
    finally:
        server.close()
    (line,) = [record.getMessage() for record in caplog.records if "Refused" in record.message]
    assert "forged" in line
    assert line.isprintable()


def test_proxy_headers_do_not_evade_the_limit_on_guesses() -> None:
    server = HealthServer(Health(NodeMetrics("sink", "sink")), "127.0.0.1", 0, token="hush")
    try:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            guesses = [
                client.get(
                    "/status",
                    headers={"Authorization": f"Bearer {n}", "X-Forwarded-For": f"10.0.0.{n}"},
                )
                for n in range(40)
            ]
        assert {answer.status_code for answer in guesses} == {401, 429}
    finally:
        server.close()


def test_trickling_clients_block_neither_answers_nor_close(node: Node) -> None:
    slow = [socket.create_connection(node.address) for _ in range(48)]
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(0.2):
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.sendall(b"X")

    for connection in slow:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        for _ in range(3):
            assert node.get("/healthz").status_code == 200
        node.server.close()
        with pytest.raises(httpx.ConnectError):
            node.get("/healthz")
    finally:
        stop.set()
        thread.join()
        for connection in slow:
            connection.close()


def is_closed_after_sending(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"X")
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def test_slow_client_is_ended_after_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HealthConnection, "request_s", 0.5)
    server = HealthServer(Health(NodeMetrics("sink", "sink")), "127.0.0.1", 0)
    try:
        with socket.create_connection(
            ("127.0.0.1", int(server.url.rpartition(":")[2]))
        ) as connection:
            connection.settimeout(0.1)
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
            assert any(is_closed_after_sending(connection) for _ in range(600))
    finally:
        server.close()


def unread_answer(node: Node) -> socket.socket:
    """Request an answer that is larger than the buffers of both sides; do not read it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(node.address)
    connection.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return connection


def test_unread_answers_block_neither_others_nor_close(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HealthConnection, "request_s", 600.0)
    node.health.report("", {"state": "x" * (4 << 20)}, {})
    with contextlib.ExitStack() as opened:
        for _ in range(HealthConnection.max_connections + 8):
            opened.enter_context(unread_answer(node))
        assert node.get("/healthz").status_code == 200
        node.server.close()
        assert "health" not in {thread.name for thread in threading.enumerate()}


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_client_that_reads_slowly_is_ended_after_its_time_limit(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HealthConnection, "request_s", 0.5)
    node.health.report("", {"state": "x" * (4 << 20)}, {})
    before = open_descriptors()
    with unread_answer(node) as connection:
        assert connection.recv(1), "the server has accepted it: each side has a descriptor"
        deadline_s = time.monotonic() + 60.0
        while open_descriptors() > before + 1:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


def test_exhausted_descriptors_are_one_clear_message(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert node.get("/healthz").status_code == 200, "it has loaded its files"
    with contextlib.ExitStack() as opened:
        client = opened.enter_context(socket.socket())
        client.settimeout(60.0)
        with contextlib.ExitStack() as files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 8, limits[1]))
            files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
            with contextlib.suppress(OSError):
                while True:
                    files.enter_context(Path("/dev/null").open())
            client.connect(node.address)
            deadline_s = time.monotonic() + 60.0
            while "cannot accept HTTP connections" not in caplog.text:
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
        assert "Traceback" not in caplog.text
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
