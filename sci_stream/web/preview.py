"""Server of the live page, for any number of viewers, without blocking the instrument."""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from urllib.parse import quote

from sci_stream.clock import unix_ns
from sci_stream.config import PreviewSection
from sci_stream.config.fields import is_loopback, network_location
from sci_stream.errors import InputError
from sci_stream.imaging.raw_picture import RawPicture
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import U8, JsonObject, Reconstruction, SeriesInfo
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.nexus import experiment_of
from sci_stream.transport.http import AccessMiddleware, BrowserLogin, HttpServer, listen
from sci_stream.web import h264
from sci_stream.web.app import ViewerConnection, make_app, token_page
from sci_stream.web.archive import PictureArchive
from sci_stream.web.controls import Ask
from sci_stream.web.display import Display
from sci_stream.web.hub import Hub, Viewer
from sci_stream.web.message import H264, JPEG, Picture, jpeg_picture, render_snapshot
from sci_stream.web.recordings import Recordings
from sci_stream.web.replays import Replays
from sci_stream.wire.messages import RawSnapshots

_LOG = logging.getLogger(__name__)
# The encoder is a daemon thread in case it hangs.
_JOIN_S = 5.0
# Requests per address: a page makes about twenty, dragging a slider one with each step.
_VISITS_PER_S = 100.0
_VISITS_BURST = 1000


def rig_tone(section: PreviewSection) -> ToneSettings:
    """Return the tone at the start, which the rig names."""
    same = {
        field.name: getattr(section, field.name)
        for field in fields(ToneSettings)
        if field.name != "gains"
    }
    return ToneSettings(gains=section.white_gains, **same)


class WebPreview:
    """Serve the live page in one thread and encode images in another, only while there are viewers.

    Both keep only the newest image. `publish` and `set_status` may be called from any thread and
    never block.

    The page lists the files of the folder ``recordings``, and replays them as long as the disk has
    more than ``min_free_mib``. ``ask`` requests operations beyond the page, of the sink and of
    nodes; None if not available. ``solver`` is that of the rig file, whose code may run.

    Raises `InputError` if the host is beyond loopback and there is no token.
    """

    def __init__(
        self,
        section: PreviewSection,
        recordings: Path,
        ask: Ask | None = None,
        *,
        min_free_mib: int = 0,
        solver: str = "",
    ) -> None:
        if not is_loopback(section.host) and not section.token:
            raise InputError(
                f"The live page would listen on {section.host}, beyond this machine, without a "
                "token",
                expected="a token, or a loopback host such as 127.0.0.1",
                hint="Otherwise anyone on the network could watch.",
            )
        self._section = section
        self._ask = ask
        self._rig_tone = rig_tone(section)
        wants_h264 = section.h264_mbit_per_s > 0 and h264.available()
        self._h264 = h264.SnapshotEncoder(section.h264_mbit_per_s) if wants_h264 else None
        self.refused = Counter[str]()
        """Numbers of refused requests by reason."""
        self.archive = PictureArchive(section.history_mib << 20)
        """The kept pictures."""
        self._hub = Hub(
            archive=self.archive,
            max_viewers=section.max_viewers,
            stale_s=section.stale_after_s,
            offers_h264=wants_h264,
            on_join=self._encode_for_new_viewer,
            counters=self._counters,
        )
        self.display = Display(self._rig_tone, lambda: bool(self._hub.viewers))
        """Newest reconstruction, tone and recent snapshots of the page."""
        self._replays = Replays(
            Recordings(recordings, lambda: self._hub.open_recording),
            lambda: self._solvers,
            min_free_mib << 20,
            solver,
        )
        self._solvers: JsonObject = {}
        self._raw: RawPicture | None = None
        self._pixel_um: float | None = None
        self._exposure_us: float | None = None
        self._encoded = self._failures = 0
        self._server: HttpServer | None = None
        self._encoder: threading.Thread | None = None
        self.url = ""
        """Address of the page without its token, once started."""

    def start(self) -> str:
        """Start the server; return the address to open, including the token.

        Raises `TransportError` if the address is in use or not on this machine.
        """
        section = self._section
        listener = listen(
            section.host,
            section.port,
            what="The live page ([preview] port)",
            hint="Another program may use the port: choose another, or 0 for any free one.",
        )
        port = listener.getsockname()[1]
        # Browsers share cookies between the ports of a host: two rigs on one host must not
        # overwrite each other's token.
        cookie = f"sci_stream_{port}"
        token = section.token or None
        app = make_app(
            self._hub, self.display, self._ask, self._replays, token=token, cookie=cookie
        )
        login = BrowserLogin(cookie, token_page)
        guarded = AccessMiddleware(
            app, "preview", token, self.refused, login, per_s=_VISITS_PER_S, burst=_VISITS_BURST
        )
        self._server = HttpServer(
            guarded, listener, "preview-server", websockets=ViewerConnection, trust_proxy=True
        )
        self._encoder = threading.Thread(target=self._encode, name="preview-encoder", daemon=True)
        self._encoder.start()
        self.url = address(section.host, port, None)
        return address(section.host, port, token)

    def series_started(self, info: SeriesInfo, calibration: Calibration) -> None:
        """Set the description of the series."""
        self.display.bit_depth = info.bit_depth
        self._pixel_um = experiment_of(info).pixel_size_um
        exposure_ns = calibration.exposure_ns
        self._exposure_us = exposure_ns / 1e3 if exposure_ns else None
        self._raw = RawPicture(calibration)
        self._replays.series_started(info, calibration)

    def publish(self, reconstruction: Reconstruction) -> None:
        """Show a reconstruction unless a newer one arrives first; its arrays must not be modified
        afterwards.
        """
        now_ns = unix_ns()
        self._hub.history.add(reconstruction, now_ns / 1e9)
        self.display.publish(reconstruction, now_ns)

    def publish_raw(self, raw: RawSnapshots, now_s: float) -> None:
        """Show the last of some snapshots that are only recorded, while someone watches."""
        if self._raw is not None and self._hub.viewers:
            *_, last = raw.snapshots()
            picture = self._raw.show(last, now_s)
            if picture is not None:
                self.display.publish(picture, unix_ns())

    def set_status(self, status: JsonObject, solvers: JsonObject | None = None) -> None:
        """Show a status on the page and under ``/status``; ``solvers`` are the settings of the
        rig's solvers by id.
        """
        self._solvers = solvers or {}
        self._hub.history.update(status, unix_ns() / 1e9)
        self._hub.status = dict(status)
        self._wake()

    def close(self) -> None:
        """Disconnect viewers and stop the server. May be called again."""
        self.display.close()
        self._hub.closing = True
        self._wake()
        self._replays.close()
        if self._server is not None:
            self._server.close()
        if self._encoder is not None:
            self._encoder.join(_JOIN_S)

    def _wake(self) -> None:
        loop = None if self._server is None else self._server.loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(self._hub.wake_all)

    def _encode_for_new_viewer(self, viewer: Viewer) -> None:
        self.display.refresh(again=self._hub.picture_for(viewer) is None)

    def _counters(self) -> JsonObject:
        return {
            "published": self.display.published,
            "encoded": self._encoded,
            "failures": self._failures,
            "tone": self.display.tone.as_dict(),
            "tone_by": self.display.tone_by,
            "rig_tone": self._rig_tone.as_dict(),
            "pixel_um": self._pixel_um,
            "exposure_us": self._exposure_us,
            "can_record": self._ask is not None,
        }

    def _encode(self) -> None:
        while (view := self.display.next_view()) is not None:
            shown, time_ns, tone = view
            try:
                depth = self.display.bit_depth
                rendered = render_snapshot(
                    shown, self._encoded, time_ns, tone=tone, bit_depth=depth
                )
                pictures = self._encoded_pictures(*rendered)
            except Exception:  # an image that cannot be encoded must not end the preview
                self._failures += 1
                _LOG.exception("Snapshot %d cannot be shown", shown.id.seq)
                continue
            self._encoded += 1
            self.archive.add(pictures.get(H264) or pictures[JPEG])
            self._hub.show(pictures)
            self._wake()

    def _encoded_pictures(self, rendered: Picture, frames: U8) -> dict[str, Picture]:
        """Encode as H.264 where it is available, and as JPEG for viewers that need it."""
        pictures: dict[str, Picture] = {}
        if self._h264 is not None:
            try:
                codec, units = self._h264.encode(frames, self._hub.interval_s)
            except Exception:  # a missing or failing encoder costs bandwidth, not the picture
                self._h264 = None
                self._hub.offers_h264 = False
                _LOG.exception("H.264 failed: the page continues with JPEG")
            else:
                pictures[H264] = replace(rendered, codec=codec, frames=tuple(units))
        if not pictures or self._hub.wants(JPEG):
            pictures[JPEG] = jpeg_picture(rendered, frames)
        return pictures


def address(host: str, port: int, token: str | None) -> str:
    """Return the address to open, including the token."""
    if host in {"0.0.0.0", "::"}:  # all interfaces: viewers need a host name
        host = socket.gethostname()
    query = f"?token={quote(token)}" if token else ""
    return f"http://{network_location(host, port)}/{query}"
