"""Time to the published loop's quality: the instrument and a plain implementation, measured in one
run.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sci_stream.errors import ConfigError
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Solver
from sci_stream.recon.denoisers.weights import FfdnetWeights
from sci_stream.recon.engine import Engine
from sci_stream.recon.metrics import psnr
from sci_stream.recon.settings import SolverSettings
from sci_stream_lab.bench.datasets import Footage, filmed, truth_of
from sci_stream_lab.bench.result import Progress, mean
from sci_stream_lab.paper.published_code import PUBLISHED_SIGMAS, published_gap

LADDER = (4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 50, 60)
"""Iteration counts tried in turn until the result is as good."""


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """The published loop: figures after each of its iterations, means over the shots.

    ``start`` is ``"published"``, or ``"still image"`` where that ended worse than it.
    """

    start: str
    iterations: int
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    psnr_db: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Solves:
    """Whole solves of one implementation with a number of iterations, all copies included; means
    over the shots.
    """

    implementation: str
    iterations: int
    seconds: float
    cpu_seconds: float
    psnr_db: float


@dataclass(frozen=True, slots=True)
class TimeToQuality:
    """Solves with more and more iterations, of which the last reached the baseline's last PSNR if
    any did.

    ``ratio`` is its seconds over the baseline's, or None; ``cpu_ratio`` that of processor time,
    which other work on the machine disturbs less. Processor time means little on a GPU.
    """

    shots: int
    baseline: PublishedRun
    ours: tuple[Solves, ...]
    ratio: float | None
    cpu_ratio: float | None

    @property
    def rows(self) -> tuple[Solves, ...]:
        """The baseline's end result, and every solve."""
        baseline = self.baseline
        ends = (baseline.seconds[-1], baseline.cpu_seconds[-1], baseline.psnr_db[-1])
        return (
            Solves("published loop, frame by frame, float32", baseline.iterations, *ends),
            *self.ours,
        )


def read_shots(path: Path, most: int) -> Footage:
    """Read the first shots of a published file.

    Raises
    ------
    FileFormatError
        If it is not a published file, or has no ground truth.
    ConfigError
        If its frames are of odd size, for which the published network is not defined.
    """
    footage = filmed(path.stem, "replay", path=path)
    height, width = footage.calibration.shape
    if height % 2 or width % 2:
        raise ConfigError(
            f"Odd frame size in {path}",
            expected="an even number of rows and columns, as the published network needs",
            got=f"{height}×{width} pixels",
        )
    return dataclasses.replace(footage, snapshots=footage.snapshots[:most])


def time_to_reach(
    footage: Footage,
    weights: FfdnetWeights,
    prior: Solver,
    settings: SolverSettings,
    *,
    device: torch.device,
    progress: Progress,
) -> TimeToQuality:
    """Run the published loop, then the instrument with more and more iterations until it is as good
    on average.

    ``weights`` and ``prior`` are the same network, for the published loop and as the instrument's
    denoiser on ``device``; ``settings`` are the instrument's, except for the number of iterations.
    """
    start = "published"
    seconds, cpu_seconds, scores = _baselines(footage, weights, device, progress)
    if not scores[-1] > mean(_still_db(shot, footage.calibration) for shot in footage.snapshots):
        start = "still image"
        progress("worse than the still image y/Σφ: starting again from it")
        seconds, cpu_seconds, scores = _baselines(
            footage, weights, device, progress, published_start=False
        )
    engine = Engine(footage.calibration, prior, device, settings)
    engine.warm_up()
    tried = list[Solves]()
    ratio = cpu_ratio = None
    for iterations in LADDER:
        ours = _instrument(engine, footage.snapshots, iterations)
        tried.append(ours)
        progress(
            f"instrument, {iterations} iterations: {ours.psnr_db:.2f} dB in {ours.seconds:.2f} s"
        )
        if ours.psnr_db >= scores[-1]:
            ratio = ours.seconds / float(seconds[-1])
            cpu_ratio = ours.cpu_seconds / float(cpu_seconds[-1])
            break
    curves = (tuple(map(float, curve)) for curve in (seconds, cpu_seconds, scores))
    baseline = PublishedRun(start, len(PUBLISHED_SIGMAS), *curves)
    return TimeToQuality(len(footage.snapshots), baseline, tuple(tried), ratio, cpu_ratio)


def _still_db(shot: Snapshot, calibration: Calibration) -> float:
    """Return the PSNR of the still image y/Σφ in every frame."""
    phi_sum = np.maximum(calibration.phi.sum(0), np.finfo(np.float32).tiny)
    still = torch.from_numpy(calibration.measurement(shot.counts) / phi_sum)
    truth = torch.from_numpy(truth_of(shot))
    return psnr(still.expand_as(truth).contiguous(), truth)


def _baselines(
    footage: Footage,
    weights: FfdnetWeights,
    device: torch.device,
    progress: Progress,
    *,
    published_start: bool = True,
) -> npt.NDArray[np.float64]:
    """Return `_baseline` averaged over the shots, (3, 40)."""
    curves = []
    for number, shot in enumerate(footage.snapshots, start=1):
        curves.append(
            _baseline(shot, footage.calibration, weights, device, published_start=published_start)
        )
        spent_s, _, score_db = (column[-1] for column in curves[-1])
        progress(
            f"published loop, shot {number}/{len(footage.snapshots)}: {score_db:.2f} dB in "
            f"{spent_s:.1f} s"
        )
    mean: npt.NDArray[np.float64] = np.mean(np.array(curves), axis=0)
    return mean


@torch.inference_mode()
def _baseline(
    shot: Snapshot,
    calibration: Calibration,
    weights: FfdnetWeights,
    device: torch.device,
    *,
    published_start: bool,
) -> tuple[list[float], ...]:
    """Return seconds, processor seconds and PSNR after each iteration of the published loop,
    excluding the scoring.
    """
    y = torch.from_numpy(calibration.measurement(shot.counts)).to(device)
    phi = torch.from_numpy(calibration.phi.copy()).to(device)
    truth = torch.from_numpy(truth_of(shot))
    on_device = dataclasses.replace(
        weights,
        kernels=tuple(kernel.to(device) for kernel in weights.kernels),
        biases=tuple(bias.to(device) for bias in weights.biases),
    )
    seconds, cpu_seconds, scores = [], [], []
    spent = cpu_spent = 0.0
    iterates = published_gap(y, phi, on_device, published_start=published_start)
    for _ in PUBLISHED_SIGMAS:
        began, cpu_began = time.perf_counter(), time.process_time()
        v = next(iterates).cpu()  # waits for the GPU
        spent += time.perf_counter() - began
        cpu_spent += time.process_time() - cpu_began
        seconds.append(spent)
        cpu_seconds.append(cpu_spent)
        scores.append(psnr(v, truth))
    return seconds, cpu_seconds, scores


def _instrument(engine: Engine, shots: Sequence[Snapshot], iterations: int) -> Solves:
    """Return the mean time and PSNR of whole solves with this many iterations."""
    seconds, cpu_seconds, scores = [], [], []
    for shot in shots:
        unscored = dataclasses.replace(
            shot, truth=None
        )  # the time to compute PSNR is no part of a solve's
        began, cpu_began = time.perf_counter(), time.process_time()
        video, _ = engine.reconstruct(unscored, iterations)
        seconds.append(time.perf_counter() - began)
        cpu_seconds.append(time.process_time() - cpu_began)
        scores.append(
            psnr(torch.from_numpy(video.astype(np.float32)), torch.from_numpy(truth_of(shot)))
        )
    return Solves("sci_stream", iterations, mean(seconds), mean(cpu_seconds), mean(scores))
