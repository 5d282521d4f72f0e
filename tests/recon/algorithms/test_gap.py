"""PnP-GAP: the iteration of the paper and its initial estimate."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.optics.forward import forward, gram_diag, inverse_gram
from sci_stream.recon.algorithms.gap import CorrelatedResidual, Problem, cold_start, gap
from sci_stream.recon.denoisers.registry import IdentityDenoiser
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.metrics import psnr

identity = IdentityDenoiser()


def shrink(x: torch.Tensor, sigma: float) -> torch.Tensor:
    """Pull towards the frame's mean: the simplest denoiser that does something."""
    mean = x.mean((-2, -1), keepdim=True)
    return mean + (x - mean) / (1.0 + sigma)


def _problem(
    *shape: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    phi = 0.05 + 0.95 * torch.rand(shape, generator=generator, dtype=dtype)
    x = torch.rand(shape, generator=generator, dtype=dtype)
    return phi, x, forward(phi, x)


@pytest.mark.parametrize("relaxation", [0.0, 1.0, 1.5])
def test_iteration_equals_matrix_equations(relaxation: float) -> None:
    phi, _, y = _problem(3, 2, 4)
    matrix = torch.cat([torch.diag(mask.flatten()) for mask in phi], dim=1)
    gram_inverse = torch.linalg.inv(matrix @ matrix.T)
    sigmas = [0.3, 0.2, 0.1, 0.05]

    v = cold_start(y, phi, inverse_gram(gram_diag(phi))).flatten()
    y_acc, expected = y.flatten(), []
    for sigma in sigmas:
        y_acc = y_acc + relaxation * (y.flatten() - matrix @ v)
        x = v + matrix.T @ gram_inverse @ (y_acc - matrix @ v)
        v = shrink(x.view(3, 2, 4), sigma).flatten()
        expected.append(v.view(3, 2, 4))

    start = cold_start(y, phi, inverse_gram(gram_diag(phi)))
    iterates = gap(
        start,
        Problem(y, phi, inverse_gram(gram_diag(phi)), (shrink,), relaxation=relaxation),
        sigmas,
    )
    for got, wanted in zip(iterates, expected, strict=True):
        torch.testing.assert_close(got, wanted)


def test_correlated_residual_equals_matrix_equations() -> None:
    """With matrices: a covariance in the place of the identity, for a share of each pixel, in two
    of four.
    """
    phi, _, y = _problem(3, 2, 4)
    matrix = torch.cat([torch.diag(mask.flatten()) for mask in phi], dim=1)
    root = torch.rand(24, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    measured = torch.ones(2, 4, dtype=torch.float64)
    measured[1, 2] = 0.0
    seen = measured.flatten()
    inverse = torch.linalg.pinv(
        torch.diag(seen) @ (matrix @ root @ root.T @ matrix.T) @ torch.diag(seen)
    )
    where = torch.rand(2, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def posterior_mean(residual: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        assert torch.equal(valid, measured)
        assert float(residual[1, 2]) == 0.0
        return (root @ root.T @ matrix.T @ inverse @ residual.flatten()).view(3, 2, 4)

    r_inv = inverse_gram(gram_diag(phi)) * measured
    start = cold_start(y, phi, r_inv)
    v, y_acc, expected = start.flatten(), y.flatten(), []
    for n, sigma in enumerate([0.3, 0.2, 0.1, 0.05]):
        y_acc = y_acc + (y.flatten() - matrix @ v)
        residual = (y_acc - matrix @ v) * seen
        projected = v + matrix.T @ (r_inv.flatten() * residual)
        by_neighbours = v + root @ root.T @ matrix.T @ inverse @ residual
        share = where.flatten().repeat(3) if n < 2 else 0.0
        v = shrink((projected + share * (by_neighbours - projected)).view(3, 2, 4), sigma).flatten()
        expected.append(v.view(3, 2, 4))
    correlated = CorrelatedResidual(posterior_mean, where, 2)
    sigmas = [0.3, 0.2, 0.1, 0.05]
    iterates = gap(
        start, Problem(y, phi, r_inv, (shrink,), relaxation=1.0, correlated=correlated), sigmas
    )
    for got, wanted in zip(iterates, expected, strict=True):
        torch.testing.assert_close(got, wanted)


@given(seed=st.integers(0, 1000), b=st.integers(1, 5), h=st.integers(1, 7), w=st.integers(1, 7))
def test_cold_start_fits_grey_measurement(seed: int, b: int, h: int, w: int) -> None:
    phi, _, y = _problem(b, h, w, seed=seed)
    start = cold_start(y, phi, inverse_gram(gram_diag(phi)))
    torch.testing.assert_close(forward(phi, start), y)


def test_static_scene_is_recovered_by_cold_start() -> None:
    phi, x, _ = _problem(4, 8, 8)
    still = x[:1].expand(4, 8, 8)
    start = cold_start(forward(phi, still), phi, inverse_gram(gram_diag(phi)))
    torch.testing.assert_close(start, still)


def test_cold_start_fills_unmeasured_pixels_from_neighbours() -> None:
    phi = torch.ones(2, 20, 20)
    phi[:, 3, 4] = 0.0
    phi[:, 9:20, 9:20] = 0.0  # the middle of this is out of reach of any neighbour
    scene = torch.full((2, 20, 20), 0.7)
    start = cold_start(forward(phi, scene), phi, inverse_gram(gram_diag(phi)))
    torch.testing.assert_close(start, scene)


def test_cold_start_of_dead_sensor_is_zero() -> None:
    phi = torch.zeros(2, 3, 3)
    assert torch.equal(cold_start(torch.zeros(3, 3), phi, torch.zeros(3, 3)), torch.zeros(2, 3, 3))


def test_first_projection_keeps_an_exact_start() -> None:
    phi, truth, y = _problem(4, 8, 8)
    r_inv = inverse_gram(gram_diag(phi))
    (first,) = gap(truth, Problem(y, phi, r_inv, (identity,)), [0.1])
    torch.testing.assert_close(first, truth)


def test_single_frame_through_known_mask_is_exact() -> None:
    phi, x, y = _problem(1, 9, 7)
    r_inv = inverse_gram(gram_diag(phi))
    *_, last = gap(cold_start(y, phi, r_inv), Problem(y, phi, r_inv, (identity,)), [0.1] * 3)
    torch.testing.assert_close(last, x)


def test_iterations_are_lazy_and_may_stop_anywhere() -> None:
    phi, _, y = _problem(2, 6, 6)
    r_inv = inverse_gram(gram_diag(phi))
    start = cold_start(y, phi, r_inv)
    asked: list[float] = []

    def endless() -> itertools.count[float]:
        for sigma in itertools.repeat(0.1):
            asked.append(sigma)
            yield sigma

    iterates = gap(start, Problem(y, phi, r_inv, (shrink,)), endless())
    for _ in range(3):
        next(iterates)
    assert len(asked) == 3


def test_yielded_estimates_are_never_modified() -> None:
    phi, _, y = _problem(2, 6, 6)
    r_inv = inverse_gram(gram_diag(phi))
    start = cold_start(y, phi, r_inv)
    iterates = gap(start, Problem(y, phi, r_inv, (shrink,)), [0.2] * 5)
    kept = [(v, v.clone()) for v in iterates]
    assert all(torch.equal(v, copy) for v, copy in kept)


def test_start_and_measurement_are_not_modified() -> None:
    phi, _, y = _problem(2, 6, 6)
    r_inv = inverse_gram(gram_diag(phi))
    start = cold_start(y, phi, r_inv)
    before = [t.clone() for t in (start, y, phi, r_inv)]
    list(gap(start, Problem(y, phi, r_inv, (shrink,)), [0.2] * 3))
    assert all(torch.equal(a, b) for a, b in zip((start, y, phi, r_inv), before, strict=True))


def test_planes_of_a_mosaic_are_independent() -> None:
    phi, _, y = _problem(4, 3, 6, 5)
    r_inv = inverse_gram(gram_diag(phi))
    *_, together = gap(cold_start(y, phi, r_inv), Problem(y, phi, r_inv, (shrink,)), [0.2, 0.1])
    for p in range(4):
        start = cold_start(y[p], phi[p], r_inv[p])
        *_, alone = gap(start, Problem(y[p], phi[p], r_inv[p], (shrink,)), [0.2, 0.1])
        torch.testing.assert_close(together[p], alone)


def test_single_precision_follows_double_precision() -> None:
    phi, _, y = _problem(4, 33, 21)
    sigmas = SIGMAS_TV
    results = []
    for dtype in (torch.float32, torch.float64):
        p, m = phi.to(dtype), y.to(dtype)
        r_inv = inverse_gram(gram_diag(p))
        *_, last = gap(cold_start(m, p, r_inv), Problem(m, p, r_inv, (TvDenoiser(),)), sigmas)
        assert last.dtype == dtype
        results.append(last.double())
    torch.testing.assert_close(*results, rtol=0, atol=1e-4)


SIGMAS_TV = [0.15 * 0.8**k for k in range(8)]


def test_still_image_start_beats_the_published_one() -> None:
    generator = torch.Generator().manual_seed(1)
    rows, columns = torch.meshgrid(torch.arange(48.0), torch.arange(48.0), indexing="ij")
    truth = torch.stack(
        [0.5 + 0.4 * torch.sin((columns + 0.5 * b) / 5) * torch.cos(rows / 6) for b in range(6)]
    )
    phi = (torch.rand(6, 48, 48, generator=generator) < 0.5).float()
    y = forward(phi, truth)
    r_inv = inverse_gram(gram_diag(phi))
    scores = []
    for start in (cold_start(y, phi, r_inv), phi * y):
        *_, last = gap(start, Problem(y, phi, r_inv, (TvDenoiser(),)), SIGMAS_TV)
        scores.append(psnr(last, truth))
    assert scores[0] > scores[1] + 1.0


def test_half_a_last_step_gives_the_mean_of_two_priors() -> None:
    phi, _, y = _problem(2, 8, 8)
    r_inv = inverse_gram(gram_diag(phi))
    start = cold_start(y, phi, r_inv)
    problem = Problem(y, phi, r_inv, (shrink, identity))
    whole = list(gap(start, problem, [0.3, 0.2]))
    half = list(gap(start, problem._replace(shares=(1.0, 0.5)), [0.3, 0.2]))
    torch.testing.assert_close(half[0], whole[0])
    torch.testing.assert_close(half[1], (whole[0] + whole[1]) / 2)


def test_correlated_iterations_are_counted_in_whole_steps() -> None:
    phi, _, y = _problem(2, 8, 8)
    correlated = CorrelatedResidual(lambda residual, _: residual, y, iterations=2)
    problem = Problem(y, phi, y, (identity,), correlated=correlated, shares=(0.5,) * 5)
    used = [problem.correlated_at(k) is not None for k in range(6)]
    assert used == [True] * 4 + [False] * 2
