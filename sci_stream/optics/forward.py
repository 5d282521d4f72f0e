r"""The forward model of video SCI and the projection onto the measurement.

One exposure sums B masked frames, the paper's Eq. (1): ``y = Σ_b φ_b ⊙ x_b + z``. In vector form, y
= Φx + z, Φ is a row of B diagonal blocks, so ΦΦᵀ is diagonal with entries R = Σ_b φ_b², and its
inverse is one division per pixel. This makes the projection of PnP-GAP cheap.

All functions accept leading batch dimensions: (…, B, H, W) for masks and videos, (…, H, W) for
measurements.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sci_stream.optics.calibration import BLIND_SHARE


def forward(phi: Tensor, x: Tensor) -> Tensor:
    """Encode a video: Φx = Σ_b φ_b ⊙ x_b, (…, B, H, W) → (…, H, W).

    Both must have the same dtype and device; the result is a new tensor.
    """
    if (
        phi.device.type == "cpu"
    ):  # frame by frame: a fifth of the time of one product, for large videos
        masks = phi.unbind(-3)
        frames = x.unbind(-3)
        y = masks[0] * frames[0]
        for mask, frame in zip(masks[1:], frames[1:], strict=True):
            y.addcmul_(mask, frame)
        return y
    coded: Tensor = torch.linalg.vecdot(phi, x, dim=-3)
    return coded


def gram_diag(phi: Tensor) -> Tensor:
    """Return R = diag(ΦΦᵀ) = Σ_b φ_b², (…, B, H, W) → (…, H, W).

    Not Σ_b φ_b as in published codes: the two are equal only for binary masks, and calibrated masks
    are grey.
    """
    return forward(phi, phi)


def inverse_gram(r: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return R⁻¹ at measured pixels and 0 elsewhere.

    With R⁻¹ = 0 a pixel has no effect in `accumulate_and_project`, which leaves its frames
    unchanged.

    Parameters
    ----------
    r
        (…, H, W), R = Σ_b φ_b² as from `gram_diag`.
    valid
        (…, H, W) bool, broadcastable to ``r``: pixels with a valid measurement. False for bad or
        saturated ones. Blind pixels, R ≤ `BLIND_SHARE` of its mean, are always excluded.

    Returns
    -------
    (…, H, W), a new tensor in the dtype of ``r``.
    """
    # Multiplying by 0 instead of branching keeps the projection one fused operation.
    measured = r > BLIND_SHARE * r.mean()
    if valid is not None:
        measured = measured & valid
    return torch.where(measured, r, 1.0).reciprocal() * measured


def accumulate_and_project(
    v: Tensor,
    y_acc: Tensor,
    y: Tensor,
    phi: Tensor,
    r_inv: Tensor,
    *,
    relaxation: float,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Do the linear half of an accelerated iteration: accumulate the residual of v, and project.

    ::

        y_acc ← y + w (y_acc − y + α (y − Φv))
        x = v + Φᵀ(ΦΦᵀ)⁻¹ w (y_acc − Φv)

    Where w is 1, x is the video nearest to ``v`` that satisfies y_acc = Φx exactly. Φv is computed
    once for both.

    Parameters
    ----------
    v
        (…, B, H, W), the estimate to project. Not modified.
    y_acc, y
        (…, H, W), the accumulated measurement, and the measurement; finite, also where ``r_inv`` is
        0.
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
    coded = forward(phi, v)
    y_acc = torch.add(y_acc, y - coded, alpha=relaxation)
    if weight is None:
        step = (y_acc - coded) * r_inv
    else:
        y_acc = torch.lerp(y, y_acc, weight)
        step = (y_acc - coded) * (r_inv * weight)
    return torch.addcmul(v, phi, step.unsqueeze(-3)), y_acc
