"""PSNR and SSIM, against their definitions; false texture."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from sci_stream.recon.metrics import psnr, psnr_per_frame, ssim, ssim_per_frame


def test_error_of_a_tenth_of_peak_is_twenty_decibels() -> None:
    truth = torch.zeros(3, 5, 7)
    assert psnr(truth + 0.1, truth) == pytest.approx(20.0, abs=1e-5)


def test_mean_is_of_decibels_not_of_errors() -> None:
    truth = torch.zeros(2, 4, 4)
    x = torch.stack([torch.full((4, 4), 0.1), torch.full((4, 4), 0.01)])
    assert psnr_per_frame(x, truth).tolist() == pytest.approx([20.0, 40.0], abs=1e-4)
    assert psnr(x, truth) == pytest.approx(30.0, abs=1e-4)


def test_equal_frames_have_infinite_psnr_and_ssim_one() -> None:
    x = torch.rand(2, 16, 16, generator=torch.Generator().manual_seed(0))
    assert psnr(x, x) == math.inf
    assert ssim(x, x) == pytest.approx(1.0)


def test_ssim_equals_independent_computation() -> None:
    random = np.random.default_rng(0)
    truth = random.random((24, 30))
    x = np.clip(truth + 0.1 * random.standard_normal(truth.shape), 0, 1)

    def mean(image: np.ndarray) -> np.ndarray:
        # radius 5: the 11×11 window; the border where it does not fit is cut off
        return gaussian_filter(image, 1.5, radius=5)[5:-5, 5:-5]

    mx, mt = mean(x), mean(truth)
    vx, vt, cov = mean(x * x) - mx**2, mean(truth * truth) - mt**2, mean(x * truth) - mx * mt
    c1, c2 = 0.01**2, 0.03**2
    expected = ((2 * mx * mt + c1) * (2 * cov + c2) / ((mx**2 + mt**2 + c1) * (vx + vt + c2))).mean()
    got = ssim(torch.from_numpy(x)[None], torch.from_numpy(truth)[None])
    assert got == pytest.approx(expected, rel=1e-9)


def test_ssim_keeps_batch_dimensions() -> None:
    x = torch.rand(2, 3, 12, 13, generator=torch.Generator().manual_seed(0))
    assert ssim_per_frame(x, x).shape == (2, 3)
    assert psnr_per_frame(x, x + 0.1).shape == (2, 3)


def test_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        psnr(torch.zeros(2, 4, 4), torch.zeros(1, 4, 4))


def test_frame_smaller_than_ssim_window_is_refused() -> None:
    with pytest.raises(ValueError, match="11×11"):
        ssim(torch.zeros(1, 10, 40), torch.zeros(1, 10, 40))
