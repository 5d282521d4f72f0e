r"""PnP-GAP and PnP-ADMM as in the paper, with its symbols: y = Hx + z, R = HHᵀ.

Both alternate between the data, a projection that is cheap since R is diagonal, and the prior, a
denoiser D_σ with σ = √λ. A rule lowers λ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from sci_stream.optics.forward import forward
from sci_stream_lab.paper.lambda_rules import LambdaRule

Denoise = Callable[[torch.Tensor, float], torch.Tensor]
"""D_σ: a video (P, B, H, W) and σ on the 0–1 scale → a new video."""


class Sensed(NamedTuple):
    """A measurement, by planes: 1, or the 4 of a Bayer mosaic."""

    y: torch.Tensor
    """(P, H, W)."""
    phi: torch.Tensor
    """The masks C_b, (P, B, H, W): the diagonals of H = [D_1, …, D_B], Eq. (4)."""
    r_inv: torch.Tensor
    """R⁻¹, (P, H, W), with 0 at pixels without a measurement; R_j = Σ_b D²_{b,j}, Eq. (19)."""


def pnp_gap(
    v: torch.Tensor, sensed: Sensed, denoise: Denoise, rule: LambdaRule
) -> Iterator[torch.Tensor]:
    r"""Yield v of each iteration of Algorithm 1, accelerated.

    ::

        x^(k+1) = v^(k) + Hᵀ(HHᵀ)⁻¹ (y − H v^(k))        (23)
        v^(k+1) = D_σ(x^(k+1))                           (24)

    Accelerated, as in the authors' code, y in the first line is y + the residuals of all v so far
    (Liao, Li, Carin, "Generalized alternating projection for weighted-ℓ2,1 minimization", SIAM J.
    Imaging Sci. 7, 2014)::

        y_acc ← y_acc + (y − H v^(k))

    It starts at y, not at 0 as in the authors' code, where the first projection discards v⁰.

    Parameters
    ----------
    v
        v⁰, (P, B, H, W). Not modified.

    Yields
    ------
    (P, B, H, W), a new tensor.
    """
    y, phi, r_inv = sensed
    y_acc = y
    for sigma in rule:
        coded = forward(phi, v)
        y_acc = y_acc + (y - coded)
        x = torch.addcmul(v, phi, ((y_acc - coded) * r_inv).unsqueeze(-3))
        v = denoise(x, sigma)
        rule.observe(x, v)
        yield v


def pnp_admm(
    v: torch.Tensor, sensed: Sensed, denoise: Denoise, rule: LambdaRule, *, rho: float = 0.01
) -> Iterator[torch.Tensor]:
    r"""Yield v of each iteration of PnP-ADMM, Section 3, with f(x) = ½‖y − Hx‖² and u for the
    paper's u/ρ.

    ::

        x^(k+1) = argmin_x f(x) + ρ/2 ‖x − (v^(k) − u^(k))‖²
                = (v^(k) − u^(k)) + Hᵀ(HHᵀ + ρ)⁻¹ (y − H(v^(k) − u^(k)))        (7)
        v^(k+1) = D_σ(x^(k+1) + u^(k))                                          (8), (10)
        u^(k+1) = u^(k) + (x^(k+1) − v^(k+1))                                   (9)

    ρ is constant (γ_k = 1) while σ falls by the rule.

    Parameters
    ----------
    v
        v⁰, (P, B, H, W). Not modified.

    Yields
    ------
    (P, B, H, W), a new tensor.
    """
    y, phi, r_inv = sensed
    u = torch.zeros_like(v)
    # 1/(R + ρ) from 1/R, which is 0 at pixels without a measurement: they keep v − u.
    ridge = 1.0 + rho * r_inv
    for sigma in rule:
        x = v - u
        residual = y - forward(phi, x)
        x = torch.addcmul(x, phi, (residual * r_inv / ridge).unsqueeze(-3))
        v = denoise(x + u, sigma)
        u = u + (x - v)
        rule.observe(x, v)
        yield v
