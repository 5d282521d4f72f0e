"""The scale of y: the value that a white frame adds through an open mask."""

from __future__ import annotations

import numpy as np

from sci_stream.errors import InputError
from sci_stream.model import Array
from sci_stream.optics.white import brightness_percentile, fit_white

# Mean brightness, 99.5th percentile, at which floating-point y has a known scale: that of a scene
# of at least a quarter of white, with room for noise above it. Otherwise the percentile itself is
# white, as for counts.
_KNOWN_SCALE = (0.25, 1.25)


def estimated_white(y: Array, phi: Array, truth: Array | None, masks_max: float) -> float:
    """Return the value of y that becomes 1.0 in the video.

    Parameters
    ----------
    y
        (N, H, W), the snapshots.
    phi
        (B, H, W), the masks, 0–1; 0 at pixels that do not count.
    truth
        (n, B, H, W), the true frames of the first snapshots, to which the scale is fitted.
    masks_max
        Maximum of the masks as they were given.

    Raises
    ------
    InputError
        If y or the true frames are dark, or no pixel is valid.
    """
    if not phi.any():
        raise InputError(
            "No pixel is valid", expected="pixels with finite values in y and in every mask"
        )
    if truth is not None:
        white, _ = fit_white(y[: len(truth)], phi, truth)
    else:
        white = brightness_percentile(y, phi)
        if np.issubdtype(y.dtype, np.floating):
            low, high = _KNOWN_SCALE
            known = (scale for scale in (masks_max, 1.0) if low <= white / scale <= high)
            white = next(known, white)
    if not white > 0:
        dark = "y" if truth is None or truth.any() else "The truth"
        raise InputError(
            f"{dark} is dark: the scale of y cannot be determined",
            expected="light",
            got=f"y from {y.min():.4g} to {y.max():.4g}",
            hint="y is negative: pass it as the camera gave it."
            if y.max() < 0
            else "Pass white, the value that a white frame adds to y through an open mask.",
        )
    return white
