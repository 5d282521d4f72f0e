r"""Image denoisers applied along time: to the temporal frequencies of a few consecutive frames.

A denoiser of single frames removes fine texture with the noise, in every frame. An orthonormal
cosine transform T over L consecutive frames collects their common content in one image, their mean,
with 1/L of the variance of white noise; the other L − 1 images hold the changes: almost nothing
where nothing moves. Denoised there, static content keeps its texture and flicker is removed. With
much motion the frames are the simpler images; so the solver alternates between the two
(`cycled_denoisers`), at the cost of either alone::

    v = T⁻¹ D(T x),   means at σ L^(−1/4), the other frequencies at σ
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sci_stream.ports import Denoiser, LocalDenoiser, VideoDenoiser
from sci_stream.recon.algorithms.noise_level import Sigma
from sci_stream.recon.backend.memory import plan_chunks

GROUPS = (2, 4, 8)
"""Frames transformed together, in turn: two for fast motion, eight for slow motion.

See lab/research/schedule-research.md.
"""

# Offset of the frequencies other than the mean, which lie around 0: priors expect images around the
# middle of 0–1.
_MIDDLE = 0.5


class FrameDenoiser:
    """D_σ on a whole video, all its frames as one batch.

    ``mosaics``: the prior takes the planes of each frame together.
    """

    def __init__(self, prior: Denoiser, *, mosaics: bool = False) -> None:
        self._prior = prior
        self._mosaics = mosaics

    def __call__(self, x: Tensor, sigma: Sigma, *relative: Tensor) -> Tensor:
        """Denoise (…, B, H, W), not modified; returns a new tensor."""
        frames = x if self._mosaics else x.flatten(0, -3)
        return self._prior(frames, sigma, *relative).view(x.shape)


class WholeVideoDenoiser:
    """D_σ of a denoiser that sees all frames of a video."""

    def __init__(self, prior: VideoDenoiser) -> None:
        self._prior = prior

    def __call__(self, x: Tensor, sigma: Sigma, *relative: Tensor) -> Tensor:
        """Denoise (…, B, H, W), not modified; returns a new tensor."""
        return self._prior.denoise_video(x.reshape(-1, *x.shape[-3:]), sigma, *relative).view(
            x.shape
        )


class TemporalDctDenoiser:
    r"""D_σ on the temporal frequencies of groups of frames.

    The level of a mean is the geometric mean, σ L^(−1/4), of σ/√L, for errors that are white in
    time, and σ, for errors that all frames share.

    Parameters
    ----------
    group
        Largest number of frames in a group, ≥ 2: B is divided into groups of nearly equal length.
    mosaics
        The prior takes the planes of each image together.
    """

    def __init__(
        self,
        prior: Denoiser,
        n_frames: int,
        group: int,
        device: torch.device,
        *,
        mosaics: bool = False,
    ) -> None:
        self._prior = prior
        self._mosaics = mosaics
        transform = torch.zeros(n_frames, n_frames, dtype=torch.float64)
        scale = torch.ones(n_frames, 1)
        offset = torch.full((n_frames, 1), _MIDDLE)
        levels = torch.ones(n_frames)
        first = 0
        for length in plan_chunks(n_frames, 1, group):
            transform[first : first + length, first : first + length] = cosines(length)
            # The mean in an orthonormal transform is √L times as bright as the frames.
            scale[first], offset[first], levels[first] = length**-0.5, 0.0, length**-0.25
            first += length
        back = transform.mT / scale.mT
        self._to_images = offset.to(device), (transform * scale).to(device, torch.float32)
        self._to_frames = (
            (-back @ offset.double()).to(device, torch.float32),
            back.to(device, torch.float32),
        )
        # Where σ is: a level that decides between two networks is read there.
        self._levels = {
            place.type: levels.view(-1, 1, 1).to(place) for place in (torch.device("cpu"), device)
        }
        self._rows = [
            (level, (levels == level).nonzero()[:, 0].to(device))
            for level in sorted(set(levels.tolist()))
        ]

    def __call__(self, x: Tensor, sigma: Sigma, *relative: Tensor) -> Tensor:
        """Denoise (…, B, H, W) float32, not modified; returns a new tensor."""
        videos = x.reshape(-1, *x.shape[-3:])
        images = _affine(*self._to_images, videos)
        if isinstance(self._prior, LocalDenoiser):
            levels = sigma * self._levels[sigma.device.type if isinstance(sigma, Tensor) else "cpu"]
            batch, levels = self._batch(images, levels)
            clean = self._prior(batch, levels, *relative).view(images.shape)
        else:
            clean = images.new_empty(images.shape)
            for level, rows in self._rows:
                part = images.index_select(1, rows)
                batch = part if self._mosaics else part.flatten(0, 1)
                clean.index_copy_(1, rows, self._prior(batch, sigma * level).view(part.shape))
        del images  # a whole video
        return _affine(*self._to_frames, clean).view(x.shape)

    def _batch(self, images: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Return images, (P, B, H, W), and their levels as the prior takes them."""
        if self._mosaics:
            return images, levels
        return images.flatten(0, 1), levels.repeat(len(images), 1, 1)


def _affine(offset: Tensor, matrix: Tensor, videos: Tensor) -> Tensor:
    """Return offset + matrix·frames along time of each video, (P, B, H, W), a new tensor; in one
    pass over it.
    """
    mapped = torch.baddbmm(offset, matrix.expand(len(videos), -1, -1), videos.flatten(-2))
    return mapped.view(videos.shape)


def transformed(matrix: Tensor, frames: Tensor) -> Tensor:
    """Return the product with a matrix (L, L) along time of (…, L, H, W), a new tensor."""
    return torch.matmul(matrix, frames.flatten(-2)).view(frames.shape)


def cosines(length: int) -> Tensor:
    r"""Return the orthonormal cosine transform of L samples (DCT-II), (L, L) float64; row 0 is
    their mean times √L.
    """
    frequency = torch.arange(length, dtype=torch.float64).unsqueeze(1)
    sample = torch.arange(length) + 0.5
    transform = torch.cos(math.pi / length * frequency * sample) * math.sqrt(2 / length)
    transform[0] /= math.sqrt(2)
    return transform


IterationDenoiser = FrameDenoiser | TemporalDctDenoiser | WholeVideoDenoiser
"""Denoiser of an iteration: (…, B, H, W), σ → (…, B, H, W)."""


def cycled_denoisers(
    prior: Denoiser,
    n_frames: int,
    device: torch.device,
    *,
    along_time: bool,
    mosaics: bool = False,
) -> tuple[IterationDenoiser, ...]:
    """Return the denoisers of a solver's iterations in turn: frames only, or alternately along
    time.

    A denoiser of videos is the only one. A single frame has no temporal frequencies. ``mosaics``:
    the prior takes the planes of each frame together.
    """
    if isinstance(prior, VideoDenoiser):
        return (WholeVideoDenoiser(prior),)  # it uses neighbouring frames itself
    frames = FrameDenoiser(prior, mosaics=mosaics)
    if not along_time or n_frames == 1:
        return (frames,)
    turns: list[IterationDenoiser] = []
    for group in GROUPS:
        along = TemporalDctDenoiser(prior, n_frames, group, device, mosaics=mosaics)
        turns += [along, frames]
        if group >= n_frames:
            break
    return tuple(turns)


def ending_on_frames(
    priors: tuple[IterationDenoiser, ...], iterations: int
) -> tuple[IterationDenoiser, ...]:
    """Rotate the cycle of priors so that a solve of this many iterations ends with its end.

    The cycle ends with the longest groups and the frames: static content regains its texture last,
    when σ is low; any other end would smooth it again. With fewer iterations than the cycle, the
    shortest groups come first, because motion is not recovered yet.
    """
    begin = -iterations % len(priors) if iterations >= len(priors) else 0
    return priors[begin:] + priors[:begin]
