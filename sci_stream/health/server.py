"""The health server of a node: ``/healthz``, ``/readyz``, ``/status``, ``/metrics``. Read only."""

from __future__ import annotations

import contextlib
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

from sci_stream.clock import unix_ns
from sci_stream.config.fields import is_loopback
from sci_stream.delivery.rate_limit import TokenBucket
from sci_stream.errors import TransportError
from sci_stream.health.report import Health
from sci_stream.security.http_access import AccessDecision, HttpAccessControl

log = logging.getLogger(__name__)

# Each request has a thread: slow clients must not take all those of the process.
_REQUESTS_AT_ONCE = 32
# Request limit per address: Prometheus, a supervisor and `sci-stream top` together send a few per second.
_VISITS_PER_S, _VISITS_BURST = 50.0, 200
# Time of a client for its request and the answer together, however slowly their parts arrive.
_PATIENCE_S = 5.0
# Without descriptors, accept fails at once: without a pause the loop would take a core.
_ACCEPT_AGAIN_S = 0.05


class HealthServer:
    """Serve a node's health from separate threads.

    Parameters
    ----------
    host, port
        Where to listen; port 0 for a free one.
    token
        Token required in ``Authorization: Bearer …``; None for none. ``/healthz`` and ``/readyz`` without their
        reasons are public, because container supervisors send no token.
    expires_s
        Unix time at which the token expires.

    Raises
    ------
    TransportError
        If the address is in use or not of this machine.
    """

    def __init__(
        self, health: Health, host: str, port: int, token: str | None = None, expires_s: float = math.inf
    ) -> None:
        self._access = HttpAccessControl(token, expires_s, per_s=_VISITS_PER_S, burst=_VISITS_BURST)
        try:
            self._server = _Server((host, port), _handler(health, self._access, needs_token=token is not None))
        except OSError as error:
            raise TransportError(
                f"Cannot listen on the health address http://{host}:{port}",
                got=error.strerror or str(error),
                hint="Another rig may run on this machine: set other ports under [health], or 0 for a free one.",
            ) from None
        address = self._server.server_address
        self.url = f"http://[{host}]:{address[1]}" if ":" in host else f"http://{host}:{address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="health", daemon=True)
        self._thread.start()

    @property
    def refused(self) -> Counter[str]:
        """Refused requests by reason."""
        return self._access.refused

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


_REFUSALS = {
    AccessDecision.TOKEN: (HTTPStatus.UNAUTHORIZED, "expected Authorization: Bearer with the token of [health]\n"),
    AccessDecision.EXPIRED: (
        HTTPStatus.UNAUTHORIZED,
        "the token of [health] has expired: the rig needs a new one ([health] token, token_expires)\n",
    ),
    AccessDecision.RATE: (HTTPStatus.TOO_MANY_REQUESTS, "too many wrong tokens from this address: try again later\n"),
}


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    """Serve clients in threads, each for a limited time; if there are too many, the oldest makes room."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._since_s: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer would resolve the host name, which takes seconds without a name server.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a client; without file descriptors, try again a little later."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_ACCEPT_AGAIN_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a client in a thread; end the oldest if there are too many."""
        with self._lock:
            if len(self._since_s) >= _REQUESTS_AT_ONCE:
                self._end(next(iter(self._since_s)))
            self._since_s[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End clients that take too long; called several times per second."""
        now_s = time.monotonic()
        with self._lock:
            for request in [each for each, since_s in self._since_s.items() if now_s - since_s > _PATIENCE_S]:
                self._end(request)

    def _end(self, request: socket.socket) -> None:
        self._since_s.pop(request, None)
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)  # its thread reads the end of the request and closes it

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._since_s.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - signature of the base class
        """Ignore disconnects of clients."""
        log.debug("health request from %s aborted", client_address, exc_info=True)


def _handler(health: Health, access: HttpAccessControl, *, needs_token: bool) -> type[BaseHTTPRequestHandler]:
    """Return the handler class of one node."""
    lines = TokenBucket(0.1, 5)
    lock = threading.Lock()  # several threads serve clients, and the rules are not thread-safe

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_S
        server_version = "sci-stream"
        sys_version = ""

        def do_GET(self) -> None:
            address, now_s = str(self.client_address[0]), time.monotonic()
            with lock:
                rate = access.check_rate(address, now_s)
            if rate is AccessDecision.RATE:
                self._answer(HTTPStatus.TOO_MANY_REQUESTS, "too many requests from this address: try again later\n")
                return
            if not needs_token and not is_loopback(_name(self.headers.get("Host", ""))):
                # DNS rebinding: a foreign page whose name resolves to this machine must not read the status.
                with lock:
                    access.count("host")
                self._answer(HTTPStatus.FORBIDDEN, "use the address of this machine, such as 127.0.0.1\n")
                return
            path = self.path.partition("?")[0]
            word = _borne(self.headers.get("Authorization", ""))
            open_to_all = path in {"/healthz", "/readyz"} and not word
            with lock:
                admission = None if open_to_all else access.admit(address, [word], now_s, unix_ns() / 1e9)
            known = admission is AccessDecision.OPEN or not needs_token
            if path == "/healthz":
                hangs_s = health.hangs_for_s
                self._verdict(f"event loop blocked for {hangs_s:.1f} s" if hangs_s else "", known=known)
            elif path == "/readyz":
                self._verdict(health.not_ready, known=known)
            elif path not in {"/status", "/metrics"}:
                self._answer(HTTPStatus.NOT_FOUND, "available: /healthz, /readyz, /status and /metrics\n")
            elif not known:
                refusal = _REFUSALS[admission or AccessDecision.TOKEN]
                with lock:
                    said = lines.take(now_s)
                if said:
                    log.warning("request for %s from %s refused: %s", path, address, refusal[1].rstrip())
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
