"""Connections of unknown peers are limited at every ZeroMQ address,
without affecting known ones.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from sci_stream.delivery.dispatch_queue import DispatchQueue
from sci_stream.nodes.runtime.process import raise_descriptor_limit
from sci_stream.transport.client_connection import ClientConnection
from sci_stream.transport.connections import ConnectionLimit, max_connections
from sci_stream.transport.dispatcher import Dispatcher
from sci_stream.transport.pubsub import TapPublisher
from sci_stream.transport.results_server import ResultsServer
from sci_stream.wire.codec import decode
from sci_stream.wire.messages import Heartbeat, Welcome
from tests.transport.peers import hello, until

_UNKNOWN = 150


@contextlib.contextmanager
def unknown_peers(endpoint: str, n: int) -> Iterator[list[socket.socket]]:
    """Open TCP connections that send nothing."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(n)]


def still_open(connections: list[socket.socket]) -> int:
    """Return the number of connections that the other side has not closed."""
    left = 0
    for connection in connections:
        connection.setblocking(False)
        try:
            while connection.recv(4096):
                pass
        except BlockingIOError:
            left += 1
        except OSError:
            continue
    return left


class _Address:
    """A server of one kind and a known peer of it."""

    def __init__(self, kind: str, context: zmq.Context, endpoint: str) -> None:
        self._server: ResultsServer | Dispatcher | None = None
        self._taps: TapPublisher | None = None
        if kind == "taps":
            self._taps = TapPublisher(context, endpoint)
            self._listener: zmq.Socket[bytes] = context.socket(zmq.SUB)
            self._listener.subscribe(b"")
            self._listener.connect(endpoint)
            return
        if kind == "results":
            self._server = ResultsServer(context, endpoint, Welcome("sink", "s", 0.5))
        else:
            queue = DispatchQueue(4, 1)
            self._server = Dispatcher(context, endpoint, Welcome("acquire", "s", 0.5), queue)
        self._peer = ClientConnection(context, endpoint, hello(), heartbeat_s=0.5)

    @property
    def wire_errors(self) -> dict[str, int]:
        server = self._server or self._taps
        assert server is not None
        return server.wire_errors

    def poll(self) -> None:
        now_s = time.monotonic()
        if self._taps is not None:
            self._taps.publish(Heartbeat("sink", {"n": 1}))
        elif isinstance(self._server, ResultsServer):
            self._server.receive(now_s)
            self._server.tick(now_s)
        elif self._server is not None:
            self._server.poll(now_s)
        if self._taps is None:
            self._peer.receive(now_s)

    def reaches_peer(self) -> bool:
        if self._taps is None:
            return self._peer.connected
        received = False
        while self._listener.poll(0):
            received = isinstance(decode(self._listener.recv_multipart()), Heartbeat)
        return received

    def close(self) -> None:
        for part in (self._server, self._taps):
            if part is not None:
                part.close()
        if self._taps is None:
            self._peer.close()
        else:
            self._listener.close(linger=0)


@pytest.mark.parametrize("kind", ["results", "dispatch", "taps"])
def test_silent_connections_are_closed_and_the_known_peer_stays(
    kind: str,
    context: zmq.Context,
    free_endpoint: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = free_endpoint()
    with contextlib.closing(_Address(kind, context, endpoint)) as address:
        until(address.reaches_peer, address.poll, 60.0)
        with unknown_peers(endpoint, _UNKNOWN) as connections:
            until(lambda: still_open(connections) <= 64, address.poll, 60.0)
            assert address.wire_errors["connections"] >= _UNKNOWN - 64
            until(address.reaches_peer, address.poll, 60.0)
            monkeypatch.setattr("sci_stream.transport.connections._PATIENCE_S", 0.5)
            until(lambda: still_open(connections) == 0, address.poll, 60.0)
        until(address.reaches_peer, address.poll, 60.0)


def test_connection_limit_closes_unknown_peers_first() -> None:
    limit = ConnectionLimit(maximum=4)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def connect(*, known: bool) -> socket.socket:
            mine = stack.enter_context(socket.create_connection(listener.getsockname()))
            theirs, _ = listener.accept()
            limit.accepted(stack.enter_context(theirs).fileno())
            if known:
                limit.know(theirs.fileno())
            return mine

        unknown = [connect(known=False) for _ in range(2)]
        known = [connect(known=True) for _ in range(3)]
        unknown += [connect(known=False) for _ in range(2)]
        assert limit.enforce(100.0) == 3
        assert [still_open(group) for group in (known, unknown[:3], unknown[3:])] == [3, 0, 1]
        later = [connect(known=True) for _ in range(3)]
        assert limit.enforce(101.0) == 3
        assert [still_open(group) for group in (known, unknown, later)] == [3, 0, 1]
        assert len(limit) == 4


def test_message_of_unknown_connection_is_no_fault() -> None:
    limit = ConnectionLimit()
    limit.know(-1)
    limit.disconnected(-1)
    assert limit.enforce(100.0) == 0


def test_connection_limit_leaves_a_reused_descriptor_alone() -> None:
    limit = ConnectionLimit(maximum=0)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as mine,
    ):
        theirs, _ = listener.accept()
        limit.accepted(theirs.fileno())
        number = theirs.detach()
        with socket.create_connection(listener.getsockname()) as other:
            os.dup2(other.fileno(), number)
            limit.enforce(100.0)
            other.sendall(b"still open")
            assert mine.recv(1) == b""
            os.close(number)


def test_descriptor_limit_leaves_some_for_the_recorder() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        assert 2 * max_connections() <= 512 - 256
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[1], 65_536)
        assert max_connections() == 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
