"""The health server reports liveness, readiness and status; clients without the token learn nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from sci_stream.errors import TransportError
from sci_stream.health import Figures, Health, HealthServer
from sci_stream.health import server as health_server
from sci_stream.health.report import ALIVE_WITHIN_S


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

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(self.server.url + path, headers=headers, timeout=60)


@pytest.fixture
def node() -> Iterator[Node]:
    clock = Clock()
    health = Health(Figures("sink", "sink"), clock)
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
    node.health.turn()
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
    health = Health(Figures("sink", "sink"), Clock())  # the loop is not under test
    health.report("the camera of bench 4 is lost", {}, {})
    server = HealthServer(health, "127.0.0.1", 0, token="hush")
    try:
        for path in ("/status", "/metrics"):
            assert httpx.get(server.url + path).status_code == 401
            wrong = httpx.get(server.url + path, headers={"Authorization": "Bearer hish"})
            assert wrong.status_code == 401
            assert httpx.get(server.url + path, headers={"Authorization": "Bearer hush"}).status_code == 200
        unknown = httpx.get(server.url + "/readyz", headers={"Host": "rig.example"})
        assert (unknown.status_code, unknown.text) == (503, "no\n")
        known = httpx.get(server.url + "/readyz", headers={"Authorization": "Bearer hush"})
        assert known.text == "the camera of bench 4 is lost\n"
    finally:
        server.close()


def test_expired_token_is_named_only_to_its_holder() -> None:
    server = HealthServer(Health(Figures("sink", "sink")), "127.0.0.1", 0, token="hush", expires_s=1_000_000.0)
    try:
        late = httpx.get(server.url + "/status", headers={"Authorization": "Bearer hush"})
        assert late.status_code == 401
        assert "has expired" in late.text
        wrong = httpx.get(server.url + "/status", headers={"Authorization": "Bearer hish"})
        assert wrong.status_code == 401
        assert "expired" not in wrong.text
        assert server.refused == {"expired": 1, "token": 1}
    finally:
        server.close()


def test_guesses_and_floods_are_limited_per_address(node: Node) -> None:
    # With a fake clock: a busy machine may take longer for the guesses than a loop may hang.
    server = HealthServer(Health(Figures("sink", "sink"), Clock()), "127.0.0.1", 0, token="hush")
    try:
        with httpx.Client(base_url=server.url) as client:
            guesses = [client.get("/status", headers={"Authorization": f"Bearer {n}"}).status_code for n in range(40)]
            assert 401 in guesses
            assert 429 in guesses
            assert client.get("/healthz").status_code == 200, "a supervisor on the same host still gets its liveness"
    finally:
        server.close()
    answers = [node.get("/healthz").status_code for _ in range(3)]
    assert answers == [200, 200, 200], "another node's address is not affected"


def test_silent_client_does_not_block_others(node: Node) -> None:
    address = ("127.0.0.1", int(node.server.url.rpartition(":")[2]))
    silent = [socket.create_connection(address) for _ in range(4)]
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


def test_malformed_request_is_survived(node: Node) -> None:
    address = ("127.0.0.1", int(node.server.url.rpartition(":")[2]))
    for garbage in (
        b"\0" * 4096 + b"\r\n\r\n",
        b"GET " + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /status HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection(address) as connection:
            connection.sendall(garbage)
            connection.settimeout(10)
            while connection.recv(4096):
                pass
    assert json.loads(node.get("/status").text)["ready"] is False


def test_trickling_clients_block_neither_answers_nor_close(node: Node) -> None:
    address = ("127.0.0.1", int(node.server.url.rpartition(":")[2]))
    slow = [socket.create_connection(address) for _ in range(48)]
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
    monkeypatch.setattr(health_server, "_PATIENCE_S", 0.5)
    server = HealthServer(Health(Figures("sink", "sink")), "127.0.0.1", 0)
    try:
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as connection:
            connection.settimeout(0.1)
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
            assert any(is_closed_after_sending(connection) for _ in range(600))
    finally:
        server.close()
