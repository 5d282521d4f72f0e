"""``sci-stream bench frontier``: snapshots a second against PSNR, for numbers of steps, cold and
warm.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import make_prior
from sci_stream.errors import FileFormatError
from sci_stream.ports import Solver
from sci_stream.recon.backend.device import describe_device, pick_device
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import SolverSettings
from sci_stream_lab.bench.datasets import Footage, psnr_of
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.bench.result import (
    BenchResult,
    Progress,
    ResultColumn,
    ResultTable,
    figure_file,
    mean,
)

STEPS = (4, 6, 8, 10, 12, 15)
"""Numbers of steps by default."""


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A solver with a number of steps: its rate, and its PSNR over all snapshots.

    ``loss_db`` is the most that a snapshot loses against the same solver with fewer steps;
    ``gain_db`` is the mean over the fewest steps.
    """

    solver: str
    start: str
    steps: int
    per_s: float
    psnr_db: float
    lowest_db: float
    gain_db: float
    loss_db: float


@dataclass(frozen=True)
class FrontierResult(BenchResult):
    """Every point, by solver, start and steps."""

    points: tuple[FrontierPoint, ...] = ()


_COLUMNS = (
    ResultColumn("solver", "solver", left=True),
    ResultColumn("start", "start", left=True),
    ResultColumn("steps", "steps"),
    ResultColumn("per_s", "snapshots/s\nper core", ".2f", "1/s"),
    ResultColumn("psnr_db", "PSNR\ndB", ".2f", "dB"),
    ResultColumn("lowest_db", "lowest\ndB", ".2f", "dB"),
    ResultColumn("gain_db", "over the\nfewest, dB", "+.2f", "dB"),
    ResultColumn("loss_db", "largest\nloss, dB", ".2f", "dB"),
)


def bench(
    footage: Sequence[Footage],
    sections: Iterable[ReconstructSection],
    device_name: str,
    progress: Progress,
    *,
    steps: Sequence[int] = STEPS,
) -> FrontierResult:
    """Measure each solver, cold and warm, with each number of steps.

    The first snapshot of a sequence has none before it and does not count. The time is that of a
    processor core; on a GPU, that of the solve.

    Raises
    ------
    FileFormatError
        If no sequence has two snapshots.
    """
    series = [item for item in footage if len(item.snapshots) > 1]
    if not series:
        raise FileFormatError(
            "Nothing to measure",
            expected="a sequence of two snapshots or more",
            got=f"{len(footage)} sequences",
        )
    device = pick_device(device_name)
    points = list[FrontierPoint]()
    for section in sections:
        solver, settings = make_prior(section, device)
        for start in ("cold", "warm"):
            of_start = dataclasses.replace(settings, warm_start=start == "warm")
            points += _points(
                series, solver, of_start, device, steps=sorted(steps), progress=progress
            )
    title = f"{len(series)} sequences on {describe_device(device)}"
    return FrontierResult(
        name="frontier",
        environment=environment(describe_device(device)),
        tables=(ResultTable(title, _COLUMNS, tuple(points)),),
        settings={"sequences": ", ".join(item.name for item in series)},
        points=tuple(points),
    )


def _points(
    series: Sequence[Footage],
    solver: Solver,
    settings: SolverSettings,
    device: torch.device,
    *,
    steps: Sequence[int],
    progress: Progress,
) -> list[FrontierPoint]:
    points = list[FrontierPoint]()
    best_db: list[float] = []
    for count in steps:
        solved = [_solved(item, solver, settings, device, count) for item in series]
        psnr_db = [db for values, _ in solved for db in values]
        solve_s = mean(seconds for _, seconds in solved)
        best_db = best_db or psnr_db
        point = FrontierPoint(
            solver=solver.name,
            start="warm" if settings.warm_start else "cold",
            steps=count,
            per_s=1 / solve_s,
            psnr_db=mean(psnr_db),
            lowest_db=min(psnr_db),
            gain_db=mean(psnr_db) - (points[0].psnr_db if points else mean(psnr_db)),
            loss_db=max(best - db for best, db in zip(best_db, psnr_db, strict=True)),
        )
        best_db = [max(pair) for pair in zip(best_db, psnr_db, strict=True)]
        points.append(point)
        progress(
            f"{point.solver}, {point.start}, {count} steps: {point.psnr_db:.2f} dB, "
            f"{point.per_s:.2f}/s"
        )
    return points


def _solved(
    footage: Footage, solver: Solver, settings: SolverSettings, device: torch.device, count: int
) -> tuple[list[float], float]:
    """Return the PSNR of each snapshot after the first, and the seconds of a solve."""
    settings = dataclasses.replace(settings, iterations=count, min_iterations=min(4, count))
    engine = Engine(footage.calibration, solver, device, settings)
    engine.warm_up()
    psnr_db = []
    seconds = []
    for snapshot in footage.snapshots:
        before_s = time.process_time()
        _, report = engine.reconstruct(snapshot)
        used_s = time.process_time() - before_s
        seconds.append(report.solve_ns / 1e9 if device.type == "cuda" else used_s)
        psnr_db.append(psnr_of(report))
    return psnr_db[1:], mean(seconds[1:])


def plot(result: FrontierResult, path: Path) -> None:
    """Draw PSNR over the rate, a line for each solver and start, a number at each point."""
    with figure_file(path, (7, 5)) as figure:
        axes = figure.subplots()
        for name, start in dict.fromkeys((point.solver, point.start) for point in result.points):
            line = [
                point for point in result.points if (point.solver, point.start) == (name, start)
            ]
            rates = [point.per_s for point in line]
            axes.plot(rates, [point.psnr_db for point in line], "o-", label=f"{name}, {start}")
            for point in line:
                axes.annotate(str(point.steps), (point.per_s, point.psnr_db), fontsize="small")
        axes.set(xlabel="snapshots/s per core", ylabel="PSNR, dB", xscale="log")
        axes.legend(fontsize="small")
