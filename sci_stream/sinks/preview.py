"""A live web page of what the instrument sees, for any number of viewers, that never holds the instrument up."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import uvicorn

from sci_stream.errors import InputError, TransportError
from sci_stream.model import Reconstruction
from sci_stream.sinks.display import Tone
from sci_stream.sinks.preview_app import Hub, make_app
from sci_stream.sinks.preview_gate import Gate, is_loopback
from sci_stream.sinks.preview_message import encode_picture

_LOG = logging.getLogger(__name__)
_JOIN_S = 5.0
_MOST_INCOMING_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class PreviewOptions:
    """How to serve the page.

    ``host``, ``port`` to listen on, port 0 for any free one; beyond loopback a ``token`` is needed, which viewers
    give once in the address. ``most_px`` bounds the longer side of what is sent. ``stale_s``: without new video for
    longer, the page says NO DATA.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = None
    tone: Tone = field(default_factory=Tone)
    jpeg_quality: int = 85
    most_px: int = 1024
    most_viewers: int = 16
    stale_s: float = 3.0


@dataclass(frozen=True, slots=True)
class _Published:
    number: int
    time_ns: int
    reconstruction: Reconstruction


class WebPreview:
    """Serve the page from a thread of its own; pictures are made in another, and only while someone watches.

    Both keep the newest only. `publish` and `set_status` may be called from any thread and never wait.
    """

    def __init__(self, options: PreviewOptions) -> None:
        if not is_loopback(options.host) and not options.token:
            raise InputError(
                f"The preview would listen on {options.host}, beyond this machine, without a token",
                expected="a token, or a loopback host such as 127.0.0.1",
                hint="Anyone on the network could watch otherwise.",
            )
        self.options = options
        self._hub = Hub(most_viewers=options.most_viewers, stale_s=options.stale_s, on_join=self._encode_for_new_viewer)
        self._hub.counters = self._counters
        self._changed = threading.Condition()
        self._newest: _Published | None = None
        self._published = self._encoded = self._failures = 0
        self._encoded_number = -1
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> str:
        """Begin to serve; return the address to open, with the token in it.

        Raises
        ------
        TransportError
            If the address is in use or not this machine's.
        """
        listener = self._listen()
        port = listener.getsockname()[1]
        cookie = f"sci_stream_{port}"
        token = self.options.token or None
        app = Gate(make_app(self._hub, token=token, cookie=cookie), token, cookie)
        self._server = uvicorn.Server(_server_config(app))
        ready = threading.Event()
        self._threads = [
            threading.Thread(target=self._serve, args=(listener, ready), name="preview-server", daemon=True),
            threading.Thread(target=self._encode, name="preview-encoder", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        ready.wait()
        return self._url(port)

    def _url(self, port: int) -> str:
        host = self.options.host
        if host in {"0.0.0.0", "::"}:  # every interface; viewers need a name
            host = socket.gethostname()
        host = f"[{host}]" if ":" in host else host
        token = f"?token={quote(self.options.token)}" if self.options.token else ""
        return f"http://{host}:{port}/{token}"

    def _listen(self) -> socket.socket:
        host, port = self.options.host, self.options.port
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, kind)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen()
            except OSError:
                listener.close()
                raise
        except OSError as error:
            raise TransportError(
                f"The preview cannot listen on {host}:{port}",
                got=error.strerror or error,
                hint="Another program may use the port: choose another, or 0 for any free one.",
            ) from error
        return listener

    def _serve(self, listener: socket.socket, ready: threading.Event) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            ready.set()
            assert self._server is not None  # made by start
            await self._server.serve(sockets=[listener])

        try:
            asyncio.run(main())
        except Exception:  # the preview is a convenience: the instrument goes on without it
            _LOG.exception("the preview's web server ended")
        finally:
            ready.set()
            listener.close()

    def publish(self, reconstruction: Reconstruction) -> None:
        """Show a reconstruction unless a newer one comes first; its arrays must not be changed afterwards."""
        with self._changed:
            self._newest = _Published(self._published, time.time_ns(), reconstruction)
            self._published += 1
            self._changed.notify_all()

    def set_status(self, status: Mapping[str, Any]) -> None:
        """Show this status on the page and under ``/status``."""
        self._hub.status = dict(status)
        self._wake()

    def close(self) -> None:
        """Send viewers away and stop serving. May be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._hub.closing = True
        self._wake()
        if self._server is not None:
            self._server.should_exit = True
        for thread in self._threads:
            thread.join(_JOIN_S)
        self._threads = []

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(self._hub.wake_all)
            except RuntimeError:
                _LOG.debug("the preview's loop closed meanwhile")

    def _encode_for_new_viewer(self) -> None:
        with self._changed:
            if self._hub.latest is None:
                self._encoded_number = -1
            self._changed.notify_all()

    def _counters(self) -> dict[str, Any]:
        return {"published": self._published, "encoded": self._encoded, "failures": self._failures}

    def _next(self) -> _Published | None:
        """Wait for a reconstruction that is not encoded yet and that someone wants to see; None at the end."""
        with self._changed:
            while not self._closed:
                newest = self._newest
                if newest is not None and newest.number > self._encoded_number and self._hub.viewers:
                    self._encoded_number = newest.number
                    return newest
                self._changed.wait()
            return None

    def _encode(self) -> None:
        options = self.options
        while (newest := self._next()) is not None:
            reconstruction = newest.reconstruction
            try:
                picture = encode_picture(
                    reconstruction,
                    newest.number,
                    newest.time_ns,
                    tone=options.tone,
                    quality=options.jpeg_quality,
                    most_px=options.most_px,
                )
            except Exception:  # one picture that cannot be made must not end the preview
                self._failures += 1
                _LOG.exception("snapshot %d cannot be shown", reconstruction.id.seq)
                continue
            self._encoded += 1
            self._hub.show(picture)
            self._wake()


def _server_config(app: Gate) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        ws="websockets-sansio",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws_max_size=_MOST_INCOMING_BYTES,
        ws_per_message_deflate=False,  # JPEG does not shrink
        timeout_graceful_shutdown=2,
    )
