"""Quality of a reconstruction."""

from __future__ import annotations

import torch


def psnr(x: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the mean over frames (…, H, W) of PSNR = −10 log₁₀ MSE, dB, peak 1.0; infinite for
    equal frames.

    It is the mean of the PSNRs, not the PSNR of the mean error.

    Raises ValueError if the shapes differ.
    """
    if x.shape != truth.shape:
        raise ValueError(
            f"expected frames and truth of one shape, got {tuple(x.shape)} and {tuple(truth.shape)}"
        )
    return float((-10.0 * (x.double() - truth.double()).square().mean((-2, -1)).log10()).mean())
