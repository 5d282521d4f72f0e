"""Rotation and magnification of the masks, from a snapshot of a textured scene."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import sci_stream
from sci_stream.calibration.mask_geometry import MaskGeometry
from sci_stream.model import Array, BayerPhase
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.displacement import RIGID, Displacement, Linear
from sci_stream.optics.mask_shift import shift_masks

B, SIZE = 6, 128
TURN = math.sin(math.radians(1.0))
GEOMETRIES: dict[str, Linear] = {
    "turned by 1°": (1 - math.cos(math.radians(1.0)), -TURN, TURN, 1 - math.cos(math.radians(1.0))),
    "turned by 0.1°": (0.0, -TURN / 10, TURN / 10, 0.0),
    "magnified by 2 %": (0.02, 0.0, 0.0, 0.02),
    "sheared": (0.0, 0.006, 0.0, 0.0),
}


def random_masks(seed: int = 1) -> Array:
    wide = torch.from_numpy(np.random.default_rng(seed).random((B, SIZE, SIZE)) < 0.5).float()
    soft = torch.nn.functional.avg_pool2d(wide, 3, 1, 1, count_include_pad=False)
    return (0.5 * wide + 0.5 * soft).numpy().astype(np.float32)


def scene() -> Array:
    """Return a disc that moves before a textured ground."""
    down, right = np.mgrid[:SIZE, :SIZE]
    ground = 0.4 + 0.2 * np.sin(right / 5) * np.cos(down / 9)
    frames = [
        np.where((right - 40 - 4 * b) ** 2 + (down - 60) ** 2 < 400, 0.9, ground) for b in range(B)
    ]
    return np.stack(frames).astype(np.float32)


def snapshot(phi: Array, displacement: Displacement, seed: int = 0) -> Array:
    """Return y of displaced masks, with noise of one percent."""
    true = shift_masks(torch.from_numpy(phi.copy()), displacement).numpy()
    noise = np.random.default_rng(seed).normal(0, 0.03, (SIZE, SIZE))
    return ((true * scene()).sum(0) + noise).astype(np.float32)


def found(y: Array, phi: Array, bayer: BayerPhase | None = None) -> Linear:
    return MaskGeometry(phi.sum(0), bayer).measure(y, np.ones(y.shape, np.bool_))


@pytest.mark.parametrize("bayer", [None, BayerPhase.RGGB])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry_is_found_to_a_twentieth_of_a_pixel(name: str, bayer: BayerPhase | None) -> None:
    true, phi = GEOMETRIES[name], random_masks()
    linear = found(snapshot(phi, Displacement((1, -1), linear=true)), phi, bayer)
    assert np.abs(np.subtract(linear, true)).max() * SIZE / 2 < 0.05


@pytest.mark.parametrize("base", [(0, 0), (2, -1)])
@pytest.mark.parametrize("seed", range(4))
def test_masks_that_are_only_shifted_are_left_as_they_are(base: tuple[int, int], seed: int) -> None:
    phi = random_masks(seed)
    assert found(snapshot(phi, Displacement(base), seed), phi) == RIGID


def test_other_masks_show_no_geometry() -> None:
    y = snapshot(random_masks(1), Displacement())
    assert found(y, random_masks(2)) == RIGID
    assert found(np.zeros_like(y), random_masks(1)) == RIGID


@pytest.mark.parametrize("name", ["turned by 1°", "magnified by 2 %"])
def test_video_behind_turned_masks_is_as_good_as_with_true_ones(name: str) -> None:
    phi, displacement = random_masks(), Displacement(linear=GEOMETRIES[name])
    true = shift_masks(torch.from_numpy(phi.copy()), displacement).numpy()
    y = snapshot(phi, displacement)
    errors = []
    for masks in (true, phi):
        result = sci_stream.reconstruct(y, Calibration(masks), solver="tv", iterations=8)
        video = np.asarray(result.video, np.float32).reshape(B, SIZE, SIZE)
        errors.append(float(np.mean((video - scene())[:, 4:-4, 4:-4] ** 2)))
    assert 10 * math.log10(errors[1] / errors[0]) < 1.0
    assert "turned by" in result.correction.words
