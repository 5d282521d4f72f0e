"""Masks that are turned, magnified and sheared."""

from __future__ import annotations

import math

import pytest
import torch

from sci_stream.optics.displacement import RIGID, Displacement, Linear
from sci_stream.optics.mask_shift import invalid_pixels, shift_masks
from sci_stream.optics.mask_warp import warped_masks

SIZE = 60
TURN = math.sin(math.radians(1.0))


def waves(linear: Linear = RIGID) -> torch.Tensor:
    """Return smooth masks as they look after a displacement that grows so with the place."""
    axis = torch.arange(SIZE, dtype=torch.float64) - (SIZE - 1) / 2
    down, right = torch.meshgrid(axis, axis, indexing="ij")
    x = right - (linear[0] * right + linear[1] * down)
    y = down - (linear[2] * right + linear[3] * down)
    return torch.stack(
        [0.5 + 0.3 * torch.sin(0.7 * x + phase) * torch.cos(0.5 * y) for phase in (0, 1)]
    )


@pytest.mark.parametrize(
    "linear",
    [(0.0, -TURN, TURN, 0.0), (0.02, 0.0, 0.0, 0.02), (0.004, 0.01, 0.0, -0.003), RIGID],
    ids=["turned", "magnified", "sheared", "at rest"],
)
def test_warped_masks_lie_where_the_displacement_says(linear: Linear) -> None:
    inner = (..., slice(8, -8), slice(8, -8))
    found = warped_masks(waves(), linear)
    torch.testing.assert_close(found[inner], waves(linear)[inner], atol=5e-4, rtol=0)


def test_shift_masks_turns_before_it_shifts() -> None:
    linear = (0.0, -TURN, TURN, 0.0)
    turned = Displacement((2, 0), linear=linear)
    expected = shift_masks(warped_masks(waves(), linear), Displacement((2, 0)))
    torch.testing.assert_close(shift_masks(waves(), turned), expected)


def test_masks_from_outside_the_sensor_are_invalid() -> None:
    magnified, shrunk = (Displacement(linear=(g, 0.0, 0.0, g)) for g in (0.05, -0.05))
    assert not invalid_pixels(magnified, (SIZE, SIZE)).any()
    beyond = invalid_pixels(shrunk, (SIZE, SIZE))
    assert beyond[0].all()
    assert not beyond[3:-3, 3:-3].any()
