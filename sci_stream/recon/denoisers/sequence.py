"""Two priors in sequence, as in the paper: a fast one at high σ, a better one at low σ."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from sci_stream.ports import Denoiser, MemoryReducible, RecordableDenoiser, VideoDenoiser


class SequenceDenoiser:
    """Denoise with one prior while σ is above a level, then with another.

    The paper uses one denoiser for the first K₁ iterations and another for the next K₂. σ falls with the progress of a
    solve, so a level of σ corresponds to a share of its iterations, whatever their number, and the prior has no state.

    Parameters
    ----------
    switch_sigma
        Noise level on the 0–1 scale above which the first one is used. For a share K₁/K of a schedule:
        ``schedule.sigma(K₁/K)``.

    References
    ----------
    PnP-SCI, Section 5, "Integrate various denoisers into PnP"; PnP-WNNM-FFDNet in its table of results.
    """

    def __init__(self, first: Denoiser, then: Denoiser, switch_sigma: float) -> None:
        self.name = f"{first.name}+{then.name}"
        self._first = first
        self._then = then
        self._switch_sigma = switch_sigma

    def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        """Denoise (N, H, W); see `sci_stream.ports.Denoiser`."""
        return self._first(x, sigma) if sigma > self._switch_sigma else self._then(x, sigma)

    def reduce_memory(self) -> bool:
        """Reduce the memory of both; see `sci_stream.ports.MemoryReducible`."""
        released = False
        for prior in (self._first, self._then):
            released |= isinstance(prior, MemoryReducible) and prior.reduce_memory()
        return released


class RecordableSequence(SequenceDenoiser):
    """A `SequenceDenoiser` of two denoisers whose work can be recorded; see `sci_stream.ports.RecordableDenoiser`."""

    def __init__(self, first: RecordableDenoiser, then: RecordableDenoiser, switch_sigma: float) -> None:
        super().__init__(first, then, switch_sigma)
        self._keys = first.graph_key, then.graph_key

    def graph_key(self, sigma: float) -> Hashable:
        """Return which of the two is used at this level, and its key."""
        first = sigma > self._switch_sigma
        return first, self._keys[0 if first else 1](sigma)


class VideoSequence(SequenceDenoiser):
    """Two priors in sequence, at least one of which uses all frames of a video; see `SequenceDenoiser`.

    The other one denoises each frame by itself.
    """

    def denoise_video(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        """Denoise (P, B, H, W); see `sci_stream.ports.VideoDenoiser`."""
        prior = self._first if sigma > self._switch_sigma else self._then
        if isinstance(prior, VideoDenoiser):
            return prior.denoise_video(x, sigma)
        return prior(x.flatten(0, 1), sigma).view(x.shape)


class RecordableVideoSequence(RecordableSequence, VideoSequence):
    """A `VideoSequence` whose work can be recorded."""


def in_sequence(first: Denoiser, then: Denoiser, switch_sigma: float) -> SequenceDenoiser:
    """Return two priors in sequence, with every optional part of the port that both support."""
    video = isinstance(first, VideoDenoiser) or isinstance(then, VideoDenoiser)
    if isinstance(first, RecordableDenoiser) and isinstance(then, RecordableDenoiser):
        return (RecordableVideoSequence if video else RecordableSequence)(first, then, switch_sigma)
    return (VideoSequence if video else SequenceDenoiser)(first, then, switch_sigma)
