"""The health server of a node: ``/healthz``, ``/readyz``, ``/status``, ``/metrics``. Read only."""

from __future__ import annotations

import json
from collections import Counter

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sci_stream.config.fields import network_location
from sci_stream.health.report import Health
from sci_stream.transport.http import AccessMiddleware, HttpServer, LimitedConnection, listen

# Request limit per address: Prometheus and a supervisor together send a few per second.
_VISITS_PER_S = 50.0
_VISITS_BURST = 200


class HealthConnection(LimitedConnection):
    """A connection to a health server: programs need few of them, each for a short time."""

    max_connections = 32
    request_s = 5.0
    has_short_answers = True


class HealthServer:
    """Serve a node's health from its own thread.

    ``port`` 0 is a free one; ``token`` is required in ``Authorization: Bearer …``, None for none.
    ``/healthz`` and ``/readyz`` without their reasons are public, because container supervisors
    send no token.

    Raises `TransportError` if the address is in use or not of this machine.
    """

    def __init__(self, health: Health, host: str, port: int, token: str | None = None) -> None:
        self.refused = Counter[str]()
        """Refused requests by reason."""
        listener = listen(
            host,
            port,
            what="The health server",
            hint="Another rig may run on this machine: set other ports under [health], or 0 for a "
            "free one.",
        )
        self.url = f"http://{network_location(host, listener.getsockname()[1])}"
        app = AccessMiddleware(
            _make_app(health),
            "health",
            token,
            self.refused,
            per_s=_VISITS_PER_S,
            burst=_VISITS_BURST,
        )
        self._server = HttpServer(app, listener, "health", HealthConnection)

    def close(self) -> None:
        """Stop serving."""
        self._server.close()


def _make_app(health: Health) -> Starlette:
    # Coroutines, not functions: Starlette would call functions in a pool of 40 more threads.
    async def healthz(request: Request) -> Response:
        hangs_s = health.hangs_for_s
        return _probe_answer(request, f"event loop blocked for {hangs_s:.1f} s" if hangs_s else "")

    async def readyz(request: Request) -> Response:
        return _probe_answer(request, health.not_ready)

    async def status(_: Request) -> Response:
        return Response(json.dumps(health.status) + "\n", media_type="application/json")

    async def metrics(_: Request) -> Response:
        return Response(health.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def unknown(_: Request, __: Exception) -> Response:
        return PlainTextResponse(
            "available: /healthz, /readyz, /status and /metrics\n", status_code=404
        )

    routes = {"/healthz": healthz, "/readyz": readyz, "/status": status, "/metrics": metrics}
    return Starlette(
        routes=[Route(path, endpoint) for path, endpoint in routes.items()],
        exception_handlers={404: unknown},
    )


def _probe_answer(request: Request, problem: str) -> Response:
    """Answer a probe; the reason is for clients with access."""
    if not problem:
        return PlainTextResponse("ok\n")
    reason = problem if getattr(request.state, "has_access", False) else "no"
    return PlainTextResponse(f"{reason}\n", status_code=503)
