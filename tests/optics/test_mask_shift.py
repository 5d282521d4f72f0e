from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.errors import FileFormatError
from sci_stream.optics.displacement import DISPLACEMENT_LENGTH, NO_DISPLACEMENT, Displacement
from sci_stream.optics.mask_shift import invalid_pixels, shift_masks

WHOLE = st.integers(-3, 3)
WEIGHTS = st.lists(st.floats(-0.2, 0.4), min_size=4, max_size=4).map(
    lambda w: (w[0], w[1], 1.0 - sum(w), w[2], w[3])
)


def masks(seed: int = 3) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((3, 20, 24), dtype=np.float32))


def test_no_displacement_leaves_masks_unchanged() -> None:
    assert torch.equal(shift_masks(masks(), NO_DISPLACEMENT), masks())
    assert NO_DISPLACEMENT.is_none
    assert not bool(invalid_pixels(NO_DISPLACEMENT, (20, 24)).any())


@given(WHOLE, WHOLE)
def test_whole_pixels_move_masks_right_and_down(x: int, y: int) -> None:
    moved = shift_masks(masks(), Displacement((x, y)))
    inside = moved[:, 3:-3, 3:-3]
    assert torch.equal(inside, masks()[:, 3 - y : 17 - y, 3 - x : 21 - x])


@given(WEIGHTS, WEIGHTS, WHOLE)
def test_shift_is_the_centroid_of_a_single_open_element(
    x: tuple[float, ...], y: tuple[float, ...], base: int
) -> None:
    # On half transmission, so that negative weights are not clipped at 0.
    # In double precision: of 1600 pixels at half transmission the rounding alone can move a
    # centroid by 0.002.
    one = torch.full((1, 40, 40), 0.5, dtype=torch.float64)
    one[0, 20, 20] += 0.25
    displacement = Displacement((base, -base), x, y)
    moved = shift_masks(one, displacement)[0] - 0.5
    axis = torch.arange(40.0, dtype=torch.float64) - 20
    total = float(moved.sum())
    found = (float((moved.sum(0) * axis).sum()) / total, float((moved.sum(1) * axis).sum()) / total)
    assert found == pytest.approx(displacement.shift_px, abs=1e-4)


@given(WEIGHTS, WEIGHTS)
def test_recentred_keeps_the_shift(x: tuple[float, ...], y: tuple[float, ...]) -> None:
    inner = Displacement((0, 0), (0.0, *x[1:4], 0.0), (0.0, *y[1:4], 0.0))
    assert inner.recentred().shift_px == pytest.approx(inner.shift_px, abs=1e-9)


def test_invalid_pixels_are_those_beyond_the_calibrated_area() -> None:
    beyond = invalid_pixels(Displacement((0, -1), x=(0, 0, 0.5, 0.5, 0)), (6, 5))
    expected = torch.zeros(6, 5, dtype=torch.bool)
    expected[:, 0] = True  # half of the first column's mask comes from the left of the sensor
    expected[5, :] = True
    assert torch.equal(beyond, expected)


@given(WEIGHTS, WEIGHTS, WHOLE)
def test_to_text_round_trip(x: tuple[float, ...], y: tuple[float, ...], base: int) -> None:
    displacement = Displacement((base, -base), x, y)
    text = displacement.rounded().to_text
    assert Displacement.from_text(text) == displacement.rounded()
    assert text == displacement.to_text
    assert displacement.rounded().shift_px == pytest.approx(displacement.shift_px, abs=4e-4)
    assert sum(displacement.rounded().x) == pytest.approx(1.0)


def test_to_text_is_short_for_any_fit() -> None:
    wild = Displacement(
        (-(10**6), 10**6), x=(-1e9, 1e9, 1, -1e9, 1e9), y=(-77.0, -77.0, 1, -77.0, -77.0)
    )
    wild = replace(wild, linear=(-1.0, 1.0, -77.0, 1e9))
    assert len(wild.to_text) <= DISPLACEMENT_LENGTH
    assert Displacement.from_text(wild.to_text) == wild.rounded()


def test_to_text_of_turned_masks_round_trips() -> None:
    turned = Displacement((1, 0), linear=(0.00012, -0.01745, 0.01745, 0.00012))
    assert turned.to_text == "1,0,0,0,0;0,0,0,0,0;12,-1745,1745,12"
    assert Displacement.from_text(turned.to_text) == turned
    assert turned.recentred().blended(turned, 0.5).linear == turned.linear
    assert "turned by +1.00° and magnified by +0.01%" in turned.words


def test_to_text_without_displacement_is_empty() -> None:
    assert NO_DISPLACEMENT.to_text == Displacement(x=(0, 1e-6, 1 - 1e-6, 0, 0)).to_text == ""
    assert Displacement.from_text("") is NO_DISPLACEMENT


@pytest.mark.parametrize(
    "text", ["1,0", "1,0,0,0,0;", "0,0,0,0,0;0,0,0,0,0.5", "a,0,0,0,0;0,0,0,0,0", " "]
)
def test_from_text_refuses_invalid_text(text: str) -> None:
    with pytest.raises(FileFormatError, match="as in '1,0,0,2500,0;0,0,0,0,0'"):
        Displacement.from_text(text)


def test_blended_averages_displacements_of_one_base() -> None:
    mean = NO_DISPLACEMENT.blended(Displacement(x=(0, 0, 0.5, 0.5, 0)), 0.5)
    assert mean.shift_px == pytest.approx((0.25, 0.0))
    with pytest.raises(ValueError, match="cannot be averaged"):
        NO_DISPLACEMENT.blended(Displacement((1, 0)), 0.5)
