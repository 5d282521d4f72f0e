"""Batches: luminance, aliased Bayer planes, noise, all determined by seed and step."""

from __future__ import annotations

import dataclasses

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.tests.training.pictures import CPU, picture
from sci_stream_lab.training.data import drawn_ahead
from sci_stream_lab.training.images import luminance
from sci_stream_lab.training.patches import (
    add_noise,
    bayer_plane,
    draw_batch,
    least_image_px,
)
from sci_stream_lab.training.settings import TrainingSettings

IMAGES = [picture(n) for n in range(3)]
SETTINGS = TrainingSettings(batch=6, patch_px=16)


def test_luminance_is_that_of_grey_images() -> None:
    expected = cv2.cvtColor(IMAGES[0], cv2.COLOR_RGB2GRAY)
    np.testing.assert_allclose(255 * luminance(IMAGES[0]), expected, atol=0.51)


def test_grey_image_is_its_own_luminance() -> None:
    grey = np.repeat(IMAGES[0][..., :1], 3, axis=2)
    np.testing.assert_allclose(luminance(grey), grey[..., 0] / 255, atol=1e-6)


@pytest.mark.parametrize(("cell", "channel"), [(0, 0), (1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_bayer_plane_is_every_second_pixel_of_one_colour(
    cell: int, channel: int, row: int, column: int
) -> None:
    plane = bayer_plane(IMAGES[0], cell, row, column)
    assert plane.dtype == np.float32
    np.testing.assert_allclose(plane, IMAGES[0][row::2, column::2, channel] / 255, atol=1e-7)


def test_bayer_plane_is_aliased() -> None:
    stripes = np.zeros((8, 8, 3), np.uint8)
    stripes[:, ::4] = stripes[:, 1::4] = (
        255  # a period of four pixels: of two in the plane, the finest there is
    )
    np.testing.assert_array_equal(bayer_plane(stripes, 1, 0, 0)[0], [1, 0, 1, 0])


def test_share_of_bayer_planes_is_kept() -> None:
    # Stripes of one pixel: luminance shows both colours, a plane but one.
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    for share, expected in [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)]:
        settings = TrainingSettings(batch=200, patch_px=8, bayer_share=share)
        flat = draw_batch([stripes], settings, 0).clean.flatten(1).std(1) < 1e-6
        assert flat.float().mean().item() == pytest.approx(expected, abs=0.1)


@given(step=st.integers(0, 10**6), seed=st.integers(0, 2**31))
def test_batch_depends_on_seed_and_step_only(step: int, seed: int) -> None:
    settings = dataclasses.replace(SETTINGS, seed=seed)
    first, again = (draw_batch(IMAGES, settings, step) for _ in range(2))
    assert torch.equal(first.clean, again.clean)
    assert torch.equal(first.sigma, again.sigma)
    assert first.noise_seed == again.noise_seed
    assert not torch.equal(first.clean, draw_batch(IMAGES, settings, step + 1).clean)
    assert first.clean.shape == (6, 1, 16, 16)
    assert 0 <= first.clean.min() <= first.clean.max() <= 1
    assert 0 <= first.sigma.min() <= first.sigma.max() <= 75 / 255


def test_batches_drawn_ahead_are_in_order() -> None:
    with drawn_ahead(lambda step: draw_batch(IMAGES, SETTINGS, step), 5, threads=3) as batches:
        for step in range(5, 12):
            assert torch.equal(next(batches).clean, draw_batch(IMAGES, SETTINGS, step).clean)


def test_least_image_size_allows_every_kind_of_patch() -> None:
    for share in (0.0, 1.0):
        settings = TrainingSettings(batch=4, patch_px=16, bayer_share=share)
        size = least_image_px(settings)
        assert draw_batch([picture(0, size, size)], settings, 0).clean.shape == (4, 1, 16, 16)


def test_noise_has_the_given_level_without_clipping() -> None:
    settings = TrainingSettings(batch=8, patch_px=64, bayer_share=0.0)
    batch = draw_batch([picture(n, 128, 128) for n in range(3)], settings, 3)
    noisy, sigma, clean = add_noise(batch, CPU)
    measured = (noisy - clean).flatten(1).std(1)
    torch.testing.assert_close(measured, sigma.flatten(), rtol=0.06, atol=1e-4)
    assert noisy.min() < 0
    assert torch.equal(noisy, add_noise(batch, CPU)[0])
