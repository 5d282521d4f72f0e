from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.optics.displacement import NO_DISPLACEMENT, Displacement, displace, unknown

WHOLE = st.integers(-3, 3)
WEIGHTS = st.lists(st.floats(-0.2, 0.4), min_size=4, max_size=4).map(lambda w: (w[0], w[1], 1.0 - sum(w), w[2], w[3]))


def masks(seed: int = 3) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((3, 20, 24), dtype=np.float32))


def test_no_displacement_leaves_masks_as_they_are() -> None:
    assert torch.equal(displace(masks(), NO_DISPLACEMENT), masks())
    assert NO_DISPLACEMENT.is_none
    assert not bool(unknown(NO_DISPLACEMENT, (20, 24)).any())


@given(WHOLE, WHOLE)
def test_whole_pixels_move_masks_right_and_down(x: int, y: int) -> None:
    moved = displace(masks(), Displacement((x, y)))
    inside = moved[:, 3:-3, 3:-3]
    assert torch.equal(inside, masks()[:, 3 - y : 17 - y, 3 - x : 21 - x])


@given(WEIGHTS, WEIGHTS, WHOLE)
def test_the_shift_is_where_the_centroid_of_a_single_open_element_goes(
    x: tuple[float, ...], y: tuple[float, ...], base: int
) -> None:
    # On half transmission, so that negative weights are not clipped at 0.
    one = torch.full((1, 40, 40), 0.5)
    one[0, 20, 20] += 0.25
    displacement = Displacement((base, -base), x, y)
    moved = displace(one, displacement)[0].double() - 0.5
    axis = torch.arange(40.0, dtype=torch.float64) - 20
    total = float(moved.sum())
    found = (float((moved.sum(0) * axis).sum()) / total, float((moved.sum(1) * axis).sum()) / total)
    assert found == pytest.approx(displacement.shift_px, abs=1e-3)


@given(WEIGHTS, WEIGHTS)
def test_recentring_keeps_the_shift_of_weights_that_reach_not_to_the_edge(
    x: tuple[float, ...], y: tuple[float, ...]
) -> None:
    inner = Displacement((0, 0), (0.0, *x[1:4], 0.0), (0.0, *y[1:4], 0.0))
    assert inner.recentred().shift_px == pytest.approx(inner.shift_px, abs=1e-9)


def test_pixels_that_see_what_lay_beyond_the_sensor_are_told() -> None:
    beyond = unknown(Displacement((0, -1), x=(0, 0, 0.5, 0.5, 0)), (6, 5))
    expected = torch.zeros(6, 5, dtype=torch.bool)
    expected[:, 0] = True  # half of the first column's mask comes from the left of the sensor
    expected[5, :] = True
    assert torch.equal(beyond, expected)


def test_displacements_of_the_same_base_can_be_averaged() -> None:
    mean = NO_DISPLACEMENT.blended(Displacement(x=(0, 0, 0.5, 0.5, 0)), 0.5)
    assert mean.shift_px == pytest.approx((0.25, 0.0))
    with pytest.raises(ValueError, match="cannot be averaged"):
        NO_DISPLACEMENT.blended(Displacement((1, 0)), 0.5)
