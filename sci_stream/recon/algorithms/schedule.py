"""Noise level σ of each iteration."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sci_stream.recon.algorithms.noise_level import Sigma

MIN_SIGMA = 1 / 255
"""Lowest level of a solve: one step of 8 bits. Where the start is nearly right, solves end below
their last level."""


def sigma_levels(first: Sigma, last: Sigma, iterations: int) -> Sequence[Sigma]:
    """Return σ of each iteration, falling by a constant factor: the paper's λ_{k+1} = ξ λ_k with λ
    = σ².

    Parameters
    ----------
    first, last
        σ of the first and the last iteration on the 0–1 scale, first ≥ last > 0; numbers, or () on
        the device. A single iteration is at the last level.
    iterations
        Their number, ≥ 1.

    Returns
    -------
    Numbers, or () on the device.
    """
    if not isinstance(first, torch.Tensor):
        ends = torch.tensor((first, last), dtype=torch.float64)
        return [float(sigma) for sigma in sigma_levels(ends[0], ends[1], iterations)]
    ahead = torch.linspace(
        float(iterations > 1), 0.0, iterations, dtype=first.dtype, device=first.device
    )
    return (last * (first / last) ** ahead).unbind()
