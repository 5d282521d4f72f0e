"""A small HTTP server beside the node's loop: ``/healthz``, ``/readyz``, ``/status``, ``/metrics``. Read only."""

from __future__ import annotations

import json
import logging
import math
import socket
import socketserver
import threading
import time
from collections import Counter
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from sci_stream.clock import host_s
from sci_stream.config.fields import is_loopback
from sci_stream.delivery.rate_limit import TokenBucket
from sci_stream.errors import TransportError
from sci_stream.health.report import Health
from sci_stream.security.http_access import Admission, HttpAccessControl

log = logging.getLogger(__name__)

_REQUESTS_AT_ONCE = 8
_VISITS_PER_S, _VISITS_BURST = 50.0, 200
"""Requests of one address: Prometheus, a supervisor and `sci-stream top` together ask a few times a second."""
_PATIENCE_S = 5.0
"""For a client to say what it wants and to take the answer."""


class HealthServer:
    """Serves a node's health from threads of its own.

    Parameters
    ----------
    host, port
        Where to listen; port 0 for any that is free.
    token
        What ``Authorization: Bearer …`` must say; None for nothing. ``/healthz`` and ``/readyz`` without their reasons
        are open to all: a supervisor of containers asks without one.
    expires_s
        Unix time at which the token is worth nothing any more.

    Raises
    ------
    TransportError
        If the address is in use or not of this machine.
    """

    def __init__(
        self, health: Health, host: str, port: int, token: str | None = None, expires_s: float = math.inf
    ) -> None:
        self._turnstile = HttpAccessControl(token, expires_s, per_s=_VISITS_PER_S, burst=_VISITS_BURST)
        try:
            self._server = _Server((host, port), _handler(health, self._turnstile, needs_token=token is not None))
        except OSError as error:
            raise TransportError(
                f"The health address http://{host}:{port} cannot be used",
                got=error.strerror or str(error),
                hint="Another rig may run on this machine: set other ports under [health], or 0 for any that is free.",
            ) from None
        address = self._server.server_address
        self.url = f"http://[{host}]:{address[1]}" if ":" in host else f"http://{host}:{address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="health", daemon=True)
        self._thread.start()

    @property
    def refused(self) -> Counter[str]:
        """Requests refused so far, by reason."""
        return self._turnstile.refused

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


_REFUSALS = {
    Admission.TOKEN: (HTTPStatus.UNAUTHORIZED, "expected Authorization: Bearer with the token of [health]\n"),
    Admission.EXPIRED: (
        HTTPStatus.UNAUTHORIZED,
        "the token of [health] has expired: the rig needs a new one ([health] token, token_expires)\n",
    ),
    Admission.RATE: (HTTPStatus.TOO_MANY_REQUESTS, "too many wrong tokens from this address: wait a little\n"),
}


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    """Answers a few clients at once; who comes when all are busy waits."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(_REQUESTS_AT_ONCE)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer would look up the name of this host, which takes seconds where no name server answers.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Wait for a free place; each client's is free again within its time-out."""
        self._free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class calls it so
        """Clients come and go as they like: that is no error of ours."""
        log.debug("health request from %s broke off", client_address, exc_info=True)


def _handler(health: Health, turnstile: HttpAccessControl, *, needs_token: bool) -> type[BaseHTTPRequestHandler]:
    """Return the handler class of one node."""
    lines = TokenBucket(0.1, 5)
    lock = threading.Lock()  # several clients are served at once, and the rules know no threads

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_S
        server_version = "sci-stream"
        sys_version = ""

        def do_GET(self) -> None:
            address, now_s = str(self.client_address[0]), time.monotonic()
            with lock:
                rate = turnstile.visit(address, now_s)
            if rate is Admission.RATE:
                self._answer(HTTPStatus.TOO_MANY_REQUESTS, "too many requests from this address: wait a little\n")
                return
            if not needs_token and not is_loopback(_name(self.headers.get("Host", ""))):
                # A web page elsewhere whose name resolves to this machine must not read what is said here.
                with lock:
                    turnstile.count("host")
                self._answer(HTTPStatus.FORBIDDEN, "ask by the address of this machine, such as 127.0.0.1\n")
                return
            path = self.path.partition("?")[0]
            word = _borne(self.headers.get("Authorization", ""))
            open_to_all = path in {"/healthz", "/readyz"} and not word
            with lock:
                admission = None if open_to_all else turnstile.admit(address, [word], now_s, host_s())
            known = admission is Admission.OPEN or not needs_token
            if path == "/healthz":
                hangs_s = health.hangs_for_s
                self._verdict(f"the loop has not turned for {hangs_s:.1f} s" if hangs_s else "", known=known)
            elif path == "/readyz":
                self._verdict(health.not_ready, known=known)
            elif path not in {"/status", "/metrics"}:
                self._answer(HTTPStatus.NOT_FOUND, "there are /healthz, /readyz, /status and /metrics\n")
            elif not known:
                refusal = _REFUSALS[admission or Admission.TOKEN]
                with lock:
                    said = lines.take(now_s)
                if said:
                    log.warning("a request for %s from %s was refused: %s", path, address, refusal[1].rstrip())
                self._answer(*refusal)
            elif path == "/status":
                self._answer(HTTPStatus.OK, json.dumps(health.status) + "\n", "application/json")
            else:
                self._answer(HTTPStatus.OK, health.figures.exposition(), CONTENT_TYPE_LATEST)

        def _verdict(self, trouble: str, *, known: bool) -> None:
            status = HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK
            self._answer(status, (trouble if known else "no") + "\n" if trouble else "ok\n")

        def _answer(self, status: HTTPStatus, body: str | bytes, kind: str = "text/plain; charset=utf-8") -> None:
            content = body if isinstance(body, bytes) else body.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            log.debug(format, *args)

    return Handler


def _name(host: str) -> str:
    """Return a Host header without its port."""
    return host.rpartition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0]


def _borne(authorization: str) -> str:
    scheme, _, word = authorization.partition(" ")
    return word.strip() if scheme.lower() == "bearer" else ""
