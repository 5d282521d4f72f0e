"""The page of a calibration: figures that lead to a good white level and to focus."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import cv2
import numpy as np
import pytest

from sci_stream.config import PreviewSection
from sci_stream.web.calibration_page import (
    CalibrationPage,
    LiveFrame,
    figures_at_points,
    frame_figures,
)

pytestmark = pytest.mark.rig


def frame(sigma_px: float = 0.5, white_dn: float = 3000.0) -> np.ndarray:
    mask = np.random.default_rng(0).random((64, 96)).repeat(4, 0).repeat(4, 1) < 0.5
    image = 100 + white_dn * cv2.GaussianBlur(mask.astype(np.float32), (0, 0), sigma_px)
    return image.astype(np.uint16)


def test_focus_is_largest_for_sharp_masks_in_any_light() -> None:
    focus = [frame_figures(frame(sigma), 4095.0)["focus"] for sigma in (0.5, 1.0, 2.0)]
    assert focus == sorted(focus, reverse=True)
    dim = frame_figures(frame(0.5, 600.0), 4095.0)["focus"]
    assert dim == pytest.approx(focus[0], rel=0.05)


def test_contrast_of_sharp_half_open_masks_is_one() -> None:
    figures = frame_figures(frame(), 4095.0, dark_dn=100.0)
    assert figures["contrast"] == pytest.approx(1.0, abs=0.1)
    assert figures["level"] == pytest.approx(3100 / 4095, abs=0.02)
    assert figures["clipped"] == 0.0
    assert frame_figures(np.full((8, 8), 4095), 4095.0)["clipped"] == 1.0


def test_figures_at_points_show_which_corner_is_blurred() -> None:
    sharp, blurred = frame(0.5), frame(3.0)
    sharp[:100, :100] = blurred[:100, :100]
    focus = [point["focus"] for point in figures_at_points(sharp, 4095.0, 100.0)]
    assert focus[1] < 0.5 * min(focus[0], *focus[2:])


def test_page_shows_frame_and_figures_and_needs_its_token() -> None:
    page = CalibrationPage(PreviewSection(port=0, token="lab"))
    try:
        page.show(LiveFrame("Pattern 3", frame(), 4095.0, 100.0, ("dark", "white", "3"), at=2))

        def get(path: str) -> bytes:
            with urllib.request.urlopen(f"{page.url}{path}token=lab") as answer:
                return bytes(answer.read())

        assert b"page.js?token=lab" in get("?")
        assert page.words.startswith("Pattern 3 · white level")
        status = json.loads(get("status?"))
        assert status["step"] == "Pattern 3"
        assert (status["steps"], status["at"]) == (["dark", "white", "3"], 2)
        assert len(status["points"]) == 5
        whole = cv2.imdecode(np.frombuffer(get("frame.jpg?"), np.uint8), cv2.IMREAD_GRAYSCALE)
        assert whole.shape == (256, 384)
        part = cv2.imdecode(
            np.frombuffer(get("frame.jpg?x=1&y=0&"), np.uint8), cv2.IMREAD_GRAYSCALE
        )
        assert part.shape == (256, 320)
        with pytest.raises(urllib.error.HTTPError, match="HTTP Error 403"):
            urllib.request.urlopen(f"{page.url}status")
    finally:
        page.close()
