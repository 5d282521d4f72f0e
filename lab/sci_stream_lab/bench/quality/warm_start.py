"""``sci-stream bench warm``: gain of the warm start, and proof that it does no harm.

Every sequence is reconstructed three times at each number of iterations: from the still image ȳ,
from the cold start, and warm. The warm run is a chain as in a live series: each snapshot starts
from the previous one, solved with the same iterations, and a scene cut follows at its end. Cold
starts are also measured with the time that the warm ones took, prediction included.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import make_prior
from sci_stream.errors import FileFormatError
from sci_stream.model import Snapshot
from sci_stream.ports import Solver
from sci_stream.recon.backend.device import describe_device, pick_device
from sci_stream.recon.engine import Engine
from sci_stream.recon.initialization.initializer import InitialState, Past
from sci_stream.recon.measurement import Measurement
from sci_stream.recon.settings import SolverSettings
from sci_stream.reports import Start
from sci_stream_lab.bench.datasets import Footage, psnr_of
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.bench.result import (
    BenchResult,
    Progress,
    ResultColumn,
    ResultTable,
    figure_file,
    mean,
    solver_settings,
)

# A result within this distance of the reference, dB, counts as having reached it.
_AS_GOOD_DB = 0.1


@dataclass(frozen=True, slots=True)
class ShotComparison:
    """One shot with the same iterations from ȳ, cold and warm, and cold in the time of the warm
    solve.
    """

    still_db: float
    cold_db: float
    warm_db: float
    equal_time_db: float
    equal_time_iterations: int
    start: str
    start_s: float
    cold_start_s: float
    cold_s: float
    warm_s: float

    @property
    def gain_db(self) -> float:
        """Gain of the warm start over the cold one, dB."""
        return self.warm_db - self.cold_db


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A sequence at one number of iterations; means over the snapshots after the first.

    ``worst_gain_db`` is that of a snapshot, ``cut_gain_db`` that of the first after a cut,
    ``drift_db`` the gain over the last quarter minus that over the first. ``start_share`` is the
    part of the warm solves' time spent on finding the start, ``warm_share`` what of it the cold
    start does not take.
    """

    name: str
    shots: int
    iterations: int
    still_db: float
    cold_db: float
    warm_db: float
    gain_db: float
    gain_over_still_db: float
    worst_gain_db: float
    cut_gain_db: float
    drift_db: float
    equal_time_gain_db: float
    start_share: float
    warm_share: float
    starts: dict[str, int]
    per_shot: tuple[ShotComparison, ...]
    after_cut: ShotComparison

    @property
    def short_name(self) -> str:
        """The name, cut to fit the table."""
        return self.name[:18]

    @property
    def shares(self) -> str:
        """Time spent on the start, and on the warm one alone, per cent."""
        return f"{100 * self.start_share:.0f} ({100 * self.warm_share:.0f})"

    @property
    def warm_starts(self) -> int:
        """Number of snapshots that started warm."""
        return sum(
            count for start, count in self.starts.items() if start.startswith(Start.WARM.value)
        )


@dataclass(frozen=True, slots=True)
class SetComparison:
    """A sequence: ``reference_db`` of the cold reference, and the least iterations that come as
    near to it, by kind.
    """

    name: str
    shots: int
    reference_db: float | None
    reaches_reference: dict[str, int | None]
    runs: tuple[RunComparison, ...]


@dataclass(frozen=True)
class WarmResult(BenchResult):
    """Every sequence, and the iterations of the reference (0: none)."""

    sets: tuple[SetComparison, ...] = ()
    reference: int = 0


_COLUMNS = (
    ResultColumn("short_name", "set", left=True),
    ResultColumn("shots", "shots"),
    ResultColumn("iterations", "iter."),
    ResultColumn("still_db", "ȳ\ndB", ".2f", "dB"),
    ResultColumn("cold_db", "cold\ndB", ".2f", "dB"),
    ResultColumn("warm_db", "warm\ndB", ".2f", "dB"),
    ResultColumn("gain_db", "gain", "+.2f", "dB"),
    ResultColumn("worst_gain_db", "worst", "+.2f", "dB"),
    ResultColumn("cut_gain_db", "cut", "+.2f", "dB"),
    ResultColumn("drift_db", "drift", "+.2f", "dB"),
    ResultColumn("equal_time_gain_db", "equal\ntime", "+.2f", "dB"),
    ResultColumn("shares", "start %\n(own)"),
    ResultColumn("warm_starts", "warm"),
)


def bench(
    footage: Iterable[Footage],
    section: ReconstructSection,
    device_name: str,
    progress: Progress,
    *,
    iterations: tuple[int, ...] = (4, 8, 12),
    reference: int = 40,
) -> WarmResult:
    """Compare warm with cold starts.

    Parameters
    ----------
    footage
        Sequences; those of a single snapshot are skipped with a message.
    section
        Denoiser, weights and the rest, as in a rig.
    iterations
        Numbers of iterations to compare at.
    reference
        Cold iterations whose quality the others are measured by; 0 for no such reference.

    Raises
    ------
    FileFormatError
        If there is nothing to measure.
    """
    device = pick_device(device_name)
    prior, settings = make_prior(section, device)
    _, from_still = make_prior(section.model_copy(update={"linear_start": False}), device)
    comparison = _Comparison(prior, settings, from_still, device, iterations, reference, progress)
    sets = []
    for item in footage:
        if len(item.snapshots) < 2:
            progress(f"skipped: {item.name} has a single snapshot; a warm start needs two")
        else:
            sets.append(comparison.measure(item))
    if not sets:
        raise FileFormatError(
            "Nothing to measure",
            expected="--data: a folder with published .mat files of two shots or more, or "
            "--video: a video file",
            got="none",
        )
    title = f"{prior.name} on {describe_device(device)}: warm against cold starts"
    runs = tuple(run for row in sets for run in row.runs)
    return WarmResult(
        name="warm",
        environment=environment(describe_device(device)),
        tables=(ResultTable(title, _COLUMNS, runs, dense=True),),
        notes=tuple(
            _reference_note(row, reference) for row in sets if row.reference_db is not None
        ),
        settings=solver_settings(prior.name, section.weights, settings),
        sets=tuple(sets),
        reference=reference,
    )


def _reference_note(row: SetComparison, reference: int) -> str:
    reached = ", ".join(
        f"{kind} at {count or 'none of these'}" for kind, count in row.reaches_reference.items()
    )
    reference_text = f"{row.name}: {reference} cold iterations give {row.reference_db:.2f} dB"
    return f"{reference_text}; within {_AS_GOOD_DB} dB of it: {reached}"


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Prior, settings, iteration counts and reference of a comparison."""

    prior: Solver
    settings: SolverSettings
    from_still: SolverSettings
    device: torch.device
    iterations: tuple[int, ...]
    reference: int
    progress: Progress

    def measure(self, footage: Footage) -> SetComparison:
        """Return the figures of one sequence."""
        still = self._engine(footage, self.from_still, warm_start=False)
        cold, warm = (
            self._engine(footage, self.settings, warm_start=warm_start)
            for warm_start in (False, True)
        )
        cold.warm_up()
        runs = []
        for count in self.iterations:
            run = _run(footage, _Engines(still, cold, warm), count)
            runs.append(run)
            self.progress(
                f"{footage.name}, {count} iterations: ȳ {run.still_db:.2f} dB, "
                f"cold {run.cold_db:.2f}, warm {run.warm_db:.2f}, "
                f"worst {run.worst_gain_db:+.2f}, after the cut {run.cut_gain_db:+.2f}"
            )
        reference_db = None
        reaches = dict[str, int | None](cold=None, warm=None)
        if self.reference:
            budget = self.reference
            reference_db = mean(
                psnr_of(cold.reconstruct(shot, budget)[1]) for shot in footage.snapshots[1:]
            )
            self.progress(
                f"{footage.name}, {self.reference} iterations cold: {reference_db:.2f} dB"
            )
            enough_db = reference_db - _AS_GOOD_DB
            reaches["cold"] = min(
                (run.iterations for run in runs if run.cold_db >= enough_db), default=None
            )
            reaches["warm"] = min(
                (run.iterations for run in runs if run.warm_db >= enough_db), default=None
            )
        return SetComparison(
            footage.name, len(footage.snapshots), reference_db, reaches, tuple(runs)
        )

    def _engine(
        self, footage: Footage, settings: SolverSettings, *, warm_start: bool
    ) -> _TimedEngine:
        most = max(*self.iterations, self.reference, settings.iterations)
        settings = dataclasses.replace(
            settings, iterations=most, min_iterations=1, warm_start=warm_start
        )
        return _TimedEngine(footage.calibration, self.prior, self.device, settings)


class _TimedEngine(Engine):
    """Measures the start of each solve, ``start_s``, on a device that was idle."""

    start_s = 0.0

    def initialize(self, measurement: Measurement, past: Past | None = None) -> InitialState:
        began_s = time.perf_counter()
        start = super().initialize(measurement, past)
        self.start_s = time.perf_counter() - began_s
        return start


class _Engines(NamedTuple):
    """The engines that solve each snapshot: from ȳ, from the cold start, and warm."""

    still: _TimedEngine
    cold: _TimedEngine
    warm: _TimedEngine


def _run(footage: Footage, engines: _Engines, count: int) -> RunComparison:
    """Solve a sequence and the cut after it, from ȳ, cold, warm, and cold in the time of the warm
    solve.
    """
    engines.warm.forget()
    pairs = [_pair(snapshot, engines, count) for snapshot in (*footage.snapshots, footage.cut())]
    *shots, after_cut = pairs
    followed = shots[1:]
    gains = np.array([shot.gain_db for shot in followed])
    quarter = max(1, len(gains) // 4)
    solve_s = sum(shot.warm_s for shot in followed)
    warm_db = mean(shot.warm_db for shot in followed)
    still_db = mean(shot.still_db for shot in followed)
    return RunComparison(
        name=footage.name,
        shots=len(footage.snapshots),
        iterations=count,
        still_db=still_db,
        cold_db=mean(shot.cold_db for shot in followed),
        warm_db=warm_db,
        gain_db=float(gains.mean()),
        gain_over_still_db=warm_db - still_db,
        worst_gain_db=float(gains.min()),
        cut_gain_db=after_cut.gain_db,
        drift_db=float(gains[-quarter:].mean() - gains[:quarter].mean()),
        equal_time_gain_db=warm_db - mean(shot.equal_time_db for shot in followed),
        start_share=sum(shot.start_s for shot in followed) / solve_s,
        warm_share=sum(shot.start_s - shot.cold_start_s for shot in followed) / solve_s,
        starts=dict(Counter(shot.start for shot in pairs)),
        per_shot=tuple(shots),
        after_cut=after_cut,
    )


def _pair(snapshot: Snapshot, engines: _Engines, count: int) -> ShotComparison:
    still, cold, warm = engines
    _, still_report = still.reconstruct(snapshot, count)
    _, cold_report = cold.reconstruct(snapshot, count)
    cold_start_s = cold.start_s
    _, warm_report = warm.reconstruct(snapshot, count)
    warm_s = warm_report.solve_ns / 1e9
    equal_report = cold_report
    if warm_report.start is Start.WARM:
        _, equal_report = cold.reconstruct(
            snapshot, cold.costs.fitting(warm_s, range(1, 4 * count + 1), 1)
        )
    return ShotComparison(
        still_db=psnr_of(still_report),
        cold_db=psnr_of(cold_report),
        warm_db=psnr_of(warm_report),
        equal_time_db=psnr_of(equal_report),
        equal_time_iterations=equal_report.iterations,
        start=f"{warm_report.start.value}: {warm_report.start_reason}",
        start_s=warm.start_s,
        cold_start_s=cold_start_s,
        cold_s=cold_report.solve_ns / 1e9,
        warm_s=warm_s,
    )


def plot(result: WarmResult, path: Path) -> None:
    """Draw PSNR over the snapshots of every set, cold and warm, for each number of iterations."""
    with figure_file(path, (9, 3 * len(result.sets))) as figure:
        for axes, row in zip(
            np.atleast_1d(figure.subplots(len(result.sets), 1)), result.sets, strict=True
        ):
            for number, run in enumerate(row.runs):
                colour, count = f"C{number}", f"{run.iterations} iterations"
                axes.plot(
                    [shot.cold_db for shot in run.per_shot],
                    ":",
                    color=colour,
                    label=f"cold, {count}",
                )
                axes.plot(
                    [shot.warm_db for shot in run.per_shot],
                    "-",
                    color=colour,
                    label=f"warm, {count}",
                )
            if row.reference_db is not None:
                label = f"cold, {result.reference} iterations, mean"
                axes.axhline(row.reference_db, color="0.5", linewidth=0.8, label=label)
            axes.set(title=row.name, xlabel="snapshot", ylabel="PSNR, dB")
            axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
