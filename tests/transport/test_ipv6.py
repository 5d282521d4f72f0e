"""Nodes and taps work over IPv6, and with names that have several addresses."""

from __future__ import annotations

import socket as socketlib
from collections.abc import Iterator

import pytest
import zmq

import sci_stream
from sci_stream.errors import InputError, TransportError
from sci_stream.transport.http.server import listen
from sci_stream.transport.sockets import bind, connect, make_socket
from tests.ports import free_ports
from tests.transport.test_pubsub import Publishing

pytestmark = pytest.mark.skipif(not socketlib.has_ipv6, reason="needs IPv6")

V6_FIRST = ("::1", "127.0.0.1")


def answers(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Let the resolver give these addresses for every name, in this order."""
    real = socketlib.getaddrinfo

    def resolve(_host: str, *rest: int, **options: int) -> list[tuple]:
        return [answer for host in hosts for answer in real(host, *rest, **options)]

    monkeypatch.setattr(socketlib, "getaddrinfo", resolve)


@pytest.fixture
def router(context: zmq.Context) -> Iterator[zmq.Socket]:
    yield from sockets(context, zmq.ROUTER)


@pytest.fixture
def dealer(context: zmq.Context) -> Iterator[zmq.Socket]:
    yield from sockets(context, zmq.DEALER)


def sockets(context: zmq.Context, kind: int) -> Iterator[zmq.Socket]:
    socket = make_socket(
        context, kind, max_message_bytes=100, heartbeat_s=1.0, send_queue=4, receive_queue=4
    )
    socket.setsockopt(zmq.IMMEDIATE, 0)  # `send` waits for the connection
    yield socket
    socket.close(linger=0)


@pytest.mark.parametrize("host", V6_FIRST)
def test_name_is_reached_by_each_of_its_addresses(
    monkeypatch: pytest.MonkeyPatch, router: zmq.Socket, dealer: zmq.Socket, host: str
) -> None:
    (port,) = free_ports(1)
    answers(monkeypatch, *V6_FIRST)
    bind(router, f"tcp://localhost:{port}", "dispatch")
    connect(dealer, f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
    dealer.send(b"hello")
    assert router.poll(10_000)
    assert router.recv_multipart()[1] == b"hello"


def test_address_that_the_machine_lacks_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, router: zmq.Socket, dealer: zmq.Socket
) -> None:
    (port,) = free_ports(1)
    answers(monkeypatch, "2001:db8::1", "127.0.0.1")
    bind(router, f"tcp://rig:{port}", "dispatch")
    connect(dealer, f"tcp://127.0.0.1:{port}")
    dealer.send(b"hello")
    assert router.poll(10_000)


def test_name_without_an_address_of_the_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, router: zmq.Socket
) -> None:
    answers(monkeypatch, "2001:db8::1", "192.0.2.1")
    with pytest.raises(TransportError, match="must be an address of this machine"):
        bind(router, f"tcp://rig:{free_ports(1)[0]}", "dispatch")


def test_second_attempt_uses_the_other_family(dealer: zmq.Socket) -> None:
    for attempt in range(2):
        connect(dealer, "tcp://localhost:1", attempt)
        assert dealer.getsockopt(zmq.IPV6) == attempt
        dealer.disconnect("tcp://localhost:1")


@pytest.mark.parametrize(
    "form", ["tcp://[::1]:{}", "[::1]:{}", "tcp://localhost:{}", "localhost:{}"]
)
def test_subscribe_finds_the_address_of_the_taps(
    monkeypatch: pytest.MonkeyPatch, context: zmq.Context, form: str
) -> None:
    (port,) = free_ports(1)
    if "localhost" in form:
        answers(monkeypatch, "127.0.0.1", "::1")
    with Publishing(context, f"tcp://[::1]:{port}"):
        got = next(sci_stream.subscribe(form.format(port), timeout_s=60.0))
    assert got.video.shape == (2, 4, 6)


@pytest.mark.parametrize("endpoint", ["localhost", "http://localhost:5703", "::1:5703", ""])
def test_subscribe_with_a_wrong_address_is_refused(endpoint: str) -> None:
    with pytest.raises(InputError, match="The address of the taps is invalid"):
        next(sci_stream.subscribe(endpoint))


def test_page_listens_on_the_next_address_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "2001:db8::1", "::1")
    with listen("rig", 0, what="The live page", hint="") as listener:
        assert listener.getsockname()[0] == "::1"
