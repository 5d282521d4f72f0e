"""Split a Bayer mosaic into four planes of a quarter of the pixels each, and merge them.

Every colour of a mosaic is a complete SCI measurement with its own part of the masks. Splitting is slicing: the plane
at position (i, j) of the 2×2 cell contains the pixels ``[i::2, j::2]``. Planes come in reading order, (0, 0), (0, 1),
(1, 0), (1, 1), for every phase; `plane_colours` gives their colours.
"""

from __future__ import annotations

from typing import overload

import numpy as np
import torch

from sci_stream.model import Array, BayerPhase

_CELL = ((0, 0), (0, 1), (1, 0), (1, 1))

_COLOURS: dict[BayerPhase, tuple[str, str, str, str]] = {
    BayerPhase.RGGB: ("R", "G1", "G2", "B"),
    BayerPhase.GRBG: ("G1", "R", "B", "G2"),
    BayerPhase.GBRG: ("G2", "B", "R", "G1"),
    BayerPhase.BGGR: ("B", "G2", "G1", "R"),
}


def plane_colours(phase: BayerPhase) -> tuple[str, str, str, str]:
    """Return the colours of the four planes, in the order in which `split` returns them.

    ``G1`` is the green in the rows of red, ``G2`` the green in the rows of blue.

    >>> plane_colours(BayerPhase.GRBG)
    ('G1', 'R', 'B', 'G2')
    """
    return _COLOURS[phase]


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
        raise ValueError(f"a Bayer mosaic is (…, H, W) with even H and W, got shape {tuple(mosaic.shape)}")
    if isinstance(mosaic, torch.Tensor):
        return torch.stack([mosaic[..., i::2, j::2] for i, j in _CELL])
    return np.stack([mosaic[..., i::2, j::2] for i, j in _CELL])


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
    shape = (*batch, 2 * h, 2 * w)
    out: torch.Tensor | Array
    out = planes.new_empty(shape) if isinstance(planes, torch.Tensor) else np.empty(shape, planes.dtype)
    for k, (i, j) in enumerate(_CELL):
        out[..., i::2, j::2] = planes[k]
    return out
