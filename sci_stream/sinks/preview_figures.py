"""Histograms for the page: of what the sensor counted and of what is on the screen."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sci_stream.model import Array

BINS = 64
_STEP = 3
"""Every third pixel each way will do; an odd step meets every colour of a mosaic."""


def levels_histogram(rendered: npt.NDArray[np.uint8]) -> list[list[int]]:
    """Return how many pixels have which level, 64 bins over 0–255: a list for grey, or one each for R, G, B.

    Parameters
    ----------
    rendered
        (B, H, W) or (B, H, W, 3), as `display.render` returns it.
    """
    sample = rendered[:, ::_STEP, ::_STEP]
    channels = [sample] if sample.ndim == 3 else [sample[..., channel] for channel in range(3)]
    return [np.bincount((channel >> 2).ravel(), minlength=BINS).tolist() for channel in channels]


def counts_histogram(counts: Array, bit_depth: int | None) -> dict[str, Any]:
    """Return the histogram of a coded snapshot: ``{"bins": […64], "top_dn", "mean_dn", "max_dn"}``.

    Parameters
    ----------
    counts
        (H, W), DN.
    bit_depth
        Of the sensor; None to guess from the brightest pixel. For floating-point counts it is the brightest itself
        that the bins reach up to.
    """
    sample = np.nan_to_num(counts[::_STEP, ::_STEP])
    brightest = float(counts.max()) if counts.dtype.kind in "iu" else float(sample.max(initial=0.0))
    if counts.dtype.kind in "iu":
        depth = max(bit_depth or 8, int(brightest).bit_length())
        top = float((1 << depth) - 1)
    else:
        top = brightest or 1.0
    bins, _ = np.histogram(sample, bins=BINS, range=(0.0, top + 1e-6))
    return {"bins": bins.tolist(), "top_dn": top, "mean_dn": float(sample.mean()), "max_dn": brightest}
