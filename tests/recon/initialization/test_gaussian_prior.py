"""A Gaussian random field behind masks: a few steps of the solver equal the dense solution."""

from __future__ import annotations

import math

import pytest
import torch

from sci_stream.optics.forward import forward
from sci_stream.recon.denoisers.temporal import cosines
from sci_stream.recon.initialization import gaussian_prior as field_model
from sci_stream.recon.initialization.gaussian_prior import (
    ESTIMATES,
    FRAMES,
    CodedField,
    Covariance,
    GaussianPrior,
)

B, H, W = 8, 10, 12


def random_masks(height: int = H, width: int = W, *, grey: bool = False) -> torch.Tensor:
    random = torch.rand(1, B, height, width, generator=torch.Generator().manual_seed(1))
    return 0.1 + 0.7 * random if grey else (random < 0.5).float()


def shifted_masks(height: int, width: int) -> torch.Tensor:
    """Return one pattern of coarse features that moves along the rows, as a physical mask does, (1,
    B, H, W).
    """
    coarse = (
        torch.rand(height // 2 + 1, width // 2 + B, generator=torch.Generator().manual_seed(2))
        < 0.5
    )
    pattern = coarse.float().repeat_interleave(2, 0).repeat_interleave(2, 1)
    return torch.stack([pattern[:height, t : t + width] for t in range(B)]).unsqueeze(0)


def model_of(phi: torch.Tensor, covariance: Covariance = FRAMES) -> GaussianPrior:
    field = CodedField(phi, (phi.sum(1) > 0).float())
    return GaussianPrior(field.frames, field, covariance)


def dense(model: GaussianPrior, kappa2: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ΦCΦᵀ + νI and CΦᵀ of a small plane as dense matrices, float64."""
    masks = model.masks[0].double()
    n_frames, height, width = masks.shape
    times = 2 - 2 * torch.cos(math.pi / n_frames * torch.arange(n_frames, dtype=torch.float64))
    down, right = (
        2 - 2 * torch.cos(2 * math.pi * torch.fft.fftfreq(size, dtype=torch.float64))
        for size in (height, width)
    )
    space = down.unsqueeze(1) + right
    spectrum = (times.view(-1, 1, 1) + space + kappa2) ** -2
    spectrum /= spectrum.mean()
    basis = torch.eye(height * width, dtype=torch.float64).view(-1, height, width)
    covariances = [
        torch.fft.ifft2(torch.fft.fft2(basis) * part).real.flatten(1) for part in spectrum
    ]
    flat = masks.flatten(1)
    gram = sum(
        row.unsqueeze(1) * covariance * row
        for row, covariance in zip(flat, covariances, strict=True)
    )
    assert isinstance(gram, torch.Tensor)
    gram = gram + float(model.noise) * torch.eye(height * width, dtype=torch.float64)
    return gram, torch.stack(
        [covariance * row for row, covariance in zip(flat, covariances, strict=True)]
    )


def unexplained(phi: torch.Tensor) -> torch.Tensor:
    """Return y − Φx of a smooth video and frames of its mean, (1, H, W)."""
    height, width = phi.shape[-2:]
    rows, columns = torch.meshgrid(torch.arange(height) / 5, torch.arange(width) / 7, indexing="ij")
    video = torch.stack(
        [0.3 * torch.sin(rows + 0.4 * t) * torch.cos(columns - 0.3 * t) for t in range(B)]
    )
    return forward(phi, video.unsqueeze(0))


def everywhere(residual: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(residual)


def test_solution_equals_dense_lmmse_estimate() -> None:
    phi = random_masks()
    model, residual = model_of(phi), unexplained(phi)
    gram, cross = dense(model)
    measured = phi.sum(1) > 0
    changes = torch.einsum(
        "kpq,q->kp", cross, torch.linalg.solve(gram, (residual * measured).double().flatten())
    )
    expected = (cosines(B).T @ changes).view(B, H, W)
    estimate = model.solve(residual * measured, measured.float(), 60).frames()[0]
    torch.testing.assert_close(estimate.double(), expected, atol=2e-4, rtol=0)


def test_posterior_mean_equals_dense_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_model, "_STEPS_PER_ITERATION", 60)
    phi = random_masks(grey=True)
    model, residual = model_of(phi, ESTIMATES), unexplained(phi)
    gram, cross = dense(model, ESTIMATES.kappa2)
    changes = torch.einsum(
        "kpq,q->kp", cross, torch.linalg.solve(gram, residual.double().flatten())
    )
    expected = (cosines(B).T @ changes).view(B, H, W)
    torch.testing.assert_close(
        model.posterior_mean(residual, everywhere(residual))[0].double(),
        expected,
        atol=2e-4,
        rtol=0,
    )


def error_after(steps: int, phi: torch.Tensor) -> float:
    """Return the relative distance of an estimate after a number of steps from the
    converged one.
    """
    model, residual = model_of(phi), unexplained(phi)
    exact, early = (model.solve(residual, everywhere(residual), n).frames() for n in (80, steps))
    return float((early - exact).norm() / exact.norm())


@pytest.mark.parametrize(
    "masks", [random_masks(64, 72), random_masks(64, 72, grey=True), shifted_masks(64, 72)]
)
def test_two_steps_suffice(masks: torch.Tensor) -> None:
    assert error_after(2, masks) < 0.16


def test_converged_solution_stays_stable() -> None:
    assert error_after(300, random_masks()) < 1e-4


def test_invalid_pixels_take_no_part() -> None:
    phi = random_masks(32, 40)
    measured = torch.ones(1, 32, 40)
    measured[..., 10:20, 5:9] = 0.0
    dual = model_of(phi).solve(unexplained(phi) * measured, measured).dual
    assert float(dual[measured == 0].abs().max()) == 0.0
    assert bool(dual.isfinite().all())


def test_leave_one_out_error_equals_explicit_prediction() -> None:
    """z_p/[K⁻¹]_pp equals what leaving y_p out and predicting it from the others gives."""
    phi = random_masks()
    model, residual = model_of(phi), unexplained(phi)
    gram, _ = dense(model)
    dual = model.solve(residual, everywhere(residual), 60).dual.double().flatten()
    residual = residual.double().flatten()
    diagonal = torch.linalg.inv(gram).diagonal()
    for left_out in (0, 37, 119):
        others = torch.arange(residual.numel()) != left_out
        predicted = gram[left_out, others] @ torch.linalg.solve(
            gram[others][:, others], residual[others]
        )
        assert float(dual[left_out] / diagonal[left_out]) == pytest.approx(
            float(residual[left_out] - predicted), abs=2e-3
        )


def test_diagonal_of_inverse_is_close_to_exact() -> None:
    model = model_of(random_masks(grey=True))
    gram, _ = dense(model)
    assert float(model.expected.mean()) == pytest.approx(
        float(torch.linalg.inv(gram).diagonal().mean()), rel=0.25
    )
