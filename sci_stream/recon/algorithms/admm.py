r"""Plug-and-play ADMM, the paper's Section 3, for noisy measurements.

ADMM solves ``min ½‖y − Φx‖² + λ g(v)  s.t.  x = v``. GAP's x fits every measured pixel exactly, noise
included; ADMM's weighs the measurement against the prior: the larger ρ = γ, the smaller the weight of y.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from sci_stream.optics.forward import forward
from sci_stream.recon.algorithms.gap import Problem, data_step_gaussian
from sci_stream.recon.algorithms.noise_level import Sigma, on_device


def admm(v: torch.Tensor, problem: Problem, sigmas: Iterable[Sigma]) -> Iterator[torch.Tensor]:
    r"""Yield the denoised estimate v of each iteration, as long as there is a σ for the next.

    ::

        x ← (v − u) + Φᵀ (ΦΦᵀ + γ)⁻¹ (y − Φ(v − u))
        v ← D_σ(x + u)
        u ← u + (x − v)

    The first line is the minimiser of ½‖y − Φx‖² + ½γ‖x − (v − u)‖²: the matrix to invert is block diagonal, and the
    Woodbury identity leaves one division per pixel. u is the paper's dual variable divided by ρ = γ,
    which is constant over the iterations (the paper's γ_k = 1) while σ falls by its schedule, as in the
    published code. Where the noise of y is known, γ grows by n²/(2σ²) as σ falls: by the variance of
    the noise relative to that of the errors that remain.

    Parameters
    ----------
    v, sigmas
        As for `sci_stream.recon.algorithms.gap.gap`.
    problem
        y, Φ, the prior and γ, with which pixels without a valid measurement keep v − u. With γ = 0, x fits the
        measurement exactly, as GAP's does. The correlated data step does not involve γ.

    Yields
    ------
    v, (…, B, H, W), as for `gap`.

    References
    ----------
    PnP-ADMM for SCI, the three sub-problems of Section 3. Scaled form: Boyd et al., "Distributed optimization and
    statistical learning via the alternating direction method of multipliers", Found. Trends Mach. Learn. 3 (2011).
    """
    u = torch.zeros_like(v)
    for k, sigma in enumerate(sigmas):
        v, u = admm_iteration(v, u, problem, sigma, k)
        yield v


def admm_iteration(
    v: torch.Tensor, u: torch.Tensor, problem: Problem, sigma: Sigma, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return v and u after iteration k, from 0, of `admm`: new tensors."""
    y, phi, r_inv = problem.y, problem.phi, problem.r_inv
    # x ← (v − u) + Φᵀ(ΦΦᵀ + γ)⁻¹ (y − Φ(v − u)), with 1/(R + γ) computed from 1/R: that is 0 at pixels without a
    # measurement, which so keep v − u.
    ridge = 1.0 + problem.gamma * r_inv
    if problem.noise_ratio is not None:
        ridge = ridge + problem.noise_ratio / on_device(sigma, r_inv).square()
    x = v - u
    residual = y - forward(phi, x)
    projected = torch.addcmul(x, phi, (residual * r_inv / ridge).unsqueeze(-3))
    correlated = problem.correlated_at(k)
    x = projected if correlated is None else data_step_gaussian(x, projected, residual, r_inv, correlated)
    v = problem.denoise(x + u, sigma, k)  # v ← D_σ(x + u)
    return v, u + (x - v)  # u ← u + (x − v)
