"""A reconstruct node for `bench scale` whose denoiser sleeps: its solve time does not depend on
free cores.

Run as ``python -m sci_stream_lab.bench.pipeline.scale_node RIG INDEX SECONDS``. It loads, writes
``loaded``, and joins the rig when it receives a line.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

import torch

from sci_stream.config import load_rig
from sci_stream.nodes.reconstruct.node import ReconstructNode
from sci_stream.nodes.reconstruct.solver_thread import SolverThread
from sci_stream.nodes.runtime.logs import set_up_logging
from sci_stream.nodes.runtime.process import stop_on_signals
from sci_stream.recon.algorithms.noise_level import Sigma
from sci_stream.recon.denoisers.registry import DENOISERS

SLEEPING = "sleeping"
"""Name of the denoiser, registered in these processes only."""


class SleepingDenoiser:
    """Return a copy of the input after a sleep, which needs no core."""

    name = SLEEPING
    recordable = True

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, x: torch.Tensor, sigma: Sigma) -> torch.Tensor:  # noqa: ARG002 - the port's signature
        """Sleep, then return a clone of ``x``."""
        time.sleep(self._seconds)
        return x.clone()


def register(seconds: float) -> None:
    """Register the denoiser under its name."""
    DENOISERS[SLEEPING] = dataclasses.replace(
        DENOISERS["identity"], make=lambda _device, _weights, _precision: SleepingDenoiser(seconds)
    )


def main(rig_path: Path, index: int, seconds: float) -> None:
    """Load, wait for the request to join, then work until asked to stop."""
    register(seconds)
    set_up_logging(f"reconstruct-{index}", verbose=False)
    rig = load_rig(rig_path, overrides={})
    with stop_on_signals() as stop:
        solver = SolverThread(rig.reconstruct, "cpu", rig.calibration)
        sys.stdout.write("loaded\n")
        sys.stdout.flush()
        if sys.stdin.readline():
            ReconstructNode(rig, solver, stop, index=index).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
