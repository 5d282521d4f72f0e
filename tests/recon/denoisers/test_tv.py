"""Total variation: properties of its minimiser."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.recon.denoisers.tv import WEIGHT_PER_SIGMA, TvDenoiser
from sci_stream.recon.metrics import psnr

seeds = st.integers(0, 2**16)
sizes = st.integers(2, 12)


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _objective(u: torch.Tensor, x: torch.Tensor, weight: float) -> float:
    variation = u.diff(dim=-1).abs().sum() + u.diff(dim=-2).abs().sum()
    return float(0.5 * (u - x).square().sum() + weight * variation)


@given(seed=seeds, h=sizes, w=sizes, sigma=st.floats(0.01, 0.5))
def test_mean_of_a_frame_is_kept(seed: int, h: int, w: int, sigma: float) -> None:
    x = _random(seed, 2, h, w)
    torch.testing.assert_close(TvDenoiser()(x, sigma).mean((-2, -1)), x.mean((-2, -1)))


@given(seed=seeds, h=sizes, w=sizes, sigma=st.floats(0.01, 0.5))
def test_result_lowers_the_objective_within_the_frames_range(
    seed: int, h: int, w: int, sigma: float
) -> None:
    x = _random(seed, 1, h, w)
    weight = WEIGHT_PER_SIGMA * sigma
    assert _objective(TvDenoiser(100)(x, sigma), x, weight) <= _objective(x, x, weight) + 1e-9


def test_two_pixels_are_solved_in_closed_form() -> None:
    x = torch.tensor([[[0.0, 1.0]]], dtype=torch.float64)
    u = TvDenoiser(200)(x, 0.2 / WEIGHT_PER_SIGMA)
    torch.testing.assert_close(u, torch.tensor([[[0.2, 0.8]]], dtype=torch.float64))


def test_many_steps_reach_the_minimum() -> None:
    x = _random(0, 1, 6, 7)
    u = TvDenoiser(3000)(x, 0.2)
    best = _objective(u, x, WEIGHT_PER_SIGMA * 0.2)
    generator = torch.Generator().manual_seed(1)
    for scale in (1e-2, 1e-3):
        for _ in range(20):
            other = u + scale * torch.randn(u.shape, generator=generator, dtype=u.dtype)
            assert _objective(other, x, WEIGHT_PER_SIGMA * 0.2) >= best - 1e-9


def test_flat_frame_stays_flat() -> None:
    x = torch.full((2, 9, 9), 0.4)
    torch.testing.assert_close(TvDenoiser()(x, 0.3), x)


def test_noise_is_removed_and_edge_kept() -> None:
    truth = torch.zeros(1, 64, 64)
    truth[:, :, 32:] = 1.0
    noisy = truth + 0.1 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
    clean = TvDenoiser()(noisy, 0.1)
    assert psnr(clean, truth) > psnr(noisy, truth) + 8.0
    assert float(clean[..., 32:].mean() - clean[..., :32].mean()) > 0.95


def test_zero_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        TvDenoiser(0)
