"""The page of ``sci-stream calibrate``: the newest frame with white level,
focus and mask contrast.
"""

from __future__ import annotations

import html
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from sci_stream.config import PreviewSection
from sci_stream.config.fields import network_location
from sci_stream.imaging.rendering import encode_jpeg, render_counts
from sci_stream.model import Array
from sci_stream.transport.http.access import AccessMiddleware, BrowserLogin
from sci_stream.transport.http.server import HttpServer, listen
from sci_stream.web.app import token_page

_SHOW_S = 0.2
_MAX_PX = 800
# Part of the frame that is shown at 1:1.
_ZOOM_PX = 320
_MIDDLE = 0.5
# Middle and corners, as shares of the frame: a tilted relay is sharp in some of them only.
_POINTS = ((0.5, 0.5), (0.15, 0.15), (0.85, 0.15), (0.15, 0.85), (0.85, 0.85))
_POINT_SIZE = 0.2
_PER_S = 20.0
_BURST = 40
_STATIC = Path(__file__).parent / "static"


@dataclass(frozen=True)
class LiveFrame:
    """A frame during a calibration: the present step in words, and its place among all steps.

    ``asks`` while the user is asked to set the step up.
    """

    words: str
    counts: Array
    saturation_dn: float
    dark_dn: float = 0.0
    steps: Sequence[str] = ()
    at: int = 0
    asks: bool = False


def frame_figures(counts: Array, saturation_dn: float, dark_dn: float = 0.0) -> dict[str, float]:
    """Return the level and clipped share of a frame, its sharpness and its contrast.

    ``focus`` is the mean square of the Laplacian relative to the variance: it is largest when the
    edges of the mask elements are sharpest. ``contrast`` is the standard deviation over the mean
    above ``dark_dn``: 1 for sharp random masks half open.
    """
    image = counts[::2, ::2].astype(np.float32)  # one colour of a mosaic
    light = image - np.float32(dark_dn)
    laplacian = (
        4 * image[1:-1, 1:-1]
        - image[:-2, 1:-1]
        - image[2:, 1:-1]
        - image[1:-1, :-2]
        - image[1:-1, 2:]
    )
    variance = float(image.var()) + 1e-9
    return {
        "level": float(np.percentile(image, 99)) / saturation_dn,
        "clipped": float(np.mean(image >= saturation_dn)),
        "focus": float(np.mean(np.square(laplacian))) / variance / 20,
        "contrast": float(light.std()) / max(float(light.mean()), 1e-6),
    }


def figures_at_points(
    counts: Array, saturation_dn: float, dark_dn: float
) -> list[dict[str, float]]:
    """Return focus and contrast in the middle of a frame and near its corners, with each place as a
    share of the frame.
    """
    found = []
    for x, y in _POINTS:
        part = counts[
            _part(y, _POINT_SIZE, counts.shape[0]), _part(x, _POINT_SIZE, counts.shape[1])
        ]
        figures = frame_figures(part, saturation_dn, dark_dn)
        place = {"x": x - _POINT_SIZE / 2, "y": y - _POINT_SIZE / 2}
        size = {"width": _POINT_SIZE, "height": _POINT_SIZE}
        found.append(place | size | {name: figures[name] for name in ("focus", "contrast")})
    return found


def _part(middle: float, size: float, length: int) -> slice:
    """Return the pixels of a part of an axis, from an even one on: a mosaic keeps its colours."""
    n = max(4, round(size * length))
    begin = min(max(round(middle * length - n / 2), 0), max(length - n, 0)) & ~1
    return slice(begin, begin + n)


class CalibrationPage:
    """Serve the page until `close`, at the address and with the token of ``[preview]``."""

    def __init__(self, section: PreviewSection) -> None:
        self._frame: Array | None = None
        self._status: Mapping[str, object] = {"step": "opening the camera", "asks": False}
        self.words = "opening the camera"
        """Step and figures of the newest frame, for a terminal."""
        self._shown_s = 0.0
        self._best_focus = 0.0
        listener = listen(
            section.host,
            section.port,
            what="The page ([preview] port)",
            hint="Choose another port, 0 for any.",
        )
        self.url = f"http://{network_location(section.host, listener.getsockname()[1])}/"
        routes = {
            "/": self._index,
            "/page.js": lambda _: FileResponse(_STATIC / "calibration.js"),
            "/page.css": lambda _: FileResponse(_STATIC / "calibration.css"),
            "/icon.svg": lambda _: FileResponse(_STATIC / "icon.svg"),
            "/status": self._answer_status,
            "/frame.jpg": self._answer_frame,
        }
        app = Starlette(routes=[Route(path, endpoint) for path, endpoint in routes.items()])
        login = BrowserLogin("sci_stream_calibration", token_page)
        guarded = AccessMiddleware(
            app, "preview", section.token, Counter(), login, per_s=_PER_S, burst=_BURST
        )
        self._server = HttpServer(guarded, listener, "calibration-page")

    def show(self, shown: LiveFrame) -> None:
        """Show a frame, at most five per second."""
        now_s = time.monotonic()
        if now_s - self._shown_s < _SHOW_S:
            return
        self._shown_s = now_s
        counts = shown.counts
        levels = (shown.saturation_dn, shown.dark_dn)
        figures = frame_figures(counts, *levels)
        # The noise of a dark field counts as focus: each step has a best one of its own.
        before = self._best_focus if self._status["step"] == shown.words else 0.0
        self._best_focus = max(before, figures["focus"])
        self._frame = counts
        self._status = {
            "step": shown.words,
            "asks": shown.asks,
            "steps": shown.steps,
            "at": shown.at,
            "best_focus": self._best_focus,
            "points": figures_at_points(counts, *levels),
            **figures,
        }
        self.words = (
            f"{shown.words} · white level {figures['level']:.0%} (aim: 50 to 90 %) · "
            f"clipped {figures['clipped']:.2%} · focus {figures['focus']:.3f} "
            f"(best {self._best_focus:.3f}) · mask contrast {figures['contrast']:.2f}"
        )

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    async def _index(self, request: Request) -> Response:
        query = f"?{request.url.query}" if request.url.query else ""
        page = (_STATIC / "calibration.html").read_text("utf-8")
        page = page.replace("{query}", html.escape(query))
        return HTMLResponse(page, headers={"Cache-Control": "no-store"})

    async def _answer_status(self, request: Request) -> Response:
        status = self._status
        frame = self._frame
        if frame is not None:
            rows, columns = _zoomed(request, frame)
            height, width = frame.shape
            zoomed = {
                "x": columns.start / width,
                "y": rows.start / height,
                "width": (columns.stop - columns.start) / width,
                "height": (rows.stop - rows.start) / height,
                "x_px": columns.start,
                "y_px": rows.start,
            }
            status = {**status, "zoomed": zoomed}
        return JSONResponse(status, headers={"Cache-Control": "no-store"})

    async def _answer_frame(self, request: Request) -> Response:
        frame = self._frame
        if frame is None:
            return Response(status_code=404)
        if "x" in request.query_params:
            picture = frame[_zoomed(request, frame)]
        else:
            step = -(-max(frame.shape) // _MAX_PX)
            picture = frame[::step, ::step]
        jpeg = encode_jpeg(render_counts(picture))
        return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "no-store"})


def _zoomed(request: Request, frame: Array) -> tuple[slice, slice]:
    """Return the rows and columns that the viewer wants at 1:1."""

    def asked(name: str) -> float:
        with suppress(ValueError):
            return float(request.query_params.get(name, _MIDDLE))
        return _MIDDLE

    height, width = frame.shape
    return (
        _part(asked("y"), min(1.0, _ZOOM_PX / height), height),
        _part(asked("x"), min(1.0, _ZOOM_PX / width), width),
    )
