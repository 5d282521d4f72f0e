r"""Total variation: the classical prior, which needs no weights and runs anywhere.

The denoised frame is ``argmin_u ½‖u − x‖² + w Σ_pixels (|∇_v u| + |∇_h u|)`` with forward
differences. It is computed from its dual, ``u = x + div q`` with |q| ≤ w, by projected gradient
steps ``q ← clip(q + τ∇u, −w, w)``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sci_stream.recon.algorithms.noise_level import Sigma, on_device
from sci_stream.recon.backend.memory import PIXELS_PER_CHUNK, plan_chunks

WEIGHT_PER_SIGMA = 0.65
"""w/σ. Best mean PSNR on photographs with white noise of σ 15–50 (of 255) lies between 0.5 and
0.7."""

# τ. Converges below 1/4, as ‖div ∇‖ ≤ 8 in two dimensions.
_STEP = 0.24


class TvDenoiser:
    """Anisotropic total variation, frame by frame, by a few projected-gradient steps on the dual.

    Anisotropic because its projection is a clamp: twice as fast as the isotropic form and, inside
    GAP, 0.2–0.4 dB better on the published benchmarks. The dual starts at zero in every call:
    carrying it over from the iteration before gains nothing measurable and would make the result
    depend on what came before.

    References
    ----------
    Chambolle, "An algorithm for total variation minimization and applications", J. Math. Imaging
    Vis. 20 (2004), in the projected-gradient form of 2005; as GAP's prior: Yuan, "Generalized
    alternating projection based total variation minimization for compressive sensing", ICIP 2016.
    """

    name = "tv"
    recordable = True

    def __init__(self, steps: int = 7) -> None:
        if steps < 1:
            raise ValueError(f"TV needs at least one inner step, got {steps}")
        self._steps = steps

    def __call__(self, x: Tensor, sigma: Sigma) -> Tensor:
        """Denoise (N, H, W) with the weight 0.65 σ; see `sci_stream.ports.Denoiser`."""
        out = torch.empty_like(x)
        weight = WEIGHT_PER_SIGMA * on_device(sigma, x)
        sizes = plan_chunks(x.shape[0], x.shape[1] * x.shape[2], PIXELS_PER_CHUNK[x.device.type])
        for frames, result in zip(torch.split(x, sizes), torch.split(out, sizes), strict=True):
            _denoise(frames, weight, self._steps, out=result)
        return out


def _denoise(x: Tensor, weight: Tensor, steps: int, *, out: Tensor) -> None:
    """Write the TV-denoised ``x`` to ``out``, (N, H, W) both; every step works in place."""
    u = out.copy_(x)
    # The dual has one entry per pair of neighbours: vertical ones between rows, horizontal ones
    # between columns.
    q_v = torch.zeros_like(x[:, 1:, :], memory_format=torch.contiguous_format)
    q_h = torch.zeros_like(x[:, :, 1:], memory_format=torch.contiguous_format)
    for _ in range(steps):
        q_v.add_(u[:, 1:, :], alpha=_STEP).sub_(u[:, :-1, :], alpha=_STEP).clamp_(-weight, weight)
        q_h.add_(u[:, :, 1:], alpha=_STEP).sub_(u[:, :, :-1], alpha=_STEP).clamp_(-weight, weight)
        u.copy_(x)
        u[:, :-1, :] += q_v
        u[:, 1:, :] -= q_v
        u[:, :, :-1] += q_h
        u[:, :, 1:] -= q_h
