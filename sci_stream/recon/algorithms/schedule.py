"""Noise level σ of each iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sci_stream.recon.algorithms.noise_level import Sigma

MIN_SIGMA = 1 / 255
"""Lowest level of a solve: one step of 8 bits. Where the start is nearly right, solves end below their last level."""


@dataclass(frozen=True, slots=True)
class SigmaSchedule:
    """Noise levels σ of a solve, falling by a constant factor: the paper's λ_{k+1} = ξ λ_k with λ = σ².

    Parameters
    ----------
    first, last
        σ of the first and the last iteration on the 0–1 scale, first ≥ last > 0; numbers, or () on the device.
    """

    first: Sigma
    last: Sigma

    def levels(self, iterations: int) -> Sequence[Sigma]:
        """Return σ of each of some iterations, ≥ 1: numbers, or () on the device. A single one is at the last level."""
        if not isinstance(self.first, torch.Tensor):
            on_host = SigmaSchedule(*torch.tensor((self.first, self.last), dtype=torch.float64).unbind())
            return [float(sigma) for sigma in on_host.levels(iterations)]
        left = torch.linspace(1.0, 0.0, iterations, dtype=self.first.dtype, device=self.first.device)
        if iterations == 1:
            left = left - 1.0
        return (self.last * (self.first / self.last) ** left).unbind()
