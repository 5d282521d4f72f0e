"""Encrypted connections: allowed keys connect, unknown keys are refused."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq

from sci_stream.security.curve import (
    AllowList,
    CurveServer,
    SocketConfig,
    client_config,
    unencrypted,
)
from sci_stream.security.keys import KeyPair, allow_key, make_key_pair, read_key_pair
from sci_stream.transport.client_connection import ClientConnection
from sci_stream.transport.results_server import ResultsServer
from sci_stream.wire.codec import encode
from sci_stream.wire.messages import Hello, SeriesEnd, Welcome
from tests.ports import free_endpoint

HELLO = Hello(node="acquire", kind_of_node="acquire", incarnation="ab12")


@dataclass
class Lab:
    folder: Path
    context: zmq.Context[zmq.Socket[bytes]]
    endpoint: str
    curve: CurveServer
    server: ResultsServer
    server_key: str

    def keys(self, name: str, *, allowed: bool) -> KeyPair:
        public = make_key_pair(self.folder / name)
        if allowed:
            allow_key(self.folder / "allowed_keys", public, name)
        return read_key_pair(self.folder / name)

    def dealer(self, configure: SocketConfig) -> ClientConnection:
        return ClientConnection(
            self.context,
            self.endpoint,
            HELLO,
            heartbeat_s=0.2,
            configure=configure,
        )

    def until(
        self, dealer: ClientConnection, condition: Callable[[], object], timeout_s: float = 60.0
    ) -> bool:
        """Poll both sides until a condition holds; return whether it did."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            now_s = time.monotonic()
            dealer.receive(now_s)
            self.received += [message for _, message in self.server.receive(now_s)]
            self.server.tick(now_s)
            if condition():
                return True
            time.sleep(0.01)
        return False

    def __post_init__(self) -> None:
        self.received: list[object] = []


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint = free_endpoint()
    public = make_key_pair(tmp_path / "server")
    curve = CurveServer(context, read_key_pair(tmp_path / "server"), tmp_path / "allowed_keys")
    server = ResultsServer(context, endpoint, Welcome("sink", "cd34", 0.2), configure=curve.serve)
    yield Lab(tmp_path, context, endpoint, curve, server, public)
    server.close()
    curve.close()
    context.destroy(linger=0)


def test_host_with_an_allowed_key_connects(lab: Lab) -> None:
    dealer = lab.dealer(client_config(lab.keys("camera-host", allowed=True), lab.server_key))
    assert lab.until(dealer, lambda: dealer.connected)
    end = SeriesEnd(series="s", acquired=3, reason="finished", camera_dropped=0)
    assert dealer.try_send(encode(end))
    assert lab.until(dealer, lambda: end in lab.received)
    dealer.close()


def test_own_host_needs_no_entry(lab: Lab) -> None:
    dealer = lab.dealer(client_config(read_key_pair(lab.folder / "server"), lab.server_key))
    assert lab.until(dealer, lambda: dealer.connected)
    dealer.close()


def test_unknown_key_is_refused_and_both_sides_log_the_remedy(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = lab.keys("unknown", allowed=False)
    dealer = lab.dealer(client_config(unknown, lab.server_key))
    assert lab.until(dealer, lambda: "cannot connect" in caplog.text)
    assert not dealer.connected
    assert not lab.server.peers
    assert lab.curve.allow_list.refused > 0
    assert f"sci-stream keys allow '{unknown.public.decode()}'" in caplog.text
    assert "this host's key is not allowed there" in caplog.text
    dealer.close()


def test_key_allowed_at_run_time_connects_without_restart(lab: Lab) -> None:
    late = lab.keys("late", allowed=False)
    dealer = lab.dealer(client_config(late, lab.server_key))
    assert lab.until(dealer, lambda: lab.curve.allow_list.refused)
    allow_key(lab.folder / "allowed_keys", late.public.decode(), "late")
    assert lab.until(dealer, lambda: dealer.connected)
    dealer.close()


def test_unencrypted_client_is_refused_counted_and_logged(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    dealer = lab.dealer(unencrypted)
    assert lab.until(dealer, lambda: lab.server.wire_errors["handshake"])
    assert "refused in the handshake" in caplog.text
    assert not dealer.connected
    assert not lab.server.peers
    dealer.close()


def test_server_with_an_unexpected_key_is_refused(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    impostor = make_key_pair(lab.folder / "impostor")
    dealer = lab.dealer(client_config(lab.keys("camera-host", allowed=True), impostor))
    assert lab.until(
        dealer, lambda: "cannot connect" in caplog.text and lab.server.wire_errors["handshake"]
    )
    assert not dealer.connected
    assert "its key is not the one that [security] names here" in caplog.text
    assert "expects another key here" in caplog.text
    assert not lab.server.peers
    dealer.close()


def test_key_revoked_by_a_list_of_same_size_and_time_is_refused(tmp_path: Path) -> None:
    own = make_key_pair(tmp_path / "own")
    first, second = (make_key_pair(tmp_path / name) for name in ("first", "second"))
    path = tmp_path / "allowed_keys"
    path.write_text(f"{first} bench\n")
    os.utime(path, ns=(10**18, 10**18))
    allowed = AllowList(read_key_pair(tmp_path / "own"), path)
    assert allowed.callback("", first.encode())
    path.write_text(f"{second} bench\n")
    os.utime(path, ns=(10**18, 10**18))
    assert not allowed.callback("", first.encode())
    assert allowed.callback("", second.encode())
    assert allowed.callback("", own.encode())


def test_list_that_others_can_write_allows_nobody_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_key_pair(tmp_path / "own")
    path = tmp_path / "allowed_keys"
    path.write_text(f"{make_key_pair(tmp_path / 'other')} bench\n")
    path.chmod(0o666)
    allowed = AllowList(read_key_pair(tmp_path / "own"), path)
    assert not allowed.callback("", (tmp_path / "other.pub").read_text().strip().encode())
    assert "writable by others" in caplog.text
