"""The colour filter array of a Bayer sensor: its pixels by colour, sampling, and the four planes of
a mosaic.

Every colour of a mosaic is a complete SCI measurement with its own part of the masks. Splitting is
slicing: the plane at position (i, j) of the 2×2 cell contains the pixels ``[i::2, j::2]``. Planes
come in reading order, (0, 0), (0, 1), (1, 0), (1, 1), for every phase: plane k has the k-th colour
of `BayerPhase`.

Cameras and displays use this module too, so that it does not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import numpy as np

from sci_stream.model import Array, BayerPhase

if TYPE_CHECKING:
    import torch

_BLOCK_PX = 4
_PLANES = tuple((slice(i, None, 2), slice(j, None, 2)) for i in (0, 1) for j in (0, 1))


def colour_sites(bayer: BayerPhase) -> tuple[tuple[str, tuple[slice, slice]], ...]:
    """Return the colour of each plane, ``"R"``, ``"G"`` or ``"B"``, with the rows and columns of
    its pixels.
    """
    return tuple(zip(bayer.value, _PLANES, strict=True))


def blocks_size(height: int, width: int, bayer: BayerPhase | None) -> tuple[int, int]:
    """Return the size of an image of blocks of 4 × 4 pixels of one colour, as of a mosaic if
    ``bayer`` is given.
    """
    step = 1 if bayer is None else 2
    return -(-height // (step * _BLOCK_PX)) * step, -(-width // (step * _BLOCK_PX)) * step


def sample_colours(rgb: Array, bayer: BayerPhase) -> Array:
    """Return the mosaic that a sensor records of an image: (…, H, W, 3) RGB → (…, H, W), a new
    array.
    """
    mosaic = np.empty(rgb.shape[:-1], rgb.dtype)
    for colour, (rows, columns) in colour_sites(bayer):
        mosaic[..., rows, columns] = rgb[..., rows, columns, "RGB".index(colour)]
    return mosaic


@overload
def split(mosaic: torch.Tensor) -> torch.Tensor: ...
@overload
def split(mosaic: Array) -> Array: ...
def split(mosaic: torch.Tensor | Array) -> torch.Tensor | Array:
    """Split a mosaic into its four planes, (…, H, W) → (4, …, H/2, W/2).

    Parameters
    ----------
    mosaic
        (…, H, W) with even H and W, a torch tensor or a NumPy array of any dtype.

    Returns
    -------
    (4, …, H/2, W/2), of the same kind, contiguous, a copy.

    Raises
    ------
    ValueError
        If the array has fewer than two dimensions or an odd height or width.
    """
    if mosaic.ndim < 2 or mosaic.shape[-2] % 2 or mosaic.shape[-1] % 2:
        raise ValueError(
            f"a Bayer mosaic is (…, H, W) with even H and W, got shape {tuple(mosaic.shape)}"
        )
    *batch, height, width = mosaic.shape
    planes = _new(mosaic, (4, *batch, height // 2, width // 2))
    for plane, (rows, columns) in zip(planes, _PLANES, strict=True):
        plane[...] = mosaic[..., rows, columns]
    return planes


@overload
def merge(planes: torch.Tensor) -> torch.Tensor: ...
@overload
def merge(planes: Array) -> Array: ...
def merge(planes: torch.Tensor | Array) -> torch.Tensor | Array:
    """Merge four planes into a mosaic, (4, …, h, w) → (…, 2h, 2w); the inverse of `split`.

    Raises
    ------
    ValueError
        If the first of at least three dimensions is not 4.
    """
    if planes.ndim < 3 or planes.shape[0] != 4:
        raise ValueError(f"expected four planes (4, …, h, w), got shape {tuple(planes.shape)}")
    *batch, h, w = planes.shape[1:]
    mosaic = _new(planes, (*batch, 2 * h, 2 * w))
    for plane, (rows, columns) in zip(planes, _PLANES, strict=True):
        mosaic[..., rows, columns] = plane
    return mosaic


def _new(like: torch.Tensor | Array, shape: tuple[int, ...]) -> torch.Tensor | Array:
    return np.empty(shape, like.dtype) if isinstance(like, np.ndarray) else like.new_empty(shape)
