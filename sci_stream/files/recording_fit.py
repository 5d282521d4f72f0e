"""Does an array fit the series it is to be recorded with? Checked before anything of it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sci_stream.errors import InputError
from sci_stream.model import Array, SeriesInfo


def fit_counts(counts: Array, info: SeriesInfo, dtype: np.dtype[Any] | None, path: Path) -> Array:
    """Return raw counts as they are stored in ``path``, contiguous and in ``dtype`` (None: as they are).

    Raises
    ------
    InputError
        If they are not of the series' size, or a value would be changed.
    """
    shape = (info.height_px, info.width_px)
    if counts.shape != shape:
        raise InputError("A raw snapshot does not fit the series", expected=f"{shape} pixels", got=counts.shape)
    if dtype is None or counts.dtype == dtype:
        return np.ascontiguousarray(counts)
    with np.errstate(invalid="ignore"):
        fitted = counts.astype(dtype)
    if not np.array_equal(fitted, counts):
        raise InputError(
            f"Raw counts of {counts.dtype} do not fit the recording {path} without loss",
            expected=f"values of {dtype}",
            got=f"{counts.min()} to {counts.max()}",
            hint="The camera's bit depth and pixel format must describe what it delivers.",
        )
    return fitted


def fit_video(video: Array, info: SeriesInfo) -> Array:
    """Return a video as it is stored: (B, H, W) float16, contiguous.

    Raises
    ------
    InputError
        If it is not of the series' size.
    """
    shape = (info.n_frames, info.height_px, info.width_px)
    if video.shape != shape:
        raise InputError("A video does not fit the series", expected=f"(B, H, W) = {shape}", got=video.shape)
    return np.ascontiguousarray(video, dtype=np.float16)
