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


def colour_views(
    frames: Array, n_frames: int, size: tuple[int, ...]
) -> Iterator[tuple[str, Array]]:
    """Yield frames of a size in colour as snapshots of ``n_frames`` may show them, and how; nothing
    for frames that are not in colour.

    These are the snapshots of each colour, of a monochrome camera, and of one with colour filters.
    """
    turned = [frames.transpose(order) for order in _ORDERS] if frames.ndim == 4 else []
    rgb = next((one for one in turned if one.shape[1:] == (*size, 3)), None)
    if rgb is None or len(rgb) % n_frames:
        return
    moments = rgb.reshape(-1, n_frames, *size, 3)
    yield "one snapshot of each colour", np.moveaxis(moments, -1, 1).reshape(-1, *size)
    for weights in _GREY:
        yield "grey values", rgb @ np.array(weights, np.float32)
    for phase in BayerPhase:
        yield f"a {phase} mosaic", sample_colours(rgb, phase)
