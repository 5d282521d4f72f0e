"""The page of ``sci-stream calibrate``: the newest frame with white level,
focus and mask contrast.
"""

from __future__ import annotations

import html
import time
from collections import Counter
from collections.abc import Mapping
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
_PER_S, _BURST = 20.0, 40
_STATIC = Path(__file__).parent / "static"


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


class CalibrationPage:
    """Serve the page until `close`, at the address and with the token of ``[preview]``."""

    def __init__(self, section: PreviewSection) -> None:
        self._frame: Array | None = None
        self._status: Mapping[str, object] = {"step": "opening the camera", "figures": {}}
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
            "/status": self._answer_status,
            "/frame.jpg": self._answer_frame,
        }
        app = Starlette(routes=[Route(path, endpoint) for path, endpoint in routes.items()])
        login = BrowserLogin("sci_stream_calibration", token_page)
        guarded = AccessMiddleware(
            app, "preview", section.token, Counter(), login, per_s=_PER_S, burst=_BURST
        )
        self._server = HttpServer(guarded, listener, "calibration-page")

    def show(self, step: str, counts: Array, saturation_dn: float, dark_dn: float) -> None:
        """Show a frame, at most five per second."""
        now_s = time.monotonic()
        if now_s - self._shown_s < _SHOW_S:
            return
        self._shown_s = now_s
        figures = frame_figures(counts, saturation_dn, dark_dn)
        self._best_focus = max(self._best_focus, figures["focus"])
        texts = {
            "white level, aim 50 to 90 % of the range": f"{figures['level']:.0%}",
            "clipped": f"{figures['clipped']:.2%}",
            "focus, best so far": f"{figures['focus']:.3f}, {self._best_focus:.3f}",
            "mask contrast": f"{figures['contrast']:.2f}",
        }
        self._frame, self._status = counts, {"step": step, "figures": texts, **figures}
        self.words = " · ".join([step, *(f"{name}: {text}" for name, text in texts.items())])

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    async def _index(self, request: Request) -> Response:
        query = f"?{request.url.query}" if request.url.query else ""
        page = (_STATIC / "calibration.html").read_text().format(query=html.escape(query))
        return HTMLResponse(page, headers={"Cache-Control": "no-store"})

    async def _answer_status(self, _: Request) -> Response:
        return JSONResponse(self._status, headers={"Cache-Control": "no-store"})

    async def _answer_frame(self, _: Request) -> Response:
        if self._frame is None:
            return Response(status_code=404)
        step = -(-max(self._frame.shape) // _MAX_PX)
        jpeg = encode_jpeg(render_counts(self._frame[::step, ::step]))
        return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "no-store"})
