"""Proxies of the environment are used for public addresses alone, and never with a token."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import sci_stream
from sci_stream.errors import TransportError
from sci_stream.transport.proxies import opener_for


class Proxy(BaseHTTPRequestHandler):
    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["Authorization"]))
        self.send_error(403, "not allowed by the proxy")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Proxy]]:
    handler = type("Seen", (Proxy,), {"seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://user:password@127.0.0.1:{server.server_port}"
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, address)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "10.1.2.3", "192.168.0.9", "[fd00::1]", "lab-host"]
)
def test_private_address_is_opened_directly(proxy: type[Proxy], host: str) -> None:
    assert opener_for(f"http://{host}:8765/")[1] == ""


def test_public_address_is_opened_through_the_proxy(proxy: type[Proxy]) -> None:
    page = "http://8.8.8.8:8765"
    with pytest.raises(TransportError, match=r"through the proxy 127\.0\.0\.1:") as caught:
        sci_stream.control(page).status()
    assert "password" not in str(caught.value)
    assert proxy.seen == [(f"{page}/status", None)]


def test_token_does_not_pass_the_proxy(proxy: type[Proxy]) -> None:
    assert opener_for("http://8.8.8.8:8765/", has_token=True)[1] == ""
    page = sci_stream.control("http://127.0.0.1:9", token="secret")
    with pytest.raises(TransportError, match="does not answer"):
        page.status()
    assert proxy.seen == []


def test_page_of_this_machine_does_not_pass_the_proxy(proxy: type[Proxy]) -> None:
    with pytest.raises(TransportError, match="does not answer"):
        sci_stream.control("http://127.0.0.1:9").status()
    assert proxy.seen == []
