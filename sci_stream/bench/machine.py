"""Where and with what a figure was measured."""

from __future__ import annotations

import os
import platform
from typing import Any

from sci_stream.nodes.runner import versions


def circumstances(device: str = "") -> dict[str, Any]:
    """Return what has to stand beside every figure."""
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": device,
        "versions": versions(),
    }
