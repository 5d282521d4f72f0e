"""Tone settings: ranges, white balance by a picked point, error messages."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.errors import InputError
from sci_stream.imaging.demosaic import Demosaic
from sci_stream.imaging.rendering import render
from sci_stream.imaging.tone import FalseColour, ToneSettings, WhiteBalance, pick_white
from sci_stream.model import BayerPhase
from tests.imaging.mosaics import mosaic_of

settings = st.builds(
    ToneSettings,
    exposure_ev=st.floats(-10, 10),
    black=st.floats(0, 0.9),
    gamma=st.floats(0.1, 10),
    white_balance=st.sampled_from(WhiteBalance),
    gains=st.tuples(*[st.floats(0.125, 8)] * 3),
    false_colour=st.sampled_from(FalseColour),
    demosaic=st.sampled_from(Demosaic),
)


@given(tone=settings)
def test_settings_round_trip_as_plain_values(tone: ToneSettings) -> None:
    assert ToneSettings().changed(json.loads(json.dumps(tone.as_dict()))) == tone


def test_changed_keeps_the_other_settings() -> None:
    tone = ToneSettings(exposure_ev=1.5).changed({"black": 0.02})
    assert (tone.exposure_ev, tone.black) == (1.5, 0.02)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"brightness": 1}, "exposure_ev"),
        ({"exposure_ev": 11}, "less than or equal to 10"),
        ({"exposure_ev": float("nan")}, "a finite number"),
        ({"exposure_ev": True}, "a valid number"),
        ({"exposure_ev": "1"}, "a valid number"),
        ({"gamma": 0}, "0.1"),
        ({"black": 1}, "0.95"),
        ({"gains": [1, 2]}, "gains"),
        ({"gains": [1, 1, 100]}, "8"),
        ({"gains": 2}, "a valid tuple"),
        ({"white_balance": "daylight"}, "grey_world"),
        ({"demosaic": None}, "bilinear"),
    ],
)
def test_invalid_tone_error_names_valid_values(changes: dict, word: str) -> None:
    with pytest.raises(InputError, match=word):
        ToneSettings().changed(changes)


@pytest.mark.parametrize("phase", BayerPhase)
@pytest.mark.parametrize("at", [(0.0, 0.0), (1.0, 1.0), (0.5, 0.4), (0.51, 0.43)])
def test_pick_white_makes_the_point_grey(phase: BayerPhase, at: tuple[float, float]) -> None:
    tint = np.array([0.8, 0.4, 0.2], np.float32)
    video = mosaic_of(np.broadcast_to(0.5 * tint, (2, 20, 28, 3)), phase)
    gains = pick_white(video, phase, *at)
    assert gains == pytest.approx((0.5, 1.0, 2.0), rel=1e-5)
    shown = render(video, phase, ToneSettings(white_balance=WhiteBalance.FIXED, gains=gains))
    assert np.ptp(shown.astype(int), axis=-1).max() <= 1


def test_pick_white_subtracts_the_black_level() -> None:
    video = mosaic_of(np.broadcast_to(np.float32([0.5, 0.3, 0.2]), (1, 16, 16, 3)), BayerPhase.RGGB)
    assert pick_white(video, BayerPhase.RGGB, 0.5, 0.5, black=0.1) == pytest.approx((0.5, 1.0, 2.0), rel=1e-4)


@pytest.mark.parametrize(
    ("light", "x", "word"), [(0.001, 0.5, "too dark"), (0.995, 0.5, "too bright"), (0.5, 1.2, "outside")]
)
def test_pick_white_refuses_points_without_colour(light: float, x: float, word: str) -> None:
    with pytest.raises(InputError, match=word):
        pick_white(np.full((1, 16, 16), light), BayerPhase.RGGB, x, 0.5)


def test_fixed_gains_do_not_apply_to_mono() -> None:
    video = np.full((1, 4, 4), 0.5)
    tone = ToneSettings(white_balance=WhiteBalance.FIXED, gains=(2.0, 1.0, 0.5))
    assert np.array_equal(render(video, None, tone), render(video, None))
