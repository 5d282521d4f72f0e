r"""The forward model of video SCI and the projection onto the measurement.

One exposure sums B masked frames, the paper's Eq. (1): ``y = Σ_b φ_b ⊙ x_b + z``. In vector form, y = Φx + z, Φ is a
row of B diagonal blocks, so ΦΦᵀ is diagonal with entries R = Σ_b φ_b², and its inverse is one division per pixel. This
makes the projection of PnP-GAP cheap.

All functions accept leading batch dimensions: (…, B, H, W) for masks and videos, (…, H, W) for measurements.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import NamedTuple

import torch

from sci_stream.optics.calibration import R_FLOOR


def forward(phi: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Encode a video: Φx = Σ_b φ_b ⊙ x_b, (…, B, H, W) → (…, H, W).

    Both must have the same dtype and device; the result is a new tensor.
    """
    if phi.device.type == "cpu":  # frame by frame: a fifth of the time of one product, for large videos
        masks, frames = phi.unbind(-3), x.unbind(-3)
        y = masks[0] * frames[0]
        for mask, frame in zip(masks[1:], frames[1:], strict=True):
            y.addcmul_(mask, frame)
        return y
    coded: torch.Tensor = torch.linalg.vecdot(phi, x, dim=-3)
    return coded


def gram_diag(phi: torch.Tensor) -> torch.Tensor:
    """Return R = diag(ΦΦᵀ) = Σ_b φ_b², (…, B, H, W) → (…, H, W).

    Not Σ_b φ_b as in published codes: the two are equal only for binary masks, and calibrated masks are grey.
    """
    return forward(phi, phi)


def inverse_gram(r: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Return R⁻¹ at measured pixels and 0 elsewhere.

    With R⁻¹ = 0 a pixel has no effect in `accumulate_and_project`, which leaves its frames unchanged.

    Parameters
    ----------
    r
        (…, H, W), R = Σ_b φ_b² as from `gram_diag`.
    valid
        (…, H, W) bool, broadcastable to ``r``: pixels with a valid measurement. False for bad or saturated ones. Pixels
        with R ≤ `R_FLOOR` are always excluded.

    Returns
    -------
    (…, H, W), a new tensor in the dtype of ``r``.
    """
    # Multiplying by 0 instead of branching keeps the projection one fused operation.
    measured = r > R_FLOOR
    if valid is not None:
        measured = measured & valid
    return torch.where(measured, r.clamp_min(R_FLOOR).reciprocal(), 0.0)


def accumulate_and_project(
    v: torch.Tensor,
    y_acc: torch.Tensor,
    y: torch.Tensor,
    phi: torch.Tensor,
    r_inv: torch.Tensor,
    *,
    relaxation: float,
    weight: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Do the linear half of an accelerated iteration: accumulate the residual of v, and project.

    ::

        y_acc ← y + w (y_acc − y + α (y − Φv))
        x = v + Φᵀ(ΦΦᵀ)⁻¹ w (y_acc − Φv)

    Where w is 1, x is the video nearest to ``v`` that satisfies y_acc = Φx exactly. Φv is computed once for both. On a
    GPU with Triton everything is one kernel.

    Parameters
    ----------
    v
        (…, B, H, W), the estimate to project. Not modified.
    y_acc, y
        (…, H, W), the accumulated measurement, and the measurement; finite, also where ``r_inv`` is 0.
    phi
        (…, B, H, W), the mask stack.
    r_inv
        (…, H, W), R⁻¹ from `inverse_gram`. Pixels with 0 keep ``v``.
    relaxation
        α ≥ 0; 0 leaves ``y_acc`` unchanged where w is 1.
    weight
        w, (…, H, W), 0–1: weight of each measured pixel; None for 1.

    Returns
    -------
    x, y_acc
        (…, B, H, W) and (…, H, W), new tensors.

    References
    ----------
    PnP-GAP, Eq. for x^(k+1).
    """
    fused = _fused(v.device).kernel if v.is_cuda else None
    tensors = (v, y_acc, y, phi, r_inv) if weight is None else (v, y_acc, y, phi, r_inv, weight)
    if fused is not None and all(t.dtype is torch.float32 and t.is_contiguous() for t in tensors):
        return fused(v, y_acc, y, phi, r_inv, relaxation=relaxation, weight=weight)
    return _accumulate_and_project(v, y_acc, y, phi, r_inv, relaxation=relaxation, weight=weight)


def _accumulate_and_project(
    v: torch.Tensor,
    y_acc: torch.Tensor,
    y: torch.Tensor,
    phi: torch.Tensor,
    r_inv: torch.Tensor,
    *,
    relaxation: float,
    weight: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the step with separate torch operations."""
    coded = forward(phi, v)
    y_acc = torch.add(y_acc, y - coded, alpha=relaxation)
    if weight is None:
        step = (y_acc - coded) * r_inv
    else:
        y_acc = torch.lerp(y, y_acc, weight)
        step = (y_acc - coded) * (r_inv * weight)
    return torch.addcmul(v, phi, step.unsqueeze(-3)), y_acc


def projection_fault(device: torch.device) -> str:
    """Return why `accumulate_and_project` does not use its kernel on a GPU; empty if it does, and for other devices."""
    return _fused(device).fault if device.type == "cuda" else ""


class _Fused(NamedTuple):
    """The fused kernel, or None and why there is none."""

    kernel: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None
    fault: str = ""


@functools.cache
def _fused(device: torch.device) -> _Fused:
    """Return the fused kernel if it exists and agrees with torch on a small example."""
    generator = torch.Generator().manual_seed(0)
    v, phi = (torch.rand((2, 3, 5, 7), generator=generator).to(device) for _ in range(2))
    y_acc, y, r_inv, w = (torch.rand((2, 5, 7), generator=generator).to(device) for _ in range(4))
    try:
        fused: Callable[..., tuple[torch.Tensor, torch.Tensor]] = importlib.import_module(
            "sci_stream.optics.triton_kernels"
        ).accumulate_and_project
        results = [fused(v, y_acc, y, phi, r_inv, relaxation=1.5, weight=weight) for weight in (None, w)]
    except Exception as error:  # absent, no compiler, no cache folder: Triton fails in many ways, with the same remedy
        why = (str(error) or type(error).__name__).partition("\n")[0]
        return _Fused(None, f"the projection runs without its Triton kernel: {why}")
    expected = [_accumulate_and_project(v, y_acc, y, phi, r_inv, relaxation=1.5, weight=weight) for weight in (None, w)]
    agree = all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-4)
        for mine, wanted in zip(results, expected, strict=True)
        for a, b in zip(mine, wanted, strict=True)
    )
    if not agree:
        return _Fused(None, "the projection runs without its Triton kernel: its results differ from those of torch")
    return _Fused(fused)
