"""PSNR against its definition."""

from __future__ import annotations

import math

import pytest
import torch

from sci_stream.recon.metrics import psnr


def test_error_of_a_tenth_of_peak_is_twenty_decibels() -> None:
    truth = torch.zeros(3, 5, 7)
    assert psnr(truth + 0.1, truth) == pytest.approx(20.0, abs=1e-5)


def test_mean_is_of_decibels_not_of_errors() -> None:
    truth = torch.zeros(2, 4, 4)
    x = torch.stack([torch.full((4, 4), 0.1), torch.full((4, 4), 0.01)])
    assert psnr(x, truth) == pytest.approx(30.0, abs=1e-4)


def test_equal_frames_have_infinite_psnr() -> None:
    x = torch.rand(2, 16, 16, generator=torch.Generator().manual_seed(0))
    assert psnr(x, x) == math.inf


def test_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        psnr(torch.zeros(2, 4, 4), torch.zeros(1, 4, 4))
