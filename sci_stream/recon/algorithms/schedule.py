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


# Whole steps of a solve of mosaics behind white masks; most solves that their network learned from
# had 12. With 40 whole steps colour scenes of the tuning half lose up to 2.5 dB, in smaller ones
# nothing. Grey scenes gain from more whole steps (lab/research/colour.md).
_WHOLE_STEPS = 12


def step_shares(iterations: int, fineness: float) -> tuple[float, ...]:
    """Return the share of the way to the denoised mosaics that each iteration goes.

    Each whole step adds some false structure, so a long solve goes the same way in smaller ones.
    The last two iterations are a whole step and half a step: the result is the mean of the priors
    along time and of frames. A detail that only one of them adds is more often wrong.

    ``fineness`` is that of the masks: behind coarser ones frames separate more slowly.
    """
    if iterations < 2:
        return (1.0,)
    smaller = min(1.0, _WHOLE_STEPS / (fineness * iterations))
    return (*(smaller,) * (iterations - 2), 1.0, 0.5)
