"""SSIM against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from sci_stream_lab.bench.quality.similarity import ssim, ssim_per_frame


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
    expected = (
        (2 * mx * mt + c1) * (2 * cov + c2) / ((mx**2 + mt**2 + c1) * (vx + vt + c2))
    ).mean()
    got = ssim(torch.from_numpy(x)[None], torch.from_numpy(truth)[None])
    assert got == pytest.approx(expected, rel=1e-9)


def test_ssim_of_equal_frames_is_one_in_every_batch() -> None:
    x = torch.rand(2, 3, 12, 13, generator=torch.Generator().manual_seed(0))
    assert ssim_per_frame(x, x).shape == (2, 3)
    assert ssim(x, x) == pytest.approx(1.0)


def test_frame_smaller_than_ssim_window_is_refused() -> None:
    with pytest.raises(ValueError, match="11×11"):
        ssim(torch.zeros(1, 10, 40), torch.zeros(1, 10, 40))
