"""A rig with recording on at the rate that it sustains: the sentence that instruments are compared
by.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from sci_stream_lab.bench.pipeline.supervised_rig import RigTables, small_rig, supervised
from sci_stream_lab.bench.speed.solve_times import Size

# Of the rate of solves alone: acquisition, recording and the copies share the machine.
_SUSTAINED = 0.7
_END_S = 300.0


@dataclass(frozen=True, slots=True)
class LiveRun:
    """Snapshots of a run with recording on; latencies from camera to sink, ms."""

    size: str
    denoiser: str
    iterations: int
    snapshots: int
    snapshots_per_s: float
    frames_per_s: float
    p50_ms: float
    p99_ms: float
    lost: int

    def sentence(self, device: str) -> str:
        """Return the result in one sentence."""
        loss = "none lost" if self.lost == 0 else f"{self.lost} LOST"
        return (
            f"{self.size}, {self.denoiser}, {self.iterations} iterations on {device}, recording "
            "on: "
            f"{self.snapshots_per_s:.3g} snapshots/s, {self.frames_per_s:.3g} frames/s, "
            f"{self.p50_ms:.0f} ms from "
            f"camera to recorded video (p99 {self.p99_ms:.0f} ms), {loss} of {self.snapshots}"
        )


def run_live(
    size: Size, denoiser: str, iterations: int, device: str, *, solves_per_s: float, snapshots: int
) -> LiveRun:
    """Run a rig with a simulated camera at a fraction of the rate of solves, every iteration spent
    on every snapshot.

    Raises
    ------
    EnvironmentFault
        If the rig does not end in time.
    """
    rate_hz = _SUSTAINED * solves_per_s
    bayer = "RGGB" if size.bayer else "none"
    camera = {
        "width_px": size.width,
        "height_px": size.height,
        "n_frames": size.n_frames,
        "bayer": bayer,
    }
    solver = {"solver": denoiser, "iterations": iterations, "min_iterations": min(4, iterations)}
    reconstruct = {
        **solver,
        "devices": [device],
        "adapt_budget": False,
        "threads": torch.get_num_threads(),
    }
    with tempfile.TemporaryDirectory(prefix="sci-stream-live-") as folder:
        tables: RigTables = {
            "reconstruct": reconstruct,
            "policy": {"queue_snapshots": 64, "max_wait_s": 3600.0},
        }
        path = small_rig(
            Path(folder), rate_hz=rate_hz, size_px=size.width, tables=tables, camera=camera
        )
        with supervised(path, snapshots=snapshots) as rig:
            summary = rig.join(_END_S + 2 * snapshots / rate_hz)
    total, ledger = summary.latency_ms["total"], summary.ledger
    lost = ledger.lost + ledger.n_dropped + ledger.raw_only + ledger.camera_missed
    frames_per_s = size.n_frames * rate_hz
    figures = (snapshots, rate_hz, frames_per_s, total["p50"], total["p99"], lost)
    return LiveRun(str(size), denoiser, iterations, *figures)
