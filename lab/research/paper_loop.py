"""The paper's loop, GAP from ȳ, on a crop of a published set, with one prior after the other.

    python lab/research/paper_loop.py traffic48_cacti.mat wnnm:50,25x20:frames wnnm:12,6x20

A stage is a prior, its levels of σ of 255, and the iterations at each; ``:frames``: each frame by
itself.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from sci_stream.optics.calibration import Calibration
from sci_stream.recon.metrics import psnr
from sci_stream_lab.bench import datasets
from sci_stream_lab.bench.datasets import Footage, truth_of
from sci_stream_lab.paper.methods import PaperMethod, Stage


def parse(text: str) -> Stage:
    """Return the stage that a text such as ``wnnm:50,25x20:frames`` describes."""
    prior, course, *how = text.split(":")
    levels, each = course.split("x")
    return Stage(
        prior, tuple(map(float, levels.split(","))), int(each), by_frames=how == ["frames"]
    )


def crop(footage: Footage, size: int, at: int) -> Footage:
    """Return a square of the first shot."""
    first, square = footage.snapshots[0], (slice(None), slice(at, at + size), slice(at, at + size))
    truth, phi = truth_of(first)[square].copy(), footage.calibration.phi[square].copy()
    calibration = Calibration(phi=phi)
    return Footage(
        footage.name, calibration, (calibration.snapshot("crop", 0, (phi * truth).sum(0), truth),)
    )


def main() -> None:
    """Solve and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("stages", nargs="+", type=parse)
    parser.add_argument("--crop", type=int, default=96)
    parser.add_argument("--at", type=int, default=64)
    parser.add_argument("--weights", type=Path, help="FFDNet checkpoint")
    args = parser.parse_args()
    torch.set_num_threads(1)
    published = datasets.published(args.file.parent, print)
    footage = crop(
        next(each for each in published if each.name == args.file.stem), args.crop, args.at
    )
    truth = torch.from_numpy(np.asarray(footage.snapshots[0].truth))
    method = PaperMethod("stages", "", tuple(args.stages))
    solve, iterations = method.prepare(footage.calibration, torch.device("cpu"), args.weights)
    reached: list[float] = []
    began_s = time.process_time()
    solve(footage.snapshots[0], lambda video: reached.append(psnr(video, truth)))
    ends = np.cumsum([len(stage.sigmas) for stage in args.stages])
    print(f"{iterations} iterations, {time.process_time() - began_s:.0f} s of processor time")
    print("after each stage:", ", ".join(f"{reached[end - 1]:.2f} dB" for end in ends))


if __name__ == "__main__":
    main()
