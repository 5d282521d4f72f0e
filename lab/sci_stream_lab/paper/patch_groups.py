"""Groups of similar patches in a video, for the non-local priors, WNNM and block matching.

For a reference patch every few pixels of every frame, the most similar patches in a window around
it are found in all frames. A prior then changes the patches of each group, and every pixel becomes
the weighted mean of all patches that cover it.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

from sci_stream.recon.algorithms.noise_level import Sigma, on_device
from sci_stream.recon.denoisers.external import DenoiserDefaults

Shrink = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Patches of G groups, (G, K, p²), and σ of each, (G, 1, 1) → the patches without noise, and
weights, (G, 1, 1)."""

# Elements of the largest temporary array: distances of some references, or patches of some groups.
_ELEMENTS_AT_ONCE = {"cpu": 2**23, "cuda": 2**27}

# Beyond the border of the video: so far from any brightness that no patch there is similar to one
# inside.
_OUTSIDE = 100.0

# Below it a smaller array at once makes no difference to the memory that a solve takes.
_MIN_ELEMENTS = 2**18


@dataclass(frozen=True, slots=True)
class Search:
    """Which patches form a group.

    Parameters
    ----------
    patch
        Height and width of a patch, pixels.
    stride
        Distance of reference patches, pixels, ≤ patch.
    radius
        Of the window that similar patches are searched in, pixels.
    count
        How many patches, those most similar to the reference, which is one of them.
    per_frame
        Whether each frame contributes ``count``: a group then has B·count patches, frame by frame,
        the most similar ones first.
    """

    patch: int
    stride: int
    radius: int
    count: int
    per_frame: bool = False


class PatchGroupDenoiser(ABC):
    """A denoiser that changes groups of similar patches, in one frame or through all frames of a
    video.
    """

    name: str
    takes_relative = True
    search: ClassVar[Search]
    defaults = DenoiserDefaults(
        sigma_first=50 / 255,
        sigma_still=100 / 255,
        sigma_last=6 / 255,
        iterations=48,
        relaxation=1.5,
        along_time=False,
    )

    def __init__(self) -> None:
        self._share = 1

    @abstractmethod
    def shrink(
        self, patches: torch.Tensor, sigma: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Denoise groups of patches; see `Shrink`."""

    def __call__(
        self, x: torch.Tensor, sigma: Sigma, relative: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Denoise (N, H, W), each frame by itself; see `sci_stream.ports.LocalDenoiser`."""
        levels = _levels(sigma, relative, x)
        per_plane = len(x) // len(levels) if levels.ndim else 1
        return torch.stack(
            [
                self._filtered(
                    frame.unsqueeze(0), levels[n // per_plane] if levels.ndim else levels
                ).squeeze(0)
                for n, frame in enumerate(x)
            ]
        )

    def denoise_video(
        self, x: torch.Tensor, sigma: Sigma, relative: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Denoise (P, B, H, W), with patches of all frames in a group; see
        `sci_stream.ports.VideoDenoiser`.
        """
        levels = _levels(sigma, relative, x)
        return torch.stack(
            [
                self._filtered(video, levels[n] if levels.ndim else levels)
                for n, video in enumerate(x.unbind(0))
            ]
        )

    def reduce_memory(self) -> bool:
        """Take half as many patches at a time; see `sci_stream.ports.MemoryReducible`."""
        more = _ELEMENTS_AT_ONCE["cpu"] // (2 * self._share) >= _MIN_ELEMENTS
        if more:
            self._share *= 2
        return more

    def _filtered(self, video: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        at_once = _ELEMENTS_AT_ONCE[video.device.type] // self._share
        return filter_groups(video, level, self.search, self.shrink, at_once=at_once)


def _levels(sigma: Sigma, relative: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """Return σ at each pixel, (P, H, W), on the device of ``like``; () where ``relative``, its
    multiple, is None.
    """
    level = on_device(sigma, like)
    return level if relative is None else level * relative


def filter_groups(
    video: torch.Tensor, sigma: torch.Tensor, search: Search, shrink: Shrink, *, at_once: int
) -> torch.Tensor:
    """Change all groups of similar patches and put the patches together again.

    Parameters
    ----------
    video
        (B, H, W), not modified.
    sigma
        σ, () or at each pixel, (H, W).
    search, shrink
        Which patches form groups, and what becomes of them.
    at_once
        Elements of the largest temporary array, about; a row of references is the least.

    Returns
    -------
    (B, H, W), a new tensor.
    """
    _, height, width = video.shape
    padded = _fitted(video, search)
    rows, columns = padded.shape[-2:]
    total, weights = torch.zeros_like(padded).flatten(), torch.zeros_like(padded).flatten()
    inside = torch.arange(search.patch, device=video.device)
    offsets = (inside.unsqueeze(1) * columns + inside).flatten()
    flat = padded.flatten()
    levels = _fitted(sigma.unsqueeze(0), search).flatten() if sigma.ndim else None
    middle = (search.patch // 2) * (columns + 1)
    for references, corners in _groups(padded, search, at_once):
        most = max(1, at_once // (corners.shape[1] * len(offsets)))
        for chunk, centres in zip(
            torch.split(corners, most), torch.split(references, most), strict=True
        ):
            at = chunk.unsqueeze(-1) + offsets
            level = (
                sigma
                if levels is None
                else levels[centres % (rows * columns) + middle].view(-1, 1, 1)
            )
            patches, weight = shrink(flat[at], level)
            total.index_add_(0, at.flatten(), (patches * weight).flatten())
            weights.index_add_(0, at.flatten(), weight.expand_as(patches).flatten())
    return (total / weights).view(-1, rows, columns)[:, :height, :width].contiguous()


def _fitted(video: torch.Tensor, search: Search) -> torch.Tensor:
    """Extend rows and columns by their last ones until reference patches cover all of them."""
    down, right = (
        max(search.patch - size, 0) or -(size - search.patch) % search.stride
        for size in video.shape[-2:]
    )
    return F.pad(video.unsqueeze(0), (0, right, 0, down), mode="replicate").squeeze(0)


def _groups(
    video: torch.Tensor, search: Search, at_once: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield, for some references at a time, the first pixel of each, (G,), and of the patches of
    its group, (G, K).

    As indices of the flat video.
    """
    n_frames, height, width = video.shape
    patch, stride, radius = search.patch, search.stride, search.radius
    rows, columns = (height - patch) // stride + 1, (width - patch) // stride + 1
    # Distances of the references in a row of one frame: to each patch of their windows, in all
    # frames.
    per_row = columns * n_frames * (2 * radius + 1) ** 2
    rows_at_once = min(rows, max(1, at_once // (per_row * n_frames)))
    frames_at_once = min(n_frames, max(1, at_once // (per_row * rows_at_once)))
    surrounded = F.pad(video, (radius, radius, radius, radius), value=_OUTSIDE)
    across = stride * torch.arange(columns, device=video.device)
    for row in range(0, rows, rows_at_once):
        down = stride * torch.arange(
            row, min(row + rows_at_once, rows), device=video.device
        ).unsqueeze(1)
        band = slice(row * stride, (min(row + rows_at_once, rows) - 1) * stride + patch)
        for frame in range(0, n_frames, frames_at_once):
            frames = torch.arange(frame, min(frame + frames_at_once, n_frames), device=video.device)
            distances = _distances(
                video[frames[0] : frames[-1] + 1, band], surrounded, band.start, search
            )
            source, fall, drift = _most_similar(distances, search)
            # Videos with fewer patches than a group has: what lies beyond the border is moved
            # inside.
            fall = (down.unsqueeze(-1) + fall).clamp_(0, height - patch)
            drift = (across.unsqueeze(-1) + drift).clamp_(0, width - patch)
            references = (frames.view(-1, 1, 1) * height + down) * width + across
            yield references.flatten(), ((source * height + fall) * width + drift).flatten(0, 2)


def _distances(
    references: torch.Tensor, surrounded: torch.Tensor, top: int, search: Search
) -> torch.Tensor:
    """Return mean squared differences of patches, (frames, rows, columns, B, (2·radius + 1)²)."""
    side = 2 * search.radius + 1
    height, width = references.shape[-2:]
    rows, columns = ((size - search.patch) // search.stride + 1 for size in (height, width))
    distances = references.new_empty(side * side, len(references), len(surrounded), rows, columns)
    for shift in range(side * side):
        down, right = divmod(shift, side)
        moved = surrounded[:, top + down : top + down + height, right : right + width]
        differences = (references.unsqueeze(1) - moved).square_()
        distances[shift] = _patch_means(differences, search)
    return distances.permute(1, 3, 4, 2, 0)


def _patch_means(images: torch.Tensor, search: Search) -> torch.Tensor:
    """Return the mean of each patch, (…, rows, columns): what pooling gives, in a quarter of the
    time on a CPU.
    """
    side = math.gcd(search.patch, search.stride)
    for axis in (-2, -1):
        # Sums of blocks first, which neighbouring patches have in common.
        images = _window_sums(
            _window_sums(images, axis, side, side),
            axis,
            search.patch // side,
            search.stride // side,
        )
    return images.div_(search.patch**2)


def _window_sums(images: torch.Tensor, axis: int, size: int, step: int) -> torch.Tensor:
    return functools.reduce(torch.add, images.unfold(axis, size, step).unbind(-1))


def _most_similar(
    distances: torch.Tensor, search: Search
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return frame, and rows and columns from the reference, of each group's patches, (frames,
    rows, columns, K).
    """
    n_frames, window = distances.shape[-2:]
    side = 2 * search.radius + 1
    if search.per_frame:
        nearest = distances.contiguous().topk(min(search.count, window), largest=False).indices
        frame = torch.arange(n_frames, device=distances.device).unsqueeze(1).expand_as(nearest)
        frame, shift = frame.flatten(3), nearest.flatten(3)
    else:
        candidates = distances.flatten(3)
        nearest = candidates.topk(
            min(search.count, candidates.shape[-1]), largest=False, sorted=False
        ).indices
        frame, shift = nearest // window, nearest % window
    return frame, shift // side - search.radius, shift % side - search.radius
