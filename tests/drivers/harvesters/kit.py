"""The producer of the genicam wheel, and options for its cameras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def wheel_producer() -> Path:
    """Return the producer in the installed genicam wheel; skip if it has none."""
    genicam = pytest.importorskip(
        "genicam", reason="genicam is not installed: pip install '.[genicam]'"
    )
    pytest.importorskip(
        "harvesters", reason="harvesters is not installed: pip install '.[genicam]'"
    )
    path = Path(genicam.__file__).parent / "viky.cti"
    if not path.exists():
        pytest.skip("the installed genicam wheel carries no producer (viky.cti): other versions do")
    return path


def wheel_options(path: Path, **changed: Any) -> dict[str, Any]:
    """Return options for one of that producer's three cameras: grey, at full speed."""
    features = [["PixelFormat", "Mono8"], ["AcquisitionFrameRate", 200.0]]
    return {"cti": [str(path)], "selector": {"serial": "1"}, "features": features, **changed}
