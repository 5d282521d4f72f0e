"""Properties of a mask stack, and stacks that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from sci_stream.errors import CalibrationError
from sci_stream.model import BayerPhase
from sci_stream.optics.calibration import Calibration


@pytest.mark.parametrize("step", [2, -1])
@pytest.mark.parametrize("axis", [1, 2])
def test_bands_behind_a_prism_are_refused(axis: int, step: int) -> None:
    pattern = np.random.default_rng(0).random((40, 40), np.float32)
    phi = np.zeros((6, 64, 64), np.float32)
    phi[:, 12:52, 12:52] = pattern
    at_rest = Calibration(phi)
    assert at_rest.shape == (64, 64)
    moved = np.stack([np.roll(mask, step * b, axis - 1) for b, mask in enumerate(phi)])
    with pytest.raises(CalibrationError, match="wider canvas"):
        Calibration(moved)


def test_pattern_that_moves_across_the_whole_field_is_accepted() -> None:
    pattern = (np.random.default_rng(0).random((72, 64)) < 0.5).astype(np.float32)
    Calibration(np.stack([pattern[b : b + 64] for b in range(8)]))


@pytest.mark.parametrize("bayer", [None, BayerPhase.RGGB])
def test_fineness_falls_with_the_area_of_the_elements(bayer: BayerPhase | None) -> None:
    elements = (np.random.default_rng(0).random((4, 64, 64)) < 0.5).astype(np.float32)
    assert Calibration(elements, bayer=bayer).fineness == 1.0
    coarse = elements.repeat(2, 1).repeat(2, 2)
    assert Calibration(coarse, bayer=bayer).fineness == (0.5 if bayer is None else 1.0)
    assert Calibration(np.full((2, 8, 8), 0.5, np.float32)).fineness == 1.0
