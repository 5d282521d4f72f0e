"""Nodes of one supervisor use local sockets; all others use the TCP address."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import zmq

from sci_stream.transport.results_server import ResultsServer
from sci_stream.transport.sockets import (
    FOLDER_VARIABLE,
    Wakeup,
    local_endpoint,
    make_socket,
    preferred_endpoint,
)
from sci_stream.wire.messages import Welcome
from tests.ports import free_ports


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_local_address_has_a_local_socket_under_a_supervisor(host: str, tmp_path: Path) -> None:
    assert (
        local_endpoint(f"tcp://{host}:5701", {FOLDER_VARIABLE: str(tmp_path)})
        == f"ipc://{tmp_path}/5701.sock"
    )


@pytest.mark.parametrize(
    "endpoint", ["tcp://192.168.1.4:5701", "tcp://camera-host:5701", "ipc:///run/rig.sock"]
)
def test_remote_address_has_no_local_socket(endpoint: str, tmp_path: Path) -> None:
    assert local_endpoint(endpoint, {FOLDER_VARIABLE: str(tmp_path)}) is None


def test_without_supervisor_the_tcp_address_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    assert preferred_endpoint("tcp://127.0.0.1:5701") == "tcp://127.0.0.1:5701"
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv(
        FOLDER_VARIABLE, str(deep)
    )  # a path that the system does not take for a socket
    assert preferred_endpoint("tcp://127.0.0.1:5701") == "tcp://127.0.0.1:5701"
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "gone"))
    assert preferred_endpoint("tcp://127.0.0.1:5701") == "tcp://127.0.0.1:5701"


def test_node_is_reached_both_ways_despite_a_stale_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    (port,) = free_ports(1)
    endpoint = f"tcp://127.0.0.1:{port}"
    (tmp_path / f"{port}.sock").write_bytes(b"")  # as a process that was killed leaves it
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    options = {
        "max_message_bytes": 1 << 20,
        "heartbeat_s": 1.0,
        "send_queue": 8,
        "receive_queue": 8,
    }
    router = ResultsServer(context, endpoint, Welcome("sink", "s", 1.0)).socket
    try:
        assert preferred_endpoint(endpoint) != endpoint
        for way in (endpoint, preferred_endpoint(endpoint)):
            dealer = make_socket(context, zmq.DEALER, **options)
            dealer.connect(way)
            assert dealer.poll(5000, zmq.POLLOUT)
            dealer.send(way.encode())
            assert router.poll(5000, zmq.POLLIN)
            assert router.recv_multipart()[1] == way.encode()
            dealer.close(linger=0)
    finally:
        context.destroy(linger=0)


def test_wakeup_after_close_writes_to_no_other_file() -> None:
    wakeup = Wakeup()
    wakeup.close()
    read, write = os.pipe()  # takes the free numbers
    wakeup.wake()
    os.close(write)
    assert os.read(read, 1) == b""
    os.close(read)
