"""True frames in colour, as a camera shows them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sci_stream.model import Array, BayerPhase
from sci_stream.optics.bayer import sample_colours

# Frames first, frames before the colours of a pixel, and the order of MATLAB.
_ORDERS = ((0, 2, 3, 1), (0, 1, 2, 3), (3, 0, 1, 2))
# ITU-R BT.601 and BT.709, and the mean.
_GREY = ((0.299, 0.587, 0.114), (0.2126, 0.7152, 0.0722), (1 / 3, 1 / 3, 1 / 3))


def in_colour(frames: Array, size: tuple[int, ...]) -> Array | None:
    """Return frames of a size as (N, H, W, 3), from any order of the axes; None if they are not in
    colour.
    """
    if frames.ndim != 4:
        return None
    turned = (frames.transpose(order) for order in _ORDERS)
    return next((one for one in turned if one.shape[1:] == (*size, 3)), None)


def colour_views(rgb: Array, n_frames: int) -> Iterator[tuple[str, Array]]:
    """Yield frames (N, H, W, 3) as snapshots of ``n_frames`` may show them, and how.

    These are the snapshots of each colour, of a monochrome camera, and of one with colour filters.
    """
    moments = rgb.reshape(-1, n_frames, *rgb.shape[1:])
    yield "one snapshot of each colour", np.moveaxis(moments, -1, 1).reshape(-1, *rgb.shape[1:3])
    for weights in _GREY:
        yield "grey values", rgb @ np.array(weights, np.float32)
    for phase in BayerPhase:
        yield f"a {phase} mosaic", sample_colours(rgb, phase)
