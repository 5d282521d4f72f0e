"""The live page's web application: pages, the WebSocket with acknowledgements; one event loop.

A viewer's WebSocket names what its browser decodes (``?codec=h264``); it is sent the status once in
full, then as differences.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sci_stream.clock import unix_ns
from sci_stream.delivery.rate_limit import TokenBucket
from sci_stream.errors import EnvironmentFault, SciStreamError
from sci_stream.model import JsonObject
from sci_stream.quantities import page_texts
from sci_stream.reports import CalibrationHealth, SolveReport
from sci_stream.web.archive import KEPT_S, SPANS_S
from sci_stream.web.controls import Ask, answer
from sci_stream.web.display import Display
from sci_stream.web.downloads import routes
from sci_stream.web.hub import HEARTBEAT_S, Hub, Viewer
from sci_stream.web.message import JPEG, merge_patch
from sci_stream.web.replays import Replays
from sci_stream.web.slots import Slots

_WEB = Path(__file__).parent / "static"
# One acknowledgement per image: far above any real rate, it disconnects viewers that flood the
# loop.
_ACKS_PER_S = 500.0
_ACKS_BURST = 1000
# A viewer acknowledges each image with about 20 bytes. A ping is answered with as many bytes as it
# has.
_BYTES_PER_S = 65_536.0
_BYTES_BURST = 262_144
# Each fragment of a message costs memory until its end, which may never come.
_MAX_FRAGMENTS = 256
_GOING_AWAY = 1001
_TRY_AGAIN_LATER = 1013


_TOKEN_PAGE = (_WEB / "token.html").read_text("utf-8")
_TOKEN_STYLE = _TOKEN_PAGE.partition("<style>")[2].partition("</style>")[0]
_TOKEN_POLICY = (
    "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; style-src "
    "'sha256-" + base64.b64encode(hashlib.sha256(_TOKEN_STYLE.encode()).digest()).decode() + "'"
)


class ViewerConnection(WebSocketsSansIOProtocol):
    """A WebSocket that is aborted if its viewer sends more than acknowledgements.

    uvicorn reads control frames and fragments without limit, and answers pings even if the answers
    are not read.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bytes = TokenBucket(_BYTES_PER_S, _BYTES_BURST)
        self._fragments = 0

    def data_received(self, data: bytes) -> None:
        """Handle data within the rate limit."""
        if not self._bytes.take(self.loop.time(), len(data)):
            self.transport.abort()
            return
        super().data_received(data)

    def handle_text(self, event: Any) -> None:
        """Handle a text as bytes: uvicorn logs a traceback for one that is not UTF-8."""
        super().handle_bytes(event)

    async def send(self, message: ASGISendEvent) -> None:
        """Send; to a viewer that has said goodbye as to one that has gone."""
        await self.writable.wait()
        if self.handshake_complete and self.close_sent:
            raise ClientDisconnected
        await super().send(message)

    def handle_cont(self, event: Any) -> None:
        """Handle a fragment of a message."""
        self._fragments = 0 if event.fin else self._fragments + 1
        if self._fragments > _MAX_FRAGMENTS:
            self.transport.abort()
            return
        super().handle_cont(event)


def make_app(
    hub: Hub, display: Display, ask: Ask | None, replays: Replays, *, token: str | None, cookie: str
) -> Starlette:
    """Make the application; `sci_stream.transport.http.AccessMiddleware` is wrapped around it.

    ``ask`` requests operations beyond the page, None if there are none; ``token`` is None for none,
    ``cookie`` stores it in a browser.
    """
    replay_slot = Slots(1)

    async def control(request: Request) -> Response:
        return await answer(request, display, replays, ask, replay_slot)

    async def history(request: Request) -> Response:
        span = request.query_params.get("span", str(KEPT_S))
        if span not in map(str, SPANS_S):
            return JSONResponse({"error": f"span is one of {[*SPANS_S]}"}, status_code=400)
        return JSONResponse({"history": hub.history.samples(span_s=int(span))})

    async def quantities(_: Request) -> Response:
        return JSONResponse(
            {"solve": page_texts(SolveReport), "calibration": page_texts(CalibrationHealth)}
        )

    async def index(request: Request) -> Response:
        if token is not None and "token" in request.query_params:
            # Remove the token from the address bar, where it would be copied along with the
            # address.
            response = RedirectResponse("./", status_code=303)
            # Lax: with Strict, a link followed from another site would arrive without the cookie.
            response.set_cookie(cookie, token, httponly=True, samesite="lax")
            return response
        return FileResponse(_WEB / "index.html")

    async def status(_: Request) -> Response:
        return JSONResponse(hub.report())

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def live(socket: WebSocket) -> None:
        with suppress(OSError, WebSocketDisconnect):  # the viewer has gone
            await _serve_viewer(hub, socket)

    return Starlette(
        routes=[
            Route("/", index, middleware=[Middleware(GZipMiddleware)]),
            Route("/status", status),
            Route("/history", history),
            Route("/quantities", quantities),
            Route("/control/{name}", control, methods=["POST"]),
            Route("/healthz", healthz),
            WebSocketRoute("/live", live),
            *routes(hub, display, replays),
            Mount("/static", GZipMiddleware(StaticFiles(directory=_WEB))),
        ],
        exception_handlers={SciStreamError: _refuse},
    )


async def _refuse(_: Request, error: Exception) -> Response:
    status = 503 if isinstance(error, EnvironmentFault) else 400
    return JSONResponse({"ok": False, "error": str(error)}, status_code=status)


def token_page(why: str) -> HTMLResponse:
    """Return the page that gives the reason of a refusal and asks for the token."""
    text = html.escape(why[:1].upper() + why[1:] + ".")
    return HTMLResponse(
        _TOKEN_PAGE.replace("REFUSAL", text),
        status_code=403,
        headers={"Content-Security-Policy": _TOKEN_POLICY},
    )


def too_many(hub: Hub) -> str:
    """Return the reason for refusing a further viewer."""
    watching = "1 viewer is" if hub.max_viewers == 1 else f"{hub.max_viewers} viewers are"
    return f"{watching} watching, the limit set by [preview] max_viewers"


async def _serve_viewer(hub: Hub, socket: WebSocket) -> None:
    await socket.accept()
    viewer = hub.join(socket.query_params.get("codec", JPEG))
    if viewer is None:
        await socket.close(_TRY_AGAIN_LATER, too_many(hub))
        return
    # Two tasks: acknowledgements must arrive while an image is being sent over a slow link.
    tasks = {
        asyncio.create_task(_send(hub, viewer, socket)),
        asyncio.create_task(_receive(viewer, socket)),
    }
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        hub.leave(viewer)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    if hub.closing:
        await socket.close(_GOING_AWAY)


async def _send(hub: Hub, viewer: Viewer, socket: WebSocket) -> None:
    """Send the newest image whenever the viewer is ready for one, and the status at least every
    second.
    """
    last_status: JsonObject | None = None
    while not hub.closing:
        awakened = await _awakened(viewer)
        if not awakened or hub.status is not last_status:
            last_status = hub.status
            await socket.send_text(_status_text(hub, viewer))
        picture = hub.picture_for(viewer)
        # Newest wins: images that a slow viewer cannot take are skipped, so that its lag stays
        # bounded.
        if picture is not None and picture.number > viewer.sent and viewer.ready:
            await socket.send_bytes(viewer.take(picture))


async def _awakened(viewer: Viewer) -> bool:
    """Wait for an image or a status, at most one heartbeat; return whether one has arrived."""
    try:
        # Not wait_for: that of Python 3.11 loses a cancellation that coincides with the event, and
        # the viewer stays.
        async with asyncio.timeout(HEARTBEAT_S):
            await viewer.wake.wait()
    except TimeoutError:
        return False
    viewer.wake.clear()
    return True


def _status_text(hub: Hub, viewer: Viewer) -> str:
    """Return the message of a status: in full (``status``) the first time, then what has changed
    (``changes``).
    """
    status = hub.report()
    content = (
        {"status": status}
        if viewer.status is None
        else {"changes": merge_patch(viewer.status, status)}
    )
    viewer.status = status
    return json.dumps({"type": "status", "now_ns": unix_ns(), **content}, separators=(",", ":"))


async def _receive(viewer: Viewer, socket: WebSocket) -> None:
    """Process acknowledgements; ignore all other messages of a viewer."""
    rate = TokenBucket(_ACKS_PER_S, _ACKS_BURST)
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        if not rate.take(time.monotonic()):
            return  # a page sends one message per image
        try:
            number = json.loads(message.get("bytes") or "{}")["ack"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(number, int):
            viewer.acknowledge(number)
