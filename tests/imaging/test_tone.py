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
from sci_stream.imaging.tone import FalseColour, ToneSettings, WhiteBalance

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


def test_fixed_gains_do_not_apply_to_mono() -> None:
    video = np.full((1, 4, 4), 0.5)
    tone = ToneSettings(white_balance=WhiteBalance.FIXED, gains=(2.0, 1.0, 0.5))
    assert np.array_equal(render(video, None, tone), render(video, None))
