"""Server of the live page, for any number of viewers, without blocking the instrument."""

from __future__ import annotations

import logging
import math
import socket
import threading
from collections import Counter, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from sci_stream.clock import unix_ns
from sci_stream.config.fields import is_loopback
from sci_stream.errors import InputError
from sci_stream.http_server import AccessMiddleware, BrowserLogin, HttpServer, listen
from sci_stream.imaging.tone import ToneSettings, pick_white
from sci_stream.model import JsonObject, Reconstruction, SeriesInfo
from sci_stream.parameters import Changes
from sci_stream.security.http_access import HttpAccessControl
from sci_stream.web import h264
from sci_stream.web.app import H264, Hub, Viewer, ViewerConnection, make_app
from sci_stream.web.archive import PictureArchive
from sci_stream.web.controls import OperatorControl
from sci_stream.web.message import JPEG, Picture, RenderedSnapshot, jpeg_picture, render_snapshot
from sci_stream.web.still import save_still
from sci_stream.web.token_page import token_page

_LOG = logging.getLogger(__name__)
# The encoder is a daemon thread in case it hangs.
_JOIN_S = 5.0
# Snapshots that were shown stay in memory, so that a viewer who pauses can save the one on the screen.
_SHOWN_BYTES = 256 << 20
# Requests per address: a page makes about twenty, dragging a slider one with each step.
_VISITS_PER_S, _VISITS_BURST = 100.0, 1000


@dataclass(frozen=True, slots=True)
class PreviewOptions:
    """Settings of the live page.

    ``host`` and ``port`` to listen on, port 0 for any free one; beyond loopback a ``token`` is required, which viewers
    give once in the address, until ``token_expires_s`` (Unix time). ``most_px`` limits the longer side of the images.
    After ``stale_s`` without new video the page shows NO DATA. ``recordings`` is the folder whose files the page lists,
    ``stills`` that for snapshots saved from the page. ``archive_bytes`` is the memory for the pictures of the last
    minutes, ``h264_mbit_per_s`` the bound on H.264 for each viewer; 0 for JPEG alone.
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
    recordings: Path = Path("recordings")
    stills: Path = Path("stills")
    archive_bytes: int = 256 << 20
    h264_mbit_per_s: float = 12.0


@dataclass(frozen=True, slots=True, eq=False)
class _Published:
    time_ns: int
    reconstruction: Reconstruction


class WebPreview:
    """Serve the live page in one thread and encode images in another, only while there are viewers.

    Both keep only the newest image. `publish` and `set_status` may be called from any thread and never block.

    Parameters
    ----------
    options
        Settings.
    operator
        Performs operations beyond the page: switches the recording, sends requests to nodes. None if not available.

    Raises
    ------
    InputError
        If the host is beyond loopback and there is no token.
    """

    def __init__(self, options: PreviewOptions, operator: OperatorControl | None = None) -> None:
        if not is_loopback(options.host) and not options.token:
            raise InputError(
                f"The live page would listen on {options.host}, beyond this machine, without a token",
                expected="a token, or a loopback host such as 127.0.0.1",
                hint="Otherwise anyone on the network could watch.",
            )
        self.options = options
        wants_h264 = options.h264_mbit_per_s > 0 and h264.available()
        self._h264 = h264.SnapshotEncoder(options.h264_mbit_per_s) if wants_h264 else None
        self.archive = PictureArchive(options.archive_bytes)
        self._access = HttpAccessControl(
            options.token or None, options.token_expires_s, per_s=_VISITS_PER_S, burst=_VISITS_BURST
        )
        self._hub = Hub(
            most_viewers=options.most_viewers,
            stale_s=options.stale_s,
            offers_h264=wants_h264,
            on_join=self._encode_for_new_viewer,
            expired=lambda: self._access.expired(unix_ns() / 1e9),
            counters=self._counters,
        )
        self._changed = threading.Condition()
        self._newest: _Published | None = None
        self._operator = operator
        self._tone = options.tone
        self._published = self._encoded = self._failures = 0
        self._pictures = 0
        self._shown: tuple[_Published, ToneSettings] | None = None
        self._recent: deque[Reconstruction] = deque()
        self._recent_bytes = 0
        self.bit_depth: int | None = None
        """Bit depth of the sensor, if known."""
        self._closed = False
        self._server: HttpServer | None = None
        self._encoder: threading.Thread | None = None
        self.url = ""
        """Address of the page without its token, once started."""

    def start(self) -> str:
        """Start the server; return the address to open, including the token.

        Raises
        ------
        TransportError
            If the address is in use or not on this machine.
        """
        listener = listen(
            self.options.host,
            self.options.port,
            what="The live page ([preview] port)",
            hint="Another program may use the port: choose another, or 0 for any free one.",
        )
        port = listener.getsockname()[1]
        # Browsers share cookies between the ports of a host: two rigs on one host must not overwrite each other's
        # token.
        cookie = f"sci_stream_{port}"
        token = self.options.token or None
        app = make_app(self._hub, self, self, token=token, cookie=cookie)
        guarded = AccessMiddleware(app, self._access, "preview", BrowserLogin(cookie, token_page))
        self._server = HttpServer(guarded, listener, "preview-server", websockets=ViewerConnection, trust_proxy=True)
        self._encoder = threading.Thread(target=self._encode, name="preview-encoder", daemon=True)
        self._encoder.start()
        self.url = address(self.options.host, port, None)
        return address(self.options.host, port, token)

    @property
    def refused(self) -> Counter[str]:
        """Numbers of refused requests by reason."""
        return self._access.refused

    def series_started(self, info: SeriesInfo) -> None:
        """Set the description of the series."""
        self.bit_depth = info.bit_depth

    def publish(self, reconstruction: Reconstruction) -> None:
        """Show a reconstruction unless a newer one arrives first; its arrays must not be modified afterwards."""
        now_ns = unix_ns()
        self._hub.history.add(reconstruction, now_ns / 1e9)
        with self._changed:
            self._newest = _Published(now_ns, reconstruction)
            self._published += 1
            self._changed.notify_all()

    def set_status(self, status: JsonObject) -> None:
        """Show a status on the page and under ``/status``."""
        self._hub.history.update(status, unix_ns() / 1e9)
        self._hub.status = dict(status)
        self._wake()

    # --- sci_stream.web.controls.Controls

    @property
    def tone(self) -> ToneSettings:
        """Current tone settings."""
        return self._tone

    def set_tone(self, changes: Changes) -> JsonObject:
        """Change the tone settings for all viewers; see `sci_stream.web.controls.Controls`."""
        with self._changed:
            self._tone = self._tone.changed(changes)
            self._changed.notify_all()
        self._wake()
        return self._tone.as_dict()

    def pick_white(self, x: float, y: float) -> JsonObject:
        """Make a point of the newest image grey; see `sci_stream.web.controls.Controls`."""
        reconstruction = self._newest_reconstruction("There is no image for a white balance")
        if reconstruction.bayer is None:
            raise InputError("A monochrome camera has no white balance")
        gains = pick_white(reconstruction.video, reconstruction.bayer, x, y, self._tone.black)
        return self.set_tone({"white_balance": "fixed", "gains": gains})

    def save_still(self, series: str | None = None, seq: int | None = None) -> str:
        """Save a snapshot that was shown; see `sci_stream.web.controls.Controls`."""
        reconstruction = self._newest_reconstruction("There is no snapshot to save")
        if series is not None and (reconstruction.id.series, reconstruction.id.seq) != (series, seq):
            reconstruction = self.find_shown(series, seq)
        return str(save_still(self.options.stills, reconstruction, self._tone))

    def switch_recording(self, on: bool, who: str) -> Future[str]:
        """Start or stop the recording; see `sci_stream.web.controls.OperatorControl`."""
        if self._operator is None:
            raise InputError("Recording is not available here")
        return self._operator.switch_recording(on, who)

    def ask(self, node: str, action: str, parameters: Changes, who: str) -> Future[JsonObject]:
        """Send a request to nodes; see `sci_stream.web.controls.OperatorControl`."""
        if self._operator is None:
            raise InputError("No nodes are reachable from here")
        return self._operator.ask(node, action, parameters, who)

    def _newest_reconstruction(self, otherwise: str) -> Reconstruction:
        newest = self._newest
        if newest is None:
            raise InputError(otherwise, hint="Wait for the first video.")
        return newest.reconstruction

    # --- sci_stream.web.downloads.PictureSource

    @property
    def recordings(self) -> Path:
        """Folder of the recordings."""
        return self.options.recordings

    @property
    def open_recording(self) -> str:
        """Name of the file that is being written, ``""`` if none."""
        recording = self._hub.status.get("recording") or {}
        is_open = recording.get("state") in {"recording", "closing"}
        return Path(str(recording.get("file", ""))).name if is_open else ""

    def find_shown(self, series: str, seq: int | None) -> Reconstruction:
        """Return a snapshot that was shown; see `sci_stream.web.downloads.PictureSource`."""
        with self._changed:
            shown = list(self._recent)
        found = next((each for each in reversed(shown) if (each.id.series, each.id.seq) == (series, seq)), None)
        if found is None:
            raise InputError(
                f"Snapshot {seq} of series {series!r} is no longer in memory",
                expected=f"one of the last {len(shown)} that were shown",
                hint="Save sooner after pausing, or export it from the recording.",
            )
        return found

    def _keep_shown(self, reconstruction: Reconstruction) -> None:
        """Keep a reconstruction that is about to be shown, in bounded memory; it is kept once for all its tones."""
        if self._recent and self._recent[-1] is reconstruction:
            return
        self._recent.append(reconstruction)
        self._recent_bytes += _size(reconstruction)
        while len(self._recent) > 1 and self._recent_bytes > _SHOWN_BYTES:
            self._recent_bytes -= _size(self._recent.popleft())

    def close(self) -> None:
        """Disconnect viewers and stop the server. May be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._hub.closing = True
        self._wake()
        if self._server is not None:
            self._server.close()
        if self._encoder is not None:
            self._encoder.join(_JOIN_S)

    def _wake(self) -> None:
        loop = None if self._server is None else self._server.loop
        if loop is not None and not loop.is_closed():
            try:
                # The loop may close between the check and the call, which raises RuntimeError.
                loop.call_soon_threadsafe(self._hub.wake_all)
            except RuntimeError:
                _LOG.debug("The event loop of the live page has ended")

    def _encode_for_new_viewer(self, viewer: Viewer) -> None:
        with self._changed:
            if self._hub.picture_for(viewer) is None:
                self._shown = None
            self._changed.notify_all()

    def _counters(self) -> JsonObject:
        return {
            "published": self._published,
            "encoded": self._encoded,
            "failures": self._failures,
            "tone": self._tone.as_dict(),
            "rig_tone": self.options.tone.as_dict(),
            "can_record": self._operator is not None,
        }

    def _next(self) -> tuple[_Published, ToneSettings] | None:
        """Wait for a reconstruction or tone that a viewer has not seen; None at the end."""
        with self._changed:
            while not self._closed:
                wanted = None if self._newest is None else (self._newest, self._tone)
                # Encoding costs 7 to 20 ms of a core per image (docs/decisions/0018), so nothing is encoded without a
                # viewer.
                if wanted is not None and wanted != self._shown and self._hub.viewers:
                    self._shown = wanted
                    self._keep_shown(wanted[0].reconstruction)
                    return wanted
                self._changed.wait()
            return None

    def _encode(self) -> None:
        options = self.options
        while (wanted := self._next()) is not None:
            newest, tone = wanted
            try:
                rendered = render_snapshot(
                    newest.reconstruction,
                    self._pictures,
                    newest.time_ns,
                    tone=tone,
                    quality=options.jpeg_quality,
                    most_px=options.most_px,
                    bit_depth=self.bit_depth,
                )
                pictures = self._encoded_pictures(rendered)
            except Exception:  # an image that cannot be encoded must not end the preview
                self._failures += 1
                _LOG.exception("Snapshot %d cannot be shown", newest.reconstruction.id.seq)
                continue
            self._pictures += 1
            self._encoded += 1
            self.archive.add(pictures.get(H264) or pictures[JPEG])
            self._hub.show(pictures)
            self._wake()

    def _encoded_pictures(self, rendered: RenderedSnapshot) -> dict[str, Picture]:
        """Encode as H.264 where it is available, and as JPEG for viewers that need it."""
        pictures: dict[str, Picture] = {}
        if self._h264 is not None:
            try:
                codec, units = self._h264.encode(rendered.frames, self._hub.interval_s)
            except Exception:  # a missing or failing encoder costs bandwidth, not the picture
                self._h264, self._hub.offers_h264 = None, False
                _LOG.exception("H.264 failed: the page continues with JPEG")
            else:
                pictures[H264] = Picture(rendered.header, codec, tuple(units), rendered.coded)
        if not pictures or self._hub.wants(JPEG):
            pictures[JPEG] = jpeg_picture(rendered, self.options.jpeg_quality)
        return pictures


def _size(reconstruction: Reconstruction) -> int:
    """Return the bytes of a reconstruction's arrays."""
    return reconstruction.video.nbytes + (0 if reconstruction.counts is None else reconstruction.counts.nbytes)


def address(host: str, port: int, token: str | None) -> str:
    """Return the address to open, including the token."""
    if host in {"0.0.0.0", "::"}:  # all interfaces: viewers need a host name
        host = socket.gethostname()
    host = f"[{host}]" if ":" in host else host
    query = f"?token={quote(token)}" if token else ""
    return f"http://{host}:{port}/{query}"
