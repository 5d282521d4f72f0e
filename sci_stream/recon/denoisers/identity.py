"""No prior at all: for measuring everything but the prior."""

from __future__ import annotations

import torch


class IdentityDenoiser:
    """Return a copy of what comes in, whatever σ says."""

    name = "identity"

    def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:  # noqa: ARG002 - the port's signature
        """Return a clone of ``x``."""
        return x.clone()
