from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sci_stream.model import BayerPhase, FrameIds
from sci_stream_drivers.simulated import FaultOptions, SimulatedOptions


def made(**options: Any) -> SimulatedOptions:
    return SimulatedOptions.model_validate(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": True}, "colour"),
        ({"scene": "fats"}, "Did you mean fast"),
        ({"scene": "clips"}, "'./clips'"),
        ({"width_px": 31}, "even"),
        ({"bit_depth": 16}, "bit_depth"),
        ({"black_level_dn": 300, "bit_depth": 8}, "255"),
        ({"n_frames": 0}, "n_frames"),
        ({"bayer": "rgb"}, "(?s)bayer.*RGGB, GRBG, GBRG, BGGR or none.*input_value='rgb'"),
        ({"faults": {"id_first": 5, "id_last": 5}}, "greater than id_first"),
        ({"faults": {"drop": 0.1}}, "drop"),
    ],
)
def test_invalid_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        made(**options)


def test_every_option_has_a_description() -> None:
    for model in (SimulatedOptions, FaultOptions):
        assert all(field.description for field in model.model_fields.values())


@pytest.mark.parametrize(
    ("given", "meant"), [("none", None), ("mono", None), ("gbrg", BayerPhase.GBRG)]
)
def test_bayer_option_accepts_every_phase_or_none(given: str, meant: BayerPhase | None) -> None:
    assert made(bayer=given).bayer is meant


@pytest.mark.parametrize(("bits", "black"), [(8, 4.0), (10, 16.0), (12, 64.0)])
def test_black_level_follows_the_bit_depth_unless_set(bits: int, black: float) -> None:
    assert made(bit_depth=bits).black_dn == black
    assert made(bit_depth=bits, black_level_dn=1.5).black_dn == 1.5


def test_monochrome_sensor_may_have_odd_size() -> None:
    assert made(bayer="none", width_px=31).width_px == 31


def test_frame_ids_follow_the_options() -> None:
    assert made(faults={"id_first": 1, "id_last": 65535}).faults.frame_ids == FrameIds(1, 65535)
