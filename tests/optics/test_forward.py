"""The forward model: Φ and Φᵀ are adjoint, and the projection satisfies the measurement."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.optics.calibration import BLIND_SHARE
from sci_stream.optics.forward import accumulate_and_project, forward, gram_diag, inverse_gram

shapes = st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 9))
batches = st.sampled_from([(), (1,), (4,), (2, 3)])
seeds = st.integers(0, 2**16)


def _random(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def project(
    v: torch.Tensor, y: torch.Tensor, phi: torch.Tensor, r_inv: torch.Tensor
) -> torch.Tensor:
    """Project onto y = Φx, without accumulating the residual."""
    x, _ = accumulate_and_project(v, y, y, phi, r_inv, relaxation=0.0)
    return x


def _norm(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x))


@given(shape=shapes, batch=batches, seed=seeds)
def test_projection_applies_the_adjoint_of_forward(
    shape: tuple[int, int, int], batch: tuple[int, ...], seed: int
) -> None:
    video_shape, image_shape = (*batch, *shape), (*batch, *shape[1:])
    phi, x, y = _random(seed, video_shape, video_shape, image_shape)
    adjoint = project(torch.zeros_like(x), y, phi, torch.ones_like(y))
    assert float((forward(phi, x) * y).sum()) == pytest.approx(
        float((x * adjoint).sum()), rel=1e-12
    )


@given(shape=shapes, batch=batches, seed=seeds)
def test_projection_with_grey_masks_satisfies_the_measurement(
    shape: tuple[int, int, int], batch: tuple[int, ...], seed: int
) -> None:
    video_shape, image_shape = (*batch, *shape), (*batch, *shape[1:])
    phi, v, y = _random(seed, video_shape, video_shape, image_shape)
    phi = phi.clamp_min(0.05)
    x = project(v, y, phi, inverse_gram(gram_diag(phi)))
    assert _norm(forward(phi, x) - y) <= 1e-12 * _norm(y)


@given(shape=shapes, seed=seeds)
def test_projection_is_idempotent(shape: tuple[int, int, int], seed: int) -> None:
    phi, v, y = _random(seed, shape, shape, shape[1:])
    phi = phi.clamp_min(0.05)
    r_inv = inverse_gram(gram_diag(phi))
    once = project(v, y, phi, r_inv)
    torch.testing.assert_close(project(once, y, phi, r_inv), once, rtol=1e-12, atol=1e-12)


@given(shape=shapes, seed=seeds)
def test_projection_is_the_nearest_solution(shape: tuple[int, int, int], seed: int) -> None:
    phi, v, truth = _random(seed, shape, shape, shape)
    phi = phi.clamp_min(0.05)
    x = project(v, forward(phi, truth), phi, inverse_gram(gram_diag(phi)))
    assert _norm(x - v) <= _norm(truth - v) + 1e-12


def test_float32_projection_agrees_with_float64() -> None:
    phi, v, y = _random(7, (8, 33, 20), (8, 33, 20), (33, 20))
    exact = project(v, y, phi, inverse_gram(gram_diag(phi)))
    single = project(v.float(), y.float(), phi.float(), inverse_gram(gram_diag(phi.float())))
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=1e-5, atol=1e-5)


def test_division_by_sum_of_phi_leaves_a_residual() -> None:
    phi, v, y = _random(3, (8, 64, 64), (8, 64, 64), (64, 64))
    published = project(v, y, phi, phi.sum(-3).reciprocal())
    ours = project(v, y, phi, inverse_gram(gram_diag(phi)))
    assert _norm(forward(phi, published) - y) > 0.1 * _norm(y - forward(phi, v))
    assert _norm(forward(phi, ours) - y) < 1e-12 * _norm(y)


def test_unexposed_pixels_keep_their_frames() -> None:
    phi, v, y = _random(1, (3, 4, 5), (3, 4, 5), (4, 5))
    phi[:, 2, 3] = 0.0
    r_inv = inverse_gram(gram_diag(phi))
    assert r_inv[2, 3] == 0.0
    x = project(v, y, phi, r_inv)
    assert torch.equal(x[:, 2, 3], v[:, 2, 3])
    assert x.isfinite().all()


@pytest.mark.parametrize("brightness", [1e-3, 1.0])
def test_pixels_that_masks_hardly_open_count_as_blind(brightness: float) -> None:
    """A leak counts relative to the masks: all of them may be dark, as those of a grey filter."""
    r = brightness**2 * torch.tensor([[0.0, 0.9 * BLIND_SHARE, 2 * BLIND_SHARE, 4.0, 0.0]])
    r[..., -1] = 5 * brightness**2 - r.sum()  # the mean is 1
    r_inv = inverse_gram(r)
    assert r_inv[0, :2].tolist() == [0.0, 0.0]
    torch.testing.assert_close(r_inv[0, 2:], r[0, 2:].reciprocal())


def test_invalid_pixels_are_excluded_from_the_projection() -> None:
    phi, v, y = _random(2, (3, 4, 4), (3, 4, 4), (4, 4))
    valid = torch.ones(4, 4, dtype=torch.bool)
    valid[0, 1] = False
    x = project(v, y, phi, inverse_gram(gram_diag(phi), valid))
    assert torch.equal(x[:, 0, 1], v[:, 0, 1])
    assert not torch.equal(x[:, 0, 0], v[:, 0, 0])


def test_projection_does_not_modify_its_arguments() -> None:
    phi, v, y = _random(4, (2, 3, 3), (2, 3, 3), (3, 3))
    before = [t.clone() for t in (phi, v, y)]
    project(v, y, phi, inverse_gram(gram_diag(phi)))
    assert all(torch.equal(a, b) for a, b in zip((phi, v, y), before, strict=True))
