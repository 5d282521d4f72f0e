"""The machine, device and versions with which a figure was measured,
and processor-time accounting.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from sci_stream.nodes.runtime.process import versions
from sci_stream.recon.backend.transfers import Stopwatch


@dataclass(frozen=True, slots=True)
class Environment:
    """What accompanies every figure: the machine, the device (empty if none computes) and versions
    by package.
    """

    machine: str
    device: str
    versions: dict[str, str]
    processor: str = ""


def environment(device: str = "") -> Environment:
    """Return the environment of this process."""
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return Environment(machine, device, versions(), _processor())


def _processor() -> str:
    """Return the processor's model as the kernel names it; empty where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )


@torch.inference_mode()
def matrix_rate(
    device: torch.device, dtype: torch.dtype, *, size: int | None = None, products: int = 5
) -> float:
    """Return the FLOP/s of large matrix products in a data type: the practical limit of a device.

    Parameters
    ----------
    size
        Rows of the square matrices of random numbers; None for 8192 on a GPU and 2048 on a CPU.
    products
        How many to time after a warm-up; the fastest counts.
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


class CpuTimeMeter:
    """Processor time of several processes since `start`, s.

    Other processes on the machine do not affect it.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._before: dict[str, float] = {}

    def start(self) -> None:
        """Take the first reading."""
        self._before = self._read()

    def used_s(self) -> dict[str, float]:
        """Return seconds by process."""
        return {name: now - self._before[name] for name, now in self._read().items()}

    def _read(self) -> dict[str, float]:
        tick = os.sysconf("SC_CLK_TCK")
        readings = {}
        for name, pid in self._pids.items():
            # The program name, in parentheses, may contain spaces: count fields after it.
            fields = (
                Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            )
            readings[name] = (int(fields[11]) + int(fields[12])) / tick
        return readings
