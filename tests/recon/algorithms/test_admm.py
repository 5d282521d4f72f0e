"""PnP-ADMM: the paper's three sub-problems, and comparison with GAP."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.optics.forward import forward, gram_diag, inverse_gram
from sci_stream.recon.algorithms.admm import admm
from sci_stream.recon.algorithms.gap import CorrelatedResidual, Denoise, Problem, cold_start, gap
from sci_stream.recon.algorithms.schedule import SigmaSchedule
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.metrics import psnr
from tests.recon.ladder import ladder

SIGMAS = ladder(SigmaSchedule(0.16, 0.024), 20)


def shrink(x: torch.Tensor, sigma: float) -> torch.Tensor:
    """Pull towards the frame's mean: the simplest denoiser that does something."""
    mean = x.mean((-2, -1), keepdim=True)
    return mean + (x - mean) / (1.0 + sigma)


def _grey_problem(*shape: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return masks with every shade, 0 included, and a measurement through them."""
    generator = torch.Generator().manual_seed(seed)
    phi = torch.rand(shape, generator=generator, dtype=torch.float64)
    phi *= torch.rand(shape, generator=generator) < 0.7
    return phi, forward(phi, torch.rand(shape, generator=generator, dtype=torch.float64))


def _scene() -> torch.Tensor:
    """Return eight frames of a disc and a bar moving over a ramp, with edges, as total variation expects."""
    rows, columns = torch.meshgrid(torch.arange(48.0), torch.arange(48.0), indexing="ij")
    frames = [
        0.2 + 0.005 * rows + 0.5 * (torch.hypot(rows - 24, columns - 14 - 1.5 * b) < 9) + 0.2 * (columns % 20 < 6)
        for b in range(8)
    ]
    return torch.stack(frames).clamp(0, 1)


@pytest.mark.parametrize("gamma", [0.0, 0.01, 0.5])
def test_iteration_solves_the_papers_sub_problems(gamma: float) -> None:
    phi, y = _grey_problem(3, 2, 4)
    phi += 0.05  # so that ΦΦᵀ can be inverted for γ = 0 too
    r_inv = inverse_gram(gram_diag(phi))
    matrix = torch.cat([torch.diag(mask.flatten()) for mask in phi], dim=1)
    start = cold_start(y, phi, r_inv)

    v, u, expected = start.flatten(), torch.zeros(24, dtype=torch.float64), []
    for sigma in SIGMAS[:5]:
        if gamma > 0:  # argmin_x ½‖y − Φx‖² + ½γ‖x − (v − u)‖²
            x = torch.linalg.solve(matrix.T @ matrix + gamma * torch.eye(24), matrix.T @ y.flatten() + gamma * (v - u))
        else:
            x = v - u + torch.linalg.pinv(matrix) @ (y.flatten() - matrix @ (v - u))
        v = shrink((x + u).view(3, 2, 4), sigma).flatten()
        u = u + x - v
        expected.append(v.view(3, 2, 4))

    iterates = admm(start, Problem(y, phi, r_inv, (shrink,), gamma=gamma), SIGMAS[:5])
    for got, wanted in zip(iterates, expected, strict=True):
        torch.testing.assert_close(got, wanted)


@given(seed=st.integers(0, 1000), b=st.integers(1, 5), h=st.integers(1, 6), w=st.integers(1, 6))
def test_gap_estimate_fits_every_measured_pixel(seed: int, b: int, h: int, w: int) -> None:
    phi, y = _grey_problem(b, h, w, seed=seed)
    r_inv = inverse_gram(gram_diag(phi))
    seen: list[torch.Tensor] = []

    def noting(x: torch.Tensor, sigma: float) -> torch.Tensor:
        seen.append(x.clone())
        return shrink(x, sigma)

    iterates = gap(cold_start(y, phi, r_inv), Problem(y, phi, r_inv, (noting,), relaxation=0.0), SIGMAS)
    assert len(list(iterates)) == len(seen) == len(SIGMAS)
    for x in seen:
        torch.testing.assert_close(forward(phi, x) * (r_inv > 0), y * (r_inv > 0))


def test_admm_residual_grows_with_gamma() -> None:
    phi, y = _grey_problem(4, 8, 8)
    r_inv = inverse_gram(gram_diag(phi))
    misfits = []
    for gamma in (0.0, 0.1, 1.0, 10.0):
        noisy: list[torch.Tensor] = []

        def noting(x: torch.Tensor, sigma: float, noisy: list[torch.Tensor] = noisy) -> torch.Tensor:
            noisy.append(x)
            return shrink(x, sigma)

        start = cold_start(y, phi, r_inv)
        first, _ = admm(start, Problem(y, phi, r_inv, (noting,), gamma=gamma), SIGMAS[:2])
        x = noisy[1] - (noisy[0] - first)  # the prior is given x + u, and u was 0 at first
        misfits.append(float(((y - forward(phi, x)) * (r_inv > 0)).norm()))
    assert misfits[0] < 1e-10
    assert misfits == sorted(misfits)


def _gain_of_admm_db(noise: float) -> float:
    truth = _scene()
    generator = torch.Generator().manual_seed(3)
    phi = (torch.rand(truth.shape, generator=generator) < 0.5).float()
    y = forward(phi, truth) + noise * torch.randn(truth.shape[1:], generator=generator)
    r_inv = inverse_gram(gram_diag(phi))
    tv: Denoise = TvDenoiser()
    start = cold_start(y, phi, r_inv)
    *_, by_gap = gap(start, Problem(y, phi, r_inv, (tv,)), SIGMAS)
    *_, by_admm = admm(start, Problem(y, phi, r_inv, (tv,), gamma=2.0), SIGMAS)
    return psnr(by_admm, truth) - psnr(by_gap, truth)


def test_admm_is_better_with_noise_and_gap_without() -> None:
    assert _gain_of_admm_db(noise=0.15) > 1.0
    assert _gain_of_admm_db(noise=0.0) < -1.0


def test_first_iterations_use_correlated_residual_where_given() -> None:
    phi, y = _grey_problem(3, 5, 6)
    r_inv = inverse_gram(gram_diag(phi))
    start = cold_start(y, phi, r_inv)
    asked = []

    def nothing(residual: torch.Tensor, _measured: torch.Tensor) -> torch.Tensor:
        asked.append(residual)
        return torch.zeros_like(phi)

    left = torch.zeros_like(y)
    left[:, 3:] = 1.0
    problem = Problem(y, phi, r_inv, (lambda x, _sigma: x.clone(),))
    correlated = problem._replace(correlated=CorrelatedResidual(nothing, left, 2))
    by_both, plain = (list(admm(start + 0.1, each, [0.2, 0.1, 0.05])) for each in (correlated, problem))
    assert len(asked) == 2
    torch.testing.assert_close(by_both[0][..., :3], plain[0][..., :3])
    torch.testing.assert_close(by_both[0][..., 3:], (start + 0.1)[..., 3:])
    torch.testing.assert_close(by_both[2], plain[0], atol=1e-6, rtol=1e-5)


def test_estimates_and_input_are_never_modified() -> None:
    phi, y = _grey_problem(2, 6, 6)
    r_inv = inverse_gram(gram_diag(phi))
    start = cold_start(y, phi, r_inv)
    given_ = [(t, t.clone()) for t in (start, y, phi, r_inv)]
    kept = [(v, v.clone()) for v in admm(start, Problem(y, phi, r_inv, (shrink,)), SIGMAS)]
    assert all(torch.equal(tensor, copy) for tensor, copy in given_ + kept)


def test_planes_of_a_mosaic_are_independent() -> None:
    phi, y = _grey_problem(4, 3, 6, 5)
    r_inv = inverse_gram(gram_diag(phi))
    *_, together = admm(cold_start(y, phi, r_inv), Problem(y, phi, r_inv, (shrink,)), SIGMAS)
    for p in range(4):
        start = cold_start(y[p], phi[p], r_inv[p])
        *_, alone = admm(start, Problem(y[p], phi[p], r_inv[p], (shrink,)), SIGMAS)
        # The start fills unmeasured pixels from the measured ones of its own plane, so planes do not mix there either.
        torch.testing.assert_close(together[p], alone)
