"""A denoiser that takes time but no processor: overload on any machine, unnoticed by other
processes.
"""

from __future__ import annotations

import time

import torch

from sci_stream.recon.denoisers.external import DenoiserDefaults

SOLVE_S = 0.25
"""Duration of a solve of one iteration, s."""
SLOW = {"solver": f"{__name__}:SlowDenoiser", "iterations": 1, "adapt_budget": False}
"""Table ``[reconstruct]`` of a rig with it."""


class SlowDenoiser:
    """A denoiser that changes nothing."""

    defaults = DenoiserDefaults(along_time=False, linear_start=False)

    def __init__(self, device: torch.device) -> None:
        pass

    def __call__(self, images: torch.Tensor, _sigma: float) -> torch.Tensor:
        """Return the images, after a while."""
        time.sleep(SOLVE_S)
        return images.clone()
