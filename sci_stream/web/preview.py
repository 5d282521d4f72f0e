"""A live web page of what the instrument sees, for any number of viewers, that never holds the instrument up."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from starlette.types import ASGIApp

from sci_stream.clock import host_s, unix_ns
from sci_stream.config.fields import is_loopback
from sci_stream.errors import InputError, TransportError
from sci_stream.imaging.tone import ToneSettings, pick_white
from sci_stream.model import Reconstruction, SeriesInfo
from sci_stream.security.http_access import HttpAccessControl
from sci_stream.web.app import Hub, make_app
from sci_stream.web.auth import AccessMiddleware
from sci_stream.web.controls import OperatorControl
from sci_stream.web.message import encode_picture
from sci_stream.web.still import save_still

_LOG = logging.getLogger(__name__)
_JOIN_S = 5.0
_VISITS_PER_S, _VISITS_BURST = 100.0, 1000
"""Requests of one address: a page is some twenty, a slider that is dragged asks with each step."""


@dataclass(frozen=True, slots=True)
class PreviewOptions:
    """How to serve the page.

    ``host``, ``port`` to listen on, port 0 for any free one; beyond loopback a ``token`` is needed, which viewers
    give once in the address, until ``token_expires_s`` (Unix time). ``most_px`` bounds the longer side of what is sent.
    ``stale_s``: without new video for longer, the page says NO DATA. ``stills`` is the folder that snapshots are saved
    to from the page.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = None
    token_expires_s: float = math.inf
    tone: ToneSettings = field(default_factory=ToneSettings)
    jpeg_quality: int = 85
    most_px: int = 1024
    most_viewers: int = 16
    stale_s: float = 3.0
    stills: Path = Path("stills")


@dataclass(frozen=True, slots=True, eq=False)
class _Published:
    time_ns: int
    reconstruction: Reconstruction


class WebPreview:
    """Serve the page from a thread of its own; pictures are made in another, and only while someone watches.

    Both keep the newest only. `publish` and `set_status` may be called from any thread and never wait.

    Parameters
    ----------
    options
        How to serve.
    operator
        Does for the page what concerns more than the page: starts and stops the recording, asks nodes. None where
        there is nothing of the kind.

    Raises
    ------
    InputError
        If it would listen beyond loopback without a token.
    """

    def __init__(self, options: PreviewOptions, operator: OperatorControl | None = None) -> None:
        if not is_loopback(options.host) and not options.token:
            raise InputError(
                f"The preview would listen on {options.host}, beyond this machine, without a token",
                expected="a token, or a loopback host such as 127.0.0.1",
                hint="Anyone on the network could watch otherwise.",
            )
        self.options = options
        self._hub = Hub(most_viewers=options.most_viewers, stale_s=options.stale_s, on_join=self._encode_for_new_viewer)
        self._hub.counters = self._counters
        self._turnstile = HttpAccessControl(
            options.token or None, options.token_expires_s, per_s=_VISITS_PER_S, burst=_VISITS_BURST
        )
        self._hub.expired = lambda: self._turnstile.expired(host_s())
        self._changed = threading.Condition()
        self._newest: _Published | None = None
        self._operator = operator
        self._tone = options.tone
        self._published = self._encoded = self._failures = 0
        self._pictures = 0
        self._shown: tuple[_Published, ToneSettings] | None = None
        self._bit_depth: int | None = None
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
        listener = listen(self.options.host, self.options.port)
        port = listener.getsockname()[1]
        cookie = f"sci_stream_{port}"
        token = self.options.token or None
        app = AccessMiddleware(
            make_app(self._hub, self, token=token, cookie=cookie),
            self._turnstile,
            cookie,
            needs_token=token is not None,
        )
        self._server = uvicorn.Server(server_config(app))
        ready = threading.Event()
        self._threads = [
            threading.Thread(target=self._serve, args=(listener, ready), name="preview-server", daemon=True),
            threading.Thread(target=self._encode, name="preview-encoder", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        ready.wait()
        return address(self.options.host, port, token)

    @property
    def refused(self) -> Counter[str]:
        """Requests refused so far, by reason."""
        return self._turnstile.refused

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

    def series_started(self, info: SeriesInfo) -> None:
        """Take note of what is being filmed."""
        self._bit_depth = info.bit_depth

    def publish(self, reconstruction: Reconstruction) -> None:
        """Show a reconstruction unless a newer one comes first; its arrays must not be changed afterwards."""
        now_ns = unix_ns()
        self._hub.history.add(reconstruction, now_ns / 1e9)
        with self._changed:
            self._newest = _Published(now_ns, reconstruction)
            self._published += 1
            self._changed.notify_all()

    def set_status(self, status: Mapping[str, Any]) -> None:
        """Show this status on the page and under ``/status``."""
        self._hub.history.update(status, unix_ns() / 1e9)
        self._hub.status = dict(status)
        self._wake()

    # --- what viewers may do (preview_controls.Controls)

    @property
    def tone(self) -> ToneSettings:
        """How the video looks now."""
        return self._tone

    def set_tone(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change how the video looks, for all viewers; see `preview_controls.Controls`."""
        with self._changed:
            self._tone = self._tone.changed(changes)
            self._changed.notify_all()
        self._wake()
        return self._tone.as_dict()

    def pick_white(self, x: float, y: float) -> dict[str, Any]:
        """Make a point of the newest picture grey; see `preview_controls.Controls`."""
        reconstruction = self._newest_reconstruction("There is no picture to pick white from")
        if reconstruction.bayer is None:
            raise InputError("A monochrome camera has no white balance")
        gains = pick_white(reconstruction.video, reconstruction.bayer, x, y, self._tone.black)
        return self.set_tone({"white_balance": "fixed", "gains": gains})

    def save_still(self) -> str:
        """Save the newest reconstruction; see `preview_controls.Controls`."""
        reconstruction = self._newest_reconstruction("There is no snapshot to save")
        return str(save_still(self.options.stills, reconstruction, self._tone))

    def switch_recording(self, on: bool, who: str) -> Future[str]:
        """Start or stop the recording; see `preview_controls.OperatorControl`."""
        if self._operator is None:
            raise InputError("Nothing can be recorded here")
        return self._operator.switch_recording(on, who)

    def ask(self, node: str, action: str, parameters: Mapping[str, object], who: str) -> Future[dict[str, Any]]:
        """Ask nodes for something; see `preview_controls.OperatorControl`."""
        if self._operator is None:
            raise InputError("There are no nodes here to ask")
        return self._operator.ask(node, action, parameters, who)

    def _newest_reconstruction(self, otherwise: str) -> Reconstruction:
        newest = self._newest
        if newest is None:
            raise InputError(otherwise, hint="Wait for the first video.")
        return newest.reconstruction

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
                self._shown = None
            self._changed.notify_all()

    def _counters(self) -> dict[str, Any]:
        return {
            "published": self._published,
            "encoded": self._encoded,
            "failures": self._failures,
            "tone": self._tone.as_dict(),
            "rig_tone": self.options.tone.as_dict(),
            "can_record": self._operator is not None,
        }

    def _next(self) -> tuple[_Published, ToneSettings] | None:
        """Wait for a reconstruction, or a tone, that someone wants to see and no one has; None at the end."""
        with self._changed:
            while not self._closed:
                wanted = None if self._newest is None else (self._newest, self._tone)
                if wanted is not None and wanted != self._shown and self._hub.viewers:
                    self._shown = wanted
                    return wanted
                self._changed.wait()
            return None

    def _encode(self) -> None:
        options = self.options
        while (wanted := self._next()) is not None:
            newest, tone = wanted
            try:
                picture = encode_picture(
                    newest.reconstruction,
                    self._pictures,
                    newest.time_ns,
                    tone=tone,
                    quality=options.jpeg_quality,
                    most_px=options.most_px,
                    bit_depth=self._bit_depth,
                )
            except Exception:  # one picture that cannot be made must not end the preview
                self._failures += 1
                _LOG.exception("snapshot %d cannot be shown", newest.reconstruction.id.seq)
                continue
            self._pictures += 1
            self._encoded += 1
            self._hub.show(picture)
            self._wake()


_MOST_INCOMING_BYTES = 1 << 16


def address(host: str, port: int, token: str | None) -> str:
    """Return the address to open, with the token in it."""
    if host in {"0.0.0.0", "::"}:  # every interface; viewers need a name
        host = socket.gethostname()
    host = f"[{host}]" if ":" in host else host
    query = f"?token={quote(token)}" if token else ""
    return f"http://{host}:{port}/{query}"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 for any free one.

    Raises
    ------
    TransportError
        If the address is in use or not this machine's.
    """
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
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


def server_config(app: ASGIApp) -> uvicorn.Config:
    """Return the web server's settings."""
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
