"""No prior: for measuring everything else."""

from __future__ import annotations

import torch


class IdentityDenoiser:
    """Return a copy of the input for any σ."""

    name = "identity"

    def graph_key(self, sigma: float) -> str:  # noqa: ARG002 - the port's signature
        """Return the same for all levels; see `sci_stream.ports.RecordableDenoiser`."""
        return self.name

    def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:  # noqa: ARG002 - the port's signature
        """Return a clone of ``x``."""
        return x.clone()
