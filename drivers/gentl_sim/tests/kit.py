"""Options of the driver `harvesters` for the simulated camera, and the frames to expect."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sci_stream_drivers.genicam.formats import FORMATS


def sim_options(
    path: Path, *more: list[Any], form: str = "Mono12", size: int = 64, **changed: Any
) -> dict[str, Any]:
    """Return options for a simulated camera that shows a moving ramp at 400 Hz; ``more`` features
    come last.
    """
    features = [
        ["Width", size], ["Height", size], ["PixelFormat", form], ["TestPattern",
        "GreyDiagonalRampMoving"],
        ["ExposureTime", 100.0], ["AcquisitionFrameRate", 400.0], *more,
    ]  # fmt: skip
    return {
        "cti": [str(path)], "selector": {"serial": "SIM0001"}, "user_set": "Default",
        "buffers": 256,
        "features": features, **changed,
    }  # fmt: skip


def ramp(index: int, form: str, size: int) -> npt.NDArray[np.uint16]:
    """Return exposure ``index`` of the moving ramp in a pixel format: x + 3y + 17·index, in 12
    bits.
    """
    sample = _still_ramp(size) + np.uint16(17 * index & 0xFFF) & np.uint16(0xFFF)
    depth = FORMATS[form].bit_depth
    return sample >> 12 - depth if depth <= 12 else sample << depth - 12


@functools.cache
def _still_ramp(size: int) -> npt.NDArray[np.uint16]:
    y, x = np.mgrid[:size, :size]
    return (x + 3 * y).astype(np.uint16)
