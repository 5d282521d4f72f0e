"""The live page's web application: pages, the WebSocket with acknowledgements, the MJPEG stream; one event loop.

A viewer's WebSocket names what its browser decodes (``?codec=h264``); it is sent the status once in full, then as
differences.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sci_stream.clock import unix_ns
from sci_stream.delivery.rate_limit import TokenBucket
from sci_stream.imaging.rendering import no_data_jpeg
from sci_stream.model import JsonObject
from sci_stream.web.archive import CODED_EVERY_NS
from sci_stream.web.controls import Controls, answer
from sci_stream.web.downloads import PictureSource, routes
from sci_stream.web.history import History
from sci_stream.web.message import JPEG, Picture, merge_patch

_WEB = Path(__file__).parent / "static"
# Images a viewer may have unacknowledged: one in transit while another is being shown.
_WINDOW = 2
# The status is sent at least this often, so that the page can tell a quiet rig from a lost connection.
_HEARTBEAT_S = 1.0
# MJPEG plays the frames of a snapshot over the camera's period; slow cameras would otherwise show a slide show.
_LONGEST_DWELL_S = 1 / 8
# One acknowledgement per image: far above any real rate, it disconnects viewers that flood the loop.
_ACKS_PER_S, _ACKS_BURST = 500.0, 1000
# A viewer acknowledges each image with about 20 bytes. A ping is answered with as many bytes as it has.
_BYTES_PER_S, _BYTES_BURST = 65_536.0, 262_144
# Each fragment of a message costs memory until its end, which may never come.
_MOST_FRAGMENTS = 256
_GOING_AWAY, _TRY_AGAIN_LATER = 1001, 1013
_BOUNDARY = "frame"


H264 = "h264"


class Viewer:
    """A browser or stream reader: sent and acknowledged images, and its wake-up event. ``codec`` is jpeg or h264."""

    def __init__(self, codec: str) -> None:
        self.codec = codec
        self.wake = asyncio.Event()
        self.wake.set()
        self.sent = -1
        self.status: JsonObject | None = None
        """The status as it was sent last."""
        self._coded_ns = 0
        self._unacknowledged: deque[int] = deque()

    @property
    def ready(self) -> bool:
        """Whether another image may be sent."""
        return len(self._unacknowledged) < _WINDOW

    def take(self, picture: Picture) -> bytes:
        """Return the message to send of an image, and record that it was sent.

        With H.264 the coded snapshot comes twice a second: it would take more than the whole video.
        """
        self.sent = picture.number
        self._unacknowledged.append(picture.number)
        if self.codec == H264 and 0 <= picture.published_ns - self._coded_ns < CODED_EVERY_NS:
            return picture.without_coded.message
        self._coded_ns = picture.published_ns
        return picture.message

    def acknowledge(self, number: int) -> None:
        """Record that all images up to ``number`` have been shown."""
        while self._unacknowledged and self._unacknowledged[0] <= number:
            self._unacknowledged.popleft()
        self.wake.set()


class Hub:
    """The latest image and status, and the viewers.

    `latest` and `status` are replaced by other threads, which then call `wake_all` on the loop; everything else runs on
    the loop. There is one slot for the latest image, not a queue: a slow viewer costs no memory.

    Parameters
    ----------
    on_join
        Called with each new viewer.
    expired
        Returns whether the token of the viewers has expired.
    counters
        Returns further entries of the preview's status.
    """

    def __init__(
        self,
        *,
        most_viewers: int,
        stale_s: float,
        offers_h264: bool,
        on_join: Callable[[Viewer], None],
        expired: Callable[[], bool],
        counters: Callable[[], JsonObject],
    ) -> None:
        self.latest: dict[str, Picture] = {}
        """The latest image by codec, in those that viewers have asked for."""
        self._published_ns = 0
        self._latest_s = 0.0
        self.interval_s = _HEARTBEAT_S
        self.status: JsonObject = {}
        self.history = History()
        self.viewers: set[Viewer] = set()
        self.stale_s = stale_s
        self.closing = False
        self.most_viewers = most_viewers
        self.offers_h264 = offers_h264
        self._on_join, self._expired, self._counters = on_join, expired, counters

    @property
    def over(self) -> bool:
        """Whether viewers are to be disconnected."""
        return self.closing or self._expired()

    def show(self, pictures: dict[str, Picture]) -> None:
        """Replace the latest image, by codec; called from one thread at a time. Without viewers it is not kept."""
        if not self.viewers:
            return
        now_s = time.monotonic()
        published_ns = next(iter(pictures.values())).published_ns
        # The same reconstruction in another tone is no new snapshot: it must not enter the estimate of the pace.
        if not self.latest or self._published_ns != published_ns:
            if self.latest:
                self.interval_s += 0.3 * (min(now_s - self._latest_s, 10.0) - self.interval_s)
            self._latest_s = now_s
        self.latest, self._published_ns = pictures, published_ns

    def picture_for(self, viewer: Viewer) -> Picture | None:
        """Return the latest image in the viewer's codec, or as JPEG, which every viewer decodes."""
        latest = self.latest
        return latest.get(viewer.codec) or latest.get(JPEG)

    def wants(self, codec: str) -> bool:
        """Whether a viewer is to be sent a codec."""
        return any(viewer.codec == codec for viewer in self.viewers)

    def wake_all(self) -> None:
        """Wake every viewer."""
        for viewer in self.viewers:
            viewer.wake.set()

    def join(self, codec: str = JPEG) -> Viewer | None:
        """Add a viewer; None if there are too many."""
        if self.closing or len(self.viewers) >= self.most_viewers:
            return None
        viewer = Viewer(H264 if codec == H264 and self.offers_h264 else JPEG)
        self.viewers.add(viewer)
        self._on_join(viewer)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer. Nothing is encoded without viewers, so the last one also clears the image."""
        self.viewers.discard(viewer)
        if not self.viewers:
            self.latest = {}

    def report(self) -> JsonObject:
        """Return the status with the preview's own counters."""
        preview = {
            "viewers": len(self.viewers),
            "most_viewers": self.most_viewers,
            "stale_s": self.stale_s,
            **self._counters(),
        }
        preview["history"] = self.history.tail()
        return {**self.status, "preview": preview}


class ViewerConnection(WebSocketsSansIOProtocol):
    """A WebSocket that is aborted if its viewer sends more than acknowledgements.

    uvicorn reads control frames and fragments without limit, and answers pings even if the answers are not read.
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

    def handle_cont(self, event: Any) -> None:
        """Handle a fragment of a message."""
        self._fragments = 0 if event.fin else self._fragments + 1
        if self._fragments > _MOST_FRAGMENTS:
            self.transport.abort()
            return
        super().handle_cont(event)


def make_app(hub: Hub, controls: Controls, source: PictureSource, *, token: str | None, cookie: str) -> Starlette:
    """Make the application; `sci_stream.http_server.AccessMiddleware` is wrapped around it."""

    async def control(request: Request) -> Response:
        return await answer(request, controls)

    async def history(_: Request) -> Response:
        return JSONResponse({"history": hub.history.samples()})

    async def index(request: Request) -> Response:
        if token is not None and "token" in request.query_params:
            # Remove the token from the address bar, where it would be copied along with the address.
            response = RedirectResponse("/", status_code=303)
            # Lax: with Strict, a link followed from another site would arrive without the cookie.
            response.set_cookie(cookie, token, httponly=True, samesite="lax")
            return response
        return FileResponse(_WEB / "index.html")

    async def status(_: Request) -> Response:
        # Through text: the status may contain paths and enumerations, which JSONResponse does not accept.
        return JSONResponse(json.loads(json.dumps(hub.report(), default=str)))

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def mjpeg(_: Request) -> Response:
        viewer = hub.join()
        if viewer is None:
            return PlainTextResponse(too_many(hub) + "\n", status_code=503)
        return StreamingResponse(
            _stream_mjpeg(hub, viewer), media_type=f"multipart/x-mixed-replace; boundary={_BOUNDARY}"
        )

    async def live(socket: WebSocket) -> None:
        await _serve_viewer(hub, socket)

    return Starlette(
        routes=[
            Route("/", index),
            Route("/status", status),
            Route("/history", history),
            Route("/control/{name}", control, methods=["POST"]),
            Route("/healthz", healthz),
            Route("/stream.mjpg", mjpeg),
            WebSocketRoute("/live", live),
            *routes(source),
            Mount("/static", StaticFiles(directory=_WEB)),
        ]
    )


def too_many(hub: Hub) -> str:
    """Return why a viewer is not admitted."""
    watching = "1 viewer is" if hub.most_viewers == 1 else f"{hub.most_viewers} viewers are"
    return f"{watching} watching, the most that [preview] most_viewers admits"


async def _serve_viewer(hub: Hub, socket: WebSocket) -> None:
    await socket.accept()
    viewer = hub.join(socket.query_params.get("codec", JPEG))
    if viewer is None:
        await socket.close(_TRY_AGAIN_LATER, too_many(hub))
        return
    # Two tasks: acknowledgements must arrive while an image is being sent over a slow link.
    tasks = {asyncio.create_task(_send(hub, viewer, socket)), asyncio.create_task(_receive(viewer, socket))}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        hub.leave(viewer)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        error = task.exception()
        if error is not None and not isinstance(error, WebSocketDisconnect | OSError):
            raise error
    if hub.over:
        with suppress(RuntimeError, OSError, WebSocketDisconnect):
            await socket.close(_GOING_AWAY)


async def _send(hub: Hub, viewer: Viewer, socket: WebSocket) -> None:
    """Send the newest image whenever the viewer is ready for one, and the status at least every second."""
    last_status: JsonObject | None = None
    while not hub.over:
        awakened = await _awakened(viewer)
        if not awakened or hub.status is not last_status:
            last_status = hub.status
            await socket.send_text(_status_text(hub, viewer))
        picture = hub.picture_for(viewer)
        # Newest wins: images that a slow viewer cannot take are skipped, so that its lag stays bounded.
        if picture is not None and picture.number > viewer.sent and viewer.ready:
            await socket.send_bytes(viewer.take(picture))


async def _awakened(viewer: Viewer) -> bool:
    """Wait for news, at most one heartbeat; return whether there is any."""
    try:
        # Not wait_for: that of Python 3.11 loses a cancellation that coincides with news, and the viewer stays.
        async with asyncio.timeout(_HEARTBEAT_S):
            await viewer.wake.wait()
    except TimeoutError:
        return False
    viewer.wake.clear()
    return True


def _status_text(hub: Hub, viewer: Viewer) -> str:
    """Return the message of a status: in full (``status``) the first time, then what has changed (``changes``)."""
    status: JsonObject = json.loads(json.dumps(hub.report(), default=str))
    content = {"status": status} if viewer.status is None else {"changes": merge_patch(viewer.status, status)}
    viewer.status = status
    return json.dumps({"type": "status", "now_ns": unix_ns(), **content}, separators=(",", ":"))


async def _receive(viewer: Viewer, socket: WebSocket) -> None:
    """Process acknowledgements; ignore everything else a viewer sends."""
    rate = TokenBucket(_ACKS_PER_S, _ACKS_BURST)
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        if not rate.take(time.monotonic()):
            return  # a page sends one word per image
        try:
            number = json.loads(message.get("text") or "{}")["ack"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if isinstance(number, int):
            viewer.acknowledge(number)


async def _stream_mjpeg(hub: Hub, viewer: Viewer) -> AsyncIterator[bytes]:
    """Yield the frames of the newest image at the pace of the camera; a NO DATA image if none arrives."""
    stale_shown = False
    joined_ns = unix_ns()
    try:
        while not hub.over:
            picture = hub.latest.get(JPEG)
            if picture is not None and picture.number > viewer.sent:
                viewer.sent, stale_shown = picture.number, False
                dwell_s = min(hub.interval_s / len(picture.frames), _LONGEST_DWELL_S)
                for frame in picture.frames:
                    yield _part(frame)
                    await asyncio.sleep(dwell_s)
                continue
            age_s = (unix_ns() - (joined_ns if picture is None else picture.published_ns)) / 1e9
            if age_s >= hub.stale_s and not stale_shown:
                stale_shown = True
                yield _part(no_data_jpeg(picture.frames[-1] if picture is not None else None))
            await _awakened(viewer)
    finally:
        hub.leave(viewer)


def _part(jpeg: bytes) -> bytes:
    # The boundary also follows each image, because browsers show a part only once they have seen its end.
    head = f"--{_BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
    return head.encode() + jpeg + b"\r\n"
