from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from drivers.simulated.masks import make_masks
from drivers.simulated.options import SimulatedOptions
from sci_stream.model import Array


def masks(**options: Any) -> Array:
    return make_masks(SimulatedOptions.model_validate({"width_px": 64, "height_px": 48, **options}))


@pytest.mark.parametrize("kind", ["shifting", "random"])
def test_masks_are_grey_transmissions(kind: str) -> None:
    phi = masks(mask=kind)
    assert phi.shape == (8, 48, 64)
    assert phi.dtype == np.float32
    assert phi.min() >= 0
    assert phi.max() <= 1
    assert len(np.unique(phi)) > 500
    assert 0.3 < phi.mean() < 0.6


def test_a_shifting_mask_is_one_pattern_a_pixel_further_each_frame() -> None:
    phi = masks(mask="shifting", mask_unevenness=0.0)
    for b in range(len(phi) - 1):
        np.testing.assert_array_equal(phi[b + 1, 1:], phi[b, :-1])


def test_random_masks_are_independent_of_one_another() -> None:
    phi = masks(mask="random").reshape(8, -1)
    correlation = np.corrcoef(phi)
    assert np.abs(correlation - np.eye(8)).max() < 0.15


def test_without_blur_gain_or_leak_masks_are_binary() -> None:
    phi = masks(mask_blur_px=0.0, mask_unevenness=0.0, mask_closed=0.0)
    assert set(np.unique(phi)) == {0.0, 1.0}


def test_density_is_the_fraction_that_is_open() -> None:
    phi = masks(mask="random", mask_density=0.2, mask_blur_px=0.0, mask_unevenness=0.0, mask_closed=0.0)
    assert phi.mean() == pytest.approx(0.2, abs=0.01)


def test_the_gain_falls_off_smoothly_by_as_much_as_asked() -> None:
    even, uneven = masks(mask_unevenness=0.0), masks(mask_unevenness=0.4)
    seen = even[0] > 0.1
    gain = uneven[0][seen] / even[0][seen]
    assert gain.max() <= 1.001
    assert gain.min() == pytest.approx(0.6, abs=0.03)


def test_another_seed_gives_other_masks() -> None:
    assert not np.array_equal(masks(seed=1), masks(seed=2))


def test_the_calibration_has_the_same_hash_in_another_process() -> None:
    program = (
        "from drivers.simulated import *;"
        "camera = SimulatedCamera(SimulatedOptions(width_px=32, height_px=32, seed=4));"
        "camera.open(); print(camera.calibration().hash)"
    )
    hashes = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
        for _ in range(2)
    }
    assert len(hashes) == 1
