"""Pictures cut into tiles that overlap, and put together again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

# Share of a tile that overlaps the next one at least: the borders of tiles fade into each other.
_OVERLAP = 1 / 4

Place = tuple[Any, ...]
"""Index of a tile in (…, H, W)."""


def tiles(size: Sequence[int], tile: tuple[int, int]) -> list[Place]:
    """Return the places of tiles that cover a picture, row by row; it is no smaller than a tile."""
    rows, columns = (_parts(*pair) for pair in zip(size, tile, strict=True))
    return [(..., row, column) for row in rows for column in columns]


def _parts(length: int, tile: int) -> list[slice]:
    """Return the parts of a side, at equal distances."""
    step = max(1, math.floor(tile * (1 - _OVERLAP)))
    last = math.ceil((length - tile) / step)
    starts = (round(n * (length - tile) / max(1, last)) for n in range(last + 1))
    return [slice(start, start + tile) for start in starts]


def blended(videos: Iterable[Tensor], places: Sequence[Place], like: Tensor) -> Tensor:
    """Return the video, (…, H, W), of its tiles: where they overlap, a mean that fades."""
    if len(places) == 1:
        return next(iter(videos))
    total = torch.zeros_like(like)
    weight = torch.zeros_like(like)
    for video, place in zip(videos, places, strict=True):
        fade = torch.outer(*(_faded(side, like) for side in video.shape[-2:]))
        total[place] += video * fade
        weight[place] += fade
    return total / weight


def _faded(length: int, like: Tensor) -> Tensor:
    """Return weights along a side of a tile: 1 in the middle, nearly 0 at its ends."""
    from_end = torch.arange(1, length + 1, device=like.device)
    return torch.minimum(from_end, from_end.flip(0)).div(length * _OVERLAP).clamp_max(1.0)
