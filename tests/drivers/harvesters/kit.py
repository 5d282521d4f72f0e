"""The producer of the genicam wheel, and options for the simulated camera of this project."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sci_stream_drivers.harvesters.formats import FORMATS


def wheel_producer() -> Path:
    """Return the producer in the installed genicam wheel; skip if it has none."""
    genicam = pytest.importorskip("genicam", reason="genicam is not installed: pip install '.[genicam]'")
    pytest.importorskip("harvesters", reason="harvesters is not installed: pip install '.[genicam]'")
    path = Path(genicam.__file__).parent / "viky.cti"
    if not path.exists():
        pytest.skip("the installed genicam wheel carries no producer (viky.cti): other versions do")
    return path


def wheel_options(path: Path, **changed: Any) -> dict[str, Any]:
    """Return options for one of that producer's three cameras: grey, at full speed."""
    features = [["PixelFormat", "Mono8"], ["AcquisitionFrameRate", 200.0]]
    return {"cti": [str(path)], "selector": {"serial": "1"}, "features": features, **changed}


def sim_options(path: Path, *more: list[Any], form: str = "Mono12", size: int = 64, **changed: Any) -> dict[str, Any]:
    """Return options for a simulated camera that shows a moving ramp at 400 Hz; ``more`` features come last."""
    features = [
        ["Width", size], ["Height", size], ["PixelFormat", form], ["TestPattern", "GreyDiagonalRampMoving"],
        ["ExposureTime", 100.0], ["AcquisitionFrameRate", 400.0], *more,
    ]  # fmt: skip
    return {
        "cti": [str(path)], "selector": {"serial": "SIM0001"}, "user_set": "Default", "buffers": 256,
        "features": features, **changed,
    }  # fmt: skip


def ramp(index: int, form: str, size: int) -> npt.NDArray[np.uint16]:
    """Return exposure ``index`` of the moving ramp in a pixel format: x + 3y + 17·index, in 12 bits."""
    sample = _still_ramp(size) + np.uint16(17 * index & 0xFFF) & np.uint16(0xFFF)
    depth = FORMATS[form].bit_depth
    return sample >> 12 - depth if depth <= 12 else sample << depth - 12


@functools.cache
def _still_ramp(size: int) -> npt.NDArray[np.uint16]:
    y, x = np.mgrid[:size, :size]
    return (x + 3 * y).astype(np.uint16)
