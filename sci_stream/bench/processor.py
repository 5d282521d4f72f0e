"""Processor time of several processes, as the kernel counts it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


class ProcessorMeter:
    """Processor time that processes have used since the camera started, s. It does not mind what else runs here."""

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
            # The name of the program, in parentheses, may hold spaces: count the fields behind it.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            readings[name] = (int(fields[11]) + int(fields[12])) / tick
        return readings
