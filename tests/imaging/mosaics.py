"""Bayer mosaics of colour images."""

from __future__ import annotations

import numpy as np

from sci_stream.model import BayerPhase


def mosaic_of(rgb: np.ndarray, phase: BayerPhase) -> np.ndarray:
    """Sample the colour of each pixel, by the definition of `BayerPhase`."""
    out = np.empty(rgb.shape[:-1], np.float32)
    for index, colour in enumerate(phase):
        row, column = divmod(index, 2)
        out[..., row::2, column::2] = rgb[..., row::2, column::2, "RGB".index(colour)]
    return out
