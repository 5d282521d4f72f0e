"""Two priors in sequence for the instrument's own solve: a fast one at high σ, a better one at low
σ.

The paper's loop runs one stage after the other (`methods`). The instrument's has no stages: there σ
decides.
"""

from __future__ import annotations

import torch

from sci_stream.ports import Denoiser, LocalDenoiser, MemoryReducible, VideoDenoiser
from sci_stream.recon.algorithms.noise_level import Sigma


class SequenceDenoiser:
    """Denoise with one prior while σ is above a level, then with another.

    The paper uses one denoiser for the first K₁ iterations and another for the next K₂. σ falls
    with the progress of a solve, so a level of σ corresponds to a share of its iterations, whatever
    their number, and the prior has no state.

    Parameters
    ----------
    switch_sigma
        Noise level on the 0–1 scale above which the first one is used.

    References
    ----------
    Section 5; PnP-WNNM-FFDNet in Table 1.
    """

    takes_relative = True

    def __init__(self, first: Denoiser, then: Denoiser, switch_sigma: float) -> None:
        self.name = f"{first.name}+{then.name}"
        self._first = first
        self._then = then
        self._switch_sigma = switch_sigma

    def __call__(self, x: torch.Tensor, sigma: Sigma, *relative: torch.Tensor) -> torch.Tensor:
        """Denoise (N, H, W); see `sci_stream.ports.LocalDenoiser`."""
        prior = self._at(sigma)
        return prior(x, sigma, *_taken(prior, relative))

    def denoise_video(self, x: torch.Tensor, sigma: Sigma, *relative: torch.Tensor) -> torch.Tensor:
        """Denoise (P, B, H, W), each frame by itself where a prior sees no others; see
        `VideoDenoiser`.
        """
        prior = self._at(sigma)
        if isinstance(prior, VideoDenoiser):
            return prior.denoise_video(x, sigma, *_taken(prior, relative))
        return self(x.flatten(0, 1), sigma, *relative).view(x.shape)

    def reduce_memory(self) -> bool:
        """Reduce the memory of both; see `sci_stream.ports.MemoryReducible`."""
        released = False
        for prior in (self._first, self._then):
            released |= isinstance(prior, MemoryReducible) and prior.reduce_memory()
        return released

    def _at(self, sigma: Sigma) -> Denoiser:
        return self._first if sigma > self._switch_sigma else self._then


def _taken(prior: Denoiser, relative: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return the map of levels if the prior takes one."""
    return relative if isinstance(prior, LocalDenoiser) else ()
