"""``sci-stream bench warm``: gain of the warm start, and proof that it does no harm.

Every sequence is reconstructed three times at each number of iterations: from the still image ȳ, from the cold start,
and warm. The warm run is a chain as in a live series: each snapshot starts from the previous one, solved with the same
iterations, and a scene cut follows at its end. Cold starts are also measured with the time that the warm ones took,
prediction included.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sci_stream.bench.datasets import Footage
from sci_stream.bench.environment import environment
from sci_stream.bench.plots import require_matplotlib
from sci_stream.config import ReconstructSection
from sci_stream.errors import FileFormatError
from sci_stream.model import Snapshot, SolveReport, Start
from sci_stream.nodes.reconstruct.solver_thread import make_prior
from sci_stream.ports import Denoiser
from sci_stream.recon.backend.device import describe_device, pick_device
from sci_stream.recon.engine import Budget, Engine, SolverSettings

_AS_GOOD_DB = 0.1
"""A result within this distance of the reference, dB, counts as having reached it."""

Say = Callable[[str], None]


def bench(
    footage: Iterable[Footage | str],
    section: ReconstructSection,
    device_name: str,
    say: Say,
    *,
    iterations: tuple[int, ...] = (4, 8, 12),
    reference: int = 40,
) -> dict[str, Any]:
    """Compare warm with cold starts.

    Parameters
    ----------
    footage
        Sequences; lines of text among them are passed on to ``say``.
    section
        Denoiser, weights and the rest, as in a rig.
    device_name
        Device to compute on.
    say
        Called with lines of progress.
    iterations
        Numbers of iterations to compare at.
    reference
        Cold iterations whose quality the others are measured by; 0 for no such reference.

    Returns
    -------
    ``{"sets": [{"name", "shots", "reference_db", "reaches_reference": {"cold", "warm"}, "runs": […]}], …}``, each run
    with ``iterations``, ``still_db``, ``cold_db``, ``warm_db``, ``gain_db`` and ``gain_over_still_db`` (means over the
    snapshots after the first), ``worst_gain_db`` (of a snapshot), ``cut_gain_db`` (the first after a cut),
    ``drift_db`` (gain over the last quarter minus that over the first), ``equal_time_gain_db``, ``start_share`` (of the
    warm solves' time), ``warm_share`` (of it, what it takes more than the cold start), ``starts`` and ``per_shot``.

    Raises
    ------
    FileFormatError
        If there is nothing to measure.
    """
    device = pick_device(device_name)
    prior, settings = make_prior(section, device)
    _, from_still = make_prior(section.model_copy(update={"linear_start": False}), device)
    comparison = _Comparison(prior, settings, from_still, device, iterations, reference, say)
    sets = []
    for item in footage:
        if isinstance(item, str):
            say(item)
        elif len(item.snapshots) < 2:
            say(f"skipped: {item.name} has a single snapshot; a warm start needs two")
        else:
            sets.append(comparison.measure(item))
    if not sets:
        raise FileFormatError(
            "Nothing to measure",
            expected="--data: a folder with published .mat files of two shots or more, or --video: a video file",
            got="none",
        )
    settings_used = {"denoiser": prior.name, "weights": str(section.weights or ""), **dataclasses.asdict(settings)}
    return {"sets": sets, "settings": settings_used, "reference": reference, **environment(describe_device(device))}


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Prior, settings, iteration counts and reference of a comparison."""

    prior: Denoiser
    settings: SolverSettings
    from_still: SolverSettings
    device: torch.device
    iterations: tuple[int, ...]
    reference: int
    say: Say

    def measure(self, footage: Footage) -> dict[str, Any]:
        """Return the figures of one sequence."""
        still = self._engine(footage, self.from_still, warm_start=False)
        cold, warm = (self._engine(footage, self.settings, warm_start=warm_start) for warm_start in (False, True))
        cold.warm_up()
        runs = []
        for count in self.iterations:
            run = _run(footage, _Engines(still, cold, warm), count)
            runs.append(run)
            self.say(
                f"{footage.name}, {count} iterations: ȳ {run['still_db']:.2f} dB, "
                f"cold {run['cold_db']:.2f}, warm {run['warm_db']:.2f}, "
                f"worst {run['worst_gain_db']:+.2f}, after the cut {run['cut_gain_db']:+.2f}"
            )
        reference_db = None
        reaches: dict[str, int | None] = {"cold": None, "warm": None}
        if self.reference:
            budget = Budget(self.reference)
            solved = [_psnr(cold.reconstruct(snapshot, budget)[1]) for snapshot in footage.snapshots[1:]]
            reference_db = float(np.mean(solved))
            self.say(f"{footage.name}, {self.reference} iterations cold: {reference_db:.2f} dB")
            for kind in reaches:
                enough = (run["iterations"] for run in runs if run[f"{kind}_db"] >= reference_db - _AS_GOOD_DB)
                reaches[kind] = min(enough, default=None)
        return {
            "name": footage.name,
            "shots": len(footage.snapshots),
            "reference_db": reference_db,
            "reaches_reference": reaches,
            "runs": runs,
        }

    def _engine(self, footage: Footage, settings: SolverSettings, *, warm_start: bool) -> Engine:
        most = max(*self.iterations, self.reference, settings.iterations)
        settings = dataclasses.replace(settings, iterations=most, min_iterations=1, warm_start=warm_start)
        return Engine(footage.calibration, self.prior, self.device, settings)


class _Engines(NamedTuple):
    """The engines that solve each snapshot: from ȳ, from the cold start, and warm."""

    still: Engine
    cold: Engine
    warm: Engine


def _run(footage: Footage, engines: _Engines, count: int) -> dict[str, Any]:
    """Solve a sequence and the cut after it, from ȳ, cold, warm, and cold in the time of the warm solve."""
    engines.warm.forget()
    pairs = [_pair(snapshot, engines, count) for snapshot in (*footage.snapshots, footage.cut())]
    *shots, after_cut = pairs
    followed = shots[1:]
    gains = np.array([shot["warm_db"] - shot["cold_db"] for shot in followed])
    quarter = max(1, len(gains) // 4)
    solve_s = sum(shot["warm_s"] for shot in followed)
    return {
        "iterations": count,
        "still_db": _mean(followed, "still_db"),
        "cold_db": _mean(followed, "cold_db"),
        "warm_db": _mean(followed, "warm_db"),
        "gain_db": float(gains.mean()),
        "gain_over_still_db": _mean(followed, "warm_db") - _mean(followed, "still_db"),
        "worst_gain_db": float(gains.min()),
        "cut_gain_db": after_cut["warm_db"] - after_cut["cold_db"],
        "drift_db": float(gains[-quarter:].mean() - gains[:quarter].mean()),
        "equal_time_gain_db": _mean(followed, "warm_db") - _mean(followed, "equal_time_db"),
        "start_share": sum(shot["start_s"] for shot in followed) / solve_s,
        "warm_share": sum(shot["start_s"] - shot["cold_start_s"] for shot in followed) / solve_s,
        "starts": dict(Counter(shot["start"] for shot in pairs)),
        "per_shot": shots,
        "after_cut": after_cut,
    }


def _pair(snapshot: Snapshot, engines: _Engines, count: int) -> dict[str, Any]:
    still, cold, warm = engines
    _, still_report = still.reconstruct(snapshot, Budget(count))
    _, cold_report = cold.reconstruct(snapshot, Budget(count))
    cold_start_s = cold.start_s
    _, warm_report = warm.reconstruct(snapshot, Budget(count))
    warm_s = warm_report.solve_ns / 1e9
    equal_report = cold_report
    if warm_report.start is Start.WARM:
        _, equal_report = cold.reconstruct(snapshot, Budget(4 * count, time_s=warm_s))
    return {
        "still_db": _psnr(still_report),
        "cold_db": _psnr(cold_report),
        "warm_db": _psnr(warm_report),
        "equal_time_db": _psnr(equal_report),
        "equal_time_iterations": equal_report.iterations,
        "start": f"{warm_report.start.value}: {warm_report.start_reason}",
        "start_s": warm.start_s,
        "cold_start_s": cold_start_s,
        "cold_s": cold_report.solve_ns / 1e9,
        "warm_s": warm_s,
    }


def _psnr(report: SolveReport) -> float:
    assert report.psnr_db is not None
    return report.psnr_db


def _mean(shots: list[dict[str, Any]], key: str) -> float:
    return float(np.mean([shot[key] for shot in shots]))


def print_figures(figures: dict[str, Any], console: Console, json_path: Path | None) -> None:
    """Print a table; write everything as JSON if requested."""
    title = f"{figures['settings']['denoiser']} on {figures['device']}: warm against cold starts"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)  # fits into a hundred columns
    signs = ("gain", "worst", "cut", "drift", "equal\ntime")
    for column in ("set", "shots", "iter.", "ȳ\ndB", "cold\ndB", "warm\ndB", *signs, "start %\n(own)", "warm"):
        table.add_column(column, justify="left" if column == "set" else "right", no_wrap=True)
    for row in figures["sets"]:
        for run in row["runs"]:
            warm = sum(count for start, count in run["starts"].items() if start.startswith(Start.WARM.value))
            signed = ("gain_db", "worst_gain_db", "cut_gain_db", "drift_db", "equal_time_gain_db")
            table.add_row(
                row["name"][:18],
                str(row["shots"]),
                str(run["iterations"]),
                f"{run['still_db']:.2f}",
                f"{run['cold_db']:.2f}",
                f"{run['warm_db']:.2f}",
                *(f"{run[key]:+.2f}" for key in signed),
                f"{100 * run['start_share']:.0f} ({100 * run['warm_share']:.0f})",
                str(warm),
            )
    console.print(table)
    for row in figures["sets"]:
        if row["reference_db"] is not None:
            reached = ", ".join(
                f"{kind} at {count or 'none of these'}" for kind, count in row["reaches_reference"].items()
            )
            console.print(
                f"{row['name']}: {figures['reference']} cold iterations give {row['reference_db']:.2f} dB; "
                f"within {_AS_GOOD_DB} dB of it: {reached}",
                highlight=False,
            )
    if json_path is not None:
        json_path.write_text(json.dumps(figures, indent=2) + "\n")


def plot(figures: dict[str, Any], path: Path) -> None:
    """Draw PSNR over the snapshots of every set, cold and warm, for each number of iterations.

    Raises
    ------
    ConfigError
        If matplotlib is not installed, or does not support the file's suffix.
    """
    require_matplotlib(path)
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional extra

    sets = figures["sets"]
    figure = Figure(figsize=(9, 3 * len(sets)), layout="constrained")
    for axes, row in zip(np.atleast_1d(figure.subplots(len(sets), 1)), sets, strict=True):
        for number, run in enumerate(row["runs"]):
            for kind, style in (("cold", ":"), ("warm", "-")):
                values = [shot[f"{kind}_db"] for shot in run["per_shot"]]
                axes.plot(values, style, color=f"C{number}", label=f"{kind}, {run['iterations']} iterations")
        if row["reference_db"] is not None:
            label = f"cold, {figures['reference']} iterations, mean"
            axes.axhline(row["reference_db"], color="0.5", linewidth=0.8, label=label)
        axes.set(title=row["name"], xlabel="snapshot", ylabel="PSNR, dB")
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path)
