"""Where and with what a figure was measured."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from sci_stream.nodes.runner import versions
from sci_stream.recon.transfers import Stopwatch


def circumstances(device: str = "") -> dict[str, Any]:
    """Return what has to stand beside every figure."""
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": device,
        "versions": versions(),
    }


@torch.inference_mode()
def matrix_rate(device: torch.device, dtype: torch.dtype, *, size: int | None = None, products: int = 5) -> float:
    """Return the FLOP/s of large matrix products in a type: what a device can do with what it is given.

    Parameters
    ----------
    size
        Rows of the square matrices of random numbers; None for 8192 on a GPU and 2048 on a CPU.
    products
        How many are timed, after one that prepares; the fastest counts.
    """
    n = size or (8192 if device.type == "cuda" else 2048)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, n, generator=generator).to(device, dtype) for _ in range(2))
    watch, best = Stopwatch(device), float("inf")
    torch.mm(a, b)
    for _ in range(products):
        watch.lap()
        torch.mm(a, b)
        watch.lap()
        best = min(best, watch.seconds())
    return 2.0 * n**3 / best
