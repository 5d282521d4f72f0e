"""The tone of the live page follows the rig file."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sci_stream.config import Rig
from sci_stream.imaging.tone import ToneSettings
from sci_stream.web.preview import rig_tone


def test_rig_tone_is_that_of_page() -> None:
    rig = Rig.model_validate(
        {
            "preview": {
                "exposure_ev": 1.5,
                "black": 0.02,
                "gamma": 1.8,
                "white_balance": "fixed",
                "white_gains": [2.0, 1.0, 1.5],
                "demosaic": "directional",
                "false_colour": "turbo",
            },
        }
    )
    report = rig_tone(rig.preview).as_dict()
    assert report == {
        "exposure_ev": 1.5,
        "black": 0.02,
        "gamma": 1.8,
        "white_balance": "fixed",
        "gains": (2.0, 1.0, 1.5),
        "false_colour": "turbo",
        "demosaic": "directional",
    }


def test_rig_without_tone_has_the_default() -> None:
    assert rig_tone(Rig().preview) == ToneSettings()


@pytest.mark.parametrize(
    "wrong",
    [
        {"white_gains": [1.0, 1.0, 9.0]},
        {"white_gains": [1.0, 1.0]},
        {"demosaic": "best"},
        {"black": 1.0},
    ],
)
def test_invalid_tone_is_refused_with_the_rig(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        Rig.model_validate({"preview": wrong})
