r"""A denoiser of images put to work along time: on the frequencies of a few consecutive frames instead of the frames.

A denoiser that sees one frame at a time takes away fine texture with the noise, in every frame alike. Over L
consecutive frames an orthonormal cosine transform T gathers what they have in common in one image, their mean, with 1/L
of the variance of white noise, and leaves to the other L − 1 what changes: nearly nothing where nothing moves.
Denoised there, static content keeps its texture and what flickers goes. Where much moves it is the other way round,
the frames are the simpler images; so the solver lets the two take turns (`cycled_denoisers`), for no more work than
either alone::

    v = T⁻¹ D(T x),   means at σ L^(−1/4), the other frequencies at σ
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import NamedTuple

import torch

from sci_stream.ports import Denoiser, RecordableDenoiser, VideoDenoiser
from sci_stream.recon.algorithms.noise_level import scaled
from sci_stream.recon.backend.memory import PIXELS_PER_CHUNK, plan_chunks

GROUPS = (2, 4, 8)
"""Frames transformed together, from one turn to the next: two for what moves fast, eight for what hardly does.

See research/schedule-research.md.
"""

# Added to the frequencies that are no means and lie around 0: priors are made for images around the middle of 0–1.
_MIDDLE = 0.5


class FrameDenoiser:
    """D_σ on a whole video, all its frames as one batch.

    Parameters
    ----------
    prior
        The denoiser of images.
    """

    def __init__(self, prior: Denoiser) -> None:
        self._prior = prior

    def graph_key(self, sigma: float) -> Hashable:
        """Return the prior's key; see `sci_stream.ports.RecordableDenoiser`."""
        return _form(self._prior, sigma)

    def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        """Denoise (…, B, H, W), not modified; returns a new tensor."""
        return self._prior(x.flatten(0, -3), sigma).view(x.shape)


class WholeVideoDenoiser:
    """D_σ of a denoiser that sees all frames of a video.

    Parameters
    ----------
    prior
        The denoiser of videos.
    """

    def __init__(self, prior: VideoDenoiser) -> None:
        self._prior = prior

    def graph_key(self, sigma: float) -> Hashable:
        """Return the prior's key; see `sci_stream.ports.RecordableDenoiser`."""
        return _form(self._prior, sigma)

    def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        """Denoise (…, B, H, W), not modified; returns a new tensor."""
        return self._prior.denoise_video(x.reshape(-1, *x.shape[-3:]), sigma).view(x.shape)


class TemporalDctDenoiser:
    r"""D_σ on the temporal frequencies of groups of frames.

    σ of a mean lies between σ/√L, which errors that are white would leave in it, and σ, which those that all frames
    have in common would: L^(−1/4).

    Parameters
    ----------
    prior
        The denoiser of images.
    n_frames
        B of the videos, ≥ 1.
    group
        Most frames in a group, ≥ 2: B is cut into groups of nearly equal length.
    device
        Of the videos, which are float32.
    """

    def __init__(self, prior: Denoiser, n_frames: int, group: int, device: torch.device) -> None:
        self._prior = prior
        self._pixels_at_once = PIXELS_PER_CHUNK[device.type]
        self._groups: list[tuple[slice, torch.Tensor]] = []
        means: dict[int, list[int]] = {}
        changes: list[int] = []
        first = 0
        for length in plan_chunks(n_frames, 1, group):
            self._groups.append((slice(first, first + length), cosines(length).to(device, torch.float32)))
            means.setdefault(length, []).append(first)
            changes += range(first + 1, first + length)
            first += length
        # A mean as it comes out of an orthonormal transform is √L times as bright as the frames.
        bands = [_Band(torch.tensor(rows), length**-0.5, 0.0, length**-0.25) for length, rows in means.items()]
        bands.append(_Band(torch.tensor(changes, dtype=torch.long), 1.0, _MIDDLE, 1.0))
        self._bands = [band._replace(rows=band.rows.to(device)) for band in bands if len(band.rows)]

    def graph_key(self, sigma: float) -> Hashable:
        """Return the prior's forms at all the levels that it is asked for."""
        keys = tuple(_form(self._prior, sigma * band.sigma) for band in self._bands)
        return None if None in keys else keys

    def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        """Denoise (…, B, H, W) float32, not modified; returns a new tensor."""
        frequencies = torch.empty_like(x)
        for frames, transform in self._groups:
            _transform(transform, x[..., frames, :, :], out=frequencies[..., frames, :, :])
        rows_at_once = max(1, self._pixels_at_once * x.shape[-3] // x.numel())
        for band in self._bands:
            level = scaled(sigma, band.sigma)
            for rows in torch.split(band.rows, rows_at_once):
                images = frequencies.index_select(-3, rows).mul_(band.scale).add_(band.offset)
                clean = self._prior(images.flatten(0, -3), level).view(images.shape)
                frequencies.index_copy_(x.ndim - 3, rows, clean.sub_(band.offset).div_(band.scale))
        for frames, transform in self._groups:
            part = frequencies[..., frames, :, :]
            _transform(transform.mT, part, out=part)
        return frequencies


def _transform(matrix: torch.Tensor, frames: torch.Tensor, *, out: torch.Tensor) -> None:
    """Write the product with a matrix (L, L) along time to ``out``, (…, L, H, W), which may be ``frames`` itself."""
    out.copy_(transformed(matrix, frames))


def transformed(matrix: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
    """Return the product with a matrix (L, L) along time of (…, L, H, W), a new tensor."""
    return torch.matmul(matrix, frames.flatten(-2)).view(frames.shape)


class _Band(NamedTuple):
    """Rows of the transform whose images are treated alike: image = scale·frequency + offset, at ``sigma``·σ."""

    rows: torch.Tensor
    scale: float
    offset: float
    sigma: float


def cosines(length: int) -> torch.Tensor:
    r"""Return the orthonormal cosine transform of L samples (DCT-II), (L, L) float64; row 0 is their mean times √L."""
    frequency, sample = torch.arange(length, dtype=torch.float64).unsqueeze(1), torch.arange(length) + 0.5
    transform = torch.cos(math.pi / length * frequency * sample) * math.sqrt(2 / length)
    transform[0] /= math.sqrt(2)
    return transform


IterationDenoiser = FrameDenoiser | TemporalDctDenoiser | WholeVideoDenoiser
"""What an iteration denoises with: (…, B, H, W), σ → (…, B, H, W)."""


def cycled_denoisers(
    prior: Denoiser, n_frames: int, device: torch.device, *, along_time: bool
) -> tuple[IterationDenoiser, ...]:
    """Return what a solver's iterations denoise with in turn: the frames alone, or every other time along time.

    Parameters
    ----------
    prior
        The denoiser of images, on the device.
    n_frames
        B of the videos. A single frame has no time.
    device
        Of the videos.
    along_time
        Whether to denoise along time too.
    """
    if isinstance(prior, VideoDenoiser):
        return (WholeVideoDenoiser(prior),)  # it makes use of time itself
    frames = FrameDenoiser(prior)
    if not along_time or n_frames == 1:
        return (frames,)
    turns: list[IterationDenoiser] = []
    for group in GROUPS:
        turns += [TemporalDctDenoiser(prior, n_frames, group, device), frames]
        if group >= n_frames:
            break
    return tuple(turns)


def ending_on_frames(priors: tuple[IterationDenoiser, ...], iterations: int) -> tuple[IterationDenoiser, ...]:
    """Return the priors that take turns, begun where it takes to end a solve of so many iterations with a full round.

    The last turns are those of the longest groups and of the frames: what stands still gets its texture last, when σ is
    low. Where a round ended otherwise it was smoothed again. Fewer iterations than a round has begin with the shortest
    groups: there is much to move yet.
    """
    begin = -iterations % len(priors) if iterations >= len(priors) else 0
    return priors[begin:] + priors[:begin]


def _form(prior: Denoiser, sigma: float) -> Hashable:
    """Return a prior's form; None of one that cannot be recorded."""
    return prior.graph_key(sigma) if isinstance(prior, RecordableDenoiser) else None
