"""The trace that a compression as JPEG leaves in a measurement."""

from __future__ import annotations

import numpy as np

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.model import F64

# Blocks of raw frames show less, see `_blockiness`.
_JPEG = 0.15
_DCT = np.sqrt(np.where(np.arange(8) == 0, 1, 2) / 8)[:, None] * np.cos(
    np.pi * np.outer(np.arange(8), 2 * np.arange(8) + 1) / 16
)
_BANDS = [
    np.isin(np.add.outer(np.arange(8), np.arange(8)), range(low, high))
    for low, high in ((2, 4), (4, 7), (7, 11), (11, 15))
]


def jpeg_defect(y: F64, light: F64) -> Defect | None:
    """Return whether y was compressed as JPEG: many coefficients of its 8×8 blocks are near zero,
    of others few, and the masks are no cause of it.
    """
    if min(y.shape) < 32 or _blockiness(y) - max(_blockiness(light), 0.0) < _JPEG:
        return None
    text = "y was compressed as JPEG, which removes the code of the masks: use raw frames"
    return Defect("jpeg", text)


def _blockiness(image: F64) -> float:
    """Return how many more coefficients of 8×8 blocks are near zero than in displaced blocks."""
    aligned, *displaced = (_smallness(image[start:, start:]) for start in (0, 2, 4, 6))
    return float((np.mean(displaced, 0) - aligned).max())


def _smallness(y: F64) -> F64:
    """Return the median over the mean of the coefficients' sizes in 8×8 blocks,
    by frequency band.
    """
    h, w = (size // 8 * 8 for size in y.shape)
    blocks = y[:h, :w].reshape(h // 8, 8, w // 8, 8).transpose(0, 2, 1, 3)
    sizes = np.abs(_DCT @ blocks @ _DCT.T)
    bands = [sizes[..., band] for band in _BANDS]
    return np.array([np.median(band) / max(float(band.mean()), 1e-300) for band in bands])
