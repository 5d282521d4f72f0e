"""The paper's loop, GAP from ȳ, on a crop of a published set, with one prior after the other.

    python lab/research/paper_loop.py traffic48_cacti.mat wnnm:50,25x20:frames wnnm:12,6x20

A stage is a prior, its levels of σ of 255, and the iterations at each; ``:frames``: each frame by itself.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from sci_stream.model import Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.metrics import psnr
from sci_stream_lab.bench import datasets
from sci_stream_lab.bench.datasets import Footage, truth_of
from sci_stream_lab.bench.quality.paper_table import Stage, stage_by_stage


def parse(text: str) -> Stage:
    """Return the stage that a text such as ``wnnm:50,25x20:frames`` describes."""
    prior, course, *how = text.split(":")
    levels, each = course.split("x")
    return Stage(prior, tuple(map(float, levels.split(","))), int(each), by_frames=how == ["frames"])


def crop(footage: Footage, size: int, at: int) -> Footage:
    """Return a square of the first shot."""
    first, square = footage.snapshots[0], (slice(None), slice(at, at + size), slice(at, at + size))
    truth, phi = truth_of(first)[square].copy(), footage.calibration.phi[square].copy()
    calibration = Calibration(phi=phi)
    shot = Snapshot(SnapshotId("crop", 0, 0), (phi * truth).sum(0), calibration.hash, len(phi), 0, truth=truth)
    return Footage(footage.name, calibration, (shot,))


def main() -> None:
    """Solve and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("stages", nargs="+", type=parse)
    parser.add_argument("--crop", type=int, default=96)
    parser.add_argument("--at", type=int, default=64)
    parser.add_argument("--weights", type=Path, help="FFDNet checkpoint")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = next(each for each in datasets.published(given.file.parent, print) if each.name == given.file.stem)
    footage = crop(found, given.crop, given.at)
    truth = torch.from_numpy(np.asarray(footage.snapshots[0].truth))
    solve, iterations = stage_by_stage(footage, given.stages, torch.device("cpu"), given.weights)
    reached: list[float] = []
    began_s = time.process_time()
    solve(footage.snapshots[0], lambda video: reached.append(psnr(video, truth)))
    ends = np.cumsum([len(stage.sigmas) for stage in given.stages])
    print(f"{iterations} iterations, {time.process_time() - began_s:.0f} s of processor time")
    print("after each stage:", ", ".join(f"{reached[end - 1]:.2f} dB" for end in ends))


if __name__ == "__main__":
    main()
