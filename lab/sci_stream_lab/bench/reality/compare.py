"""Every cell of `bench reality`: a scene, a rig and a perturbation, solved in three ways."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import torch

from sci_stream.errors import ConfigError, FileFormatError
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.bench.reality.optics import F32, PatternOptics
from sci_stream_lab.bench.reality.perturbations import (
    PERTURBATIONS,
    Perturbation,
    parse_perturbation,
)
from sci_stream_lab.bench.reality.rigs import (
    ALL_RIGS,
    QUICK_RIGS,
    RIGS,
    OpticalSetup,
    choose_rigs,
    film,
)
from sci_stream_lab.bench.reality.scenes import SCENES, Half, SceneFormat, SceneUnavailableError
from sci_stream_lab.bench.reality.solving import Reconstructor, SolverSpec
from sci_stream_lab.bench.result import (
    BenchResult,
    Progress,
    ResultColumn,
    ResultTable,
    Settings,
    figure_file,
    mean,
)

PLAIN_MARGIN_DB = 0.1
"""By this much the defaults may be below the plain loop in any cell."""


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """What to measure: the product of rigs and perturbations, each rig on some scenes of each half
    in turn.

    ``snapshots`` are solved in series, of which the last one counts; ``size`` is the field's height
    and width, pixels; ``scenes_per_rig`` is a number in each half, or 0 for all.
    """

    rigs: tuple[OpticalSetup, ...] = RIGS
    perturbations: tuple[str, ...] = PERTURBATIONS
    halves: tuple[Half, ...] = tuple(Half)
    snapshots: int = 3
    size: int = 128
    scenes_per_rig: int = 2


class Extent(StrEnum):
    """How much to measure: a minute's worth, the default, or every rig on every scene, which takes
    hours.
    """

    QUICK = "quick"
    USUAL = "usual"
    FULL = "full"


_RIGS_OF = {Extent.QUICK: QUICK_RIGS, Extent.USUAL: RIGS, Extent.FULL: ALL_RIGS}
_SCENES_PER_RIG = {Extent.QUICK: 1, Extent.USUAL: 2, Extent.FULL: 0}


def choose_plan(
    *,
    extent: Extent,
    scenes: str,
    perturbations: tuple[str, ...],
    patterns: tuple[str, ...],
    blurs_px: tuple[float, ...],
    frames: tuple[int, ...],
    snapshots: int,
    size: int,
) -> ComparisonPlan:
    """Return the plan of this extent, limited to these properties; an empty tuple allows any.

    ``scenes`` is a half or ``all``.

    Raises
    ------
    ConfigError
        If the scenes are unknown or no rig has the properties.
    """
    if scenes not in {"all", *Half}:
        raise ConfigError("Unknown --scenes", expected="tuning, reporting or all", got=repr(scenes))
    quick = extent is Extent.QUICK
    return ComparisonPlan(
        rigs=choose_rigs(_RIGS_OF[extent], patterns=patterns, blurs_px=blurs_px, frames=frames),
        perturbations=perturbations or (("none", "shift", "all") if quick else PERTURBATIONS),
        halves=tuple(Half) if scenes == "all" else (Half(scenes),),
        snapshots=1 if quick else snapshots,
        size=size,
        scenes_per_rig=_SCENES_PER_RIG[extent],
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """PSNR of the last snapshot of a series, mean over its frames, dB.

    ``exact_db`` with the true masks and noise and ``defaults_db`` with the unperturbed ones, both
    with the rig's default settings; ``plain_db`` with the paper's loop and the unperturbed masks.
    """

    scene: str
    half: Half
    rig: str
    masks: str
    blur_px: float
    n_frames: int
    colour: bool
    perturbation: str
    snapshots: int
    exact_db: float
    defaults_db: float
    plain_db: float

    @property
    def lead_db(self) -> float:
        """Lead of the defaults over the plain loop, dB."""
        return self.defaults_db - self.plain_db

    @property
    def loss_db(self) -> float:
        """Loss of the defaults against the exact calibration, dB."""
        return self.exact_db - self.defaults_db


@dataclass(frozen=True, slots=True)
class Summary:
    """Means over a group of cells, dB, with the least lead and the largest loss of a cell."""

    half: str
    group: str
    cells: int
    exact_db: float
    defaults_db: float
    plain_db: float
    lead_db: float
    worst_lead_db: float
    loss_db: float
    worst_loss_db: float


@dataclass(frozen=True)
class RealityResult(BenchResult):
    """The summary as a table, and every cell."""

    cells: tuple[Cell, ...] = ()


_HALF = ResultColumn("half", "scenes", left=True)
_QUALITY = (
    ResultColumn("exact_db", "exact\ndB", ".2f", "dB"),
    ResultColumn("defaults_db", "defaults\ndB", ".2f", "dB"),
    ResultColumn("plain_db", "plain 40\ndB", ".2f", "dB"),
    ResultColumn("lead_db", "over\nplain", "+.2f", "dB"),
)
_LOSS = ResultColumn("loss_db", "below\nexact", "+.2f", "dB")
SUMMARY_COLUMNS = (
    _HALF,
    ResultColumn("group", "group", left=True),
    ResultColumn("cells", "cells"),
    *_QUALITY,
    ResultColumn("worst_lead_db", "worst", "+.2f", "dB"),
    _LOSS,
    ResultColumn("worst_loss_db", "worst", "+.2f", "dB"),
)
CELL_COLUMNS = (
    _HALF,
    ResultColumn("scene", "scene", left=True),
    ResultColumn("rig", "rig", left=True),
    ResultColumn("perturbation", "perturbation", left=True),
    *_QUALITY,
    _LOSS,
)


def bench(
    plan: ComparisonPlan,
    spec: SolverSpec,
    progress: Progress,
    *,
    settings: Settings | None = None,
    jobs: int = 0,
) -> RealityResult:
    """Measure every cell of a plan.

    Parameters
    ----------
    settings
        Settings of the run, for the record.
    jobs
        Processes of one thread each, 1 for none but this; 0 for one per core on a CPU, and this one
        for a GPU.

    Raises
    ------
    FileFormatError
        If no scene or rig of the plan is available.
    """
    cells: list[Cell] = []
    for made in _measured(
        plan, spec, jobs or (1 if spec.on_gpu else os.cpu_count() or 1), progress
    ):
        cells += made
        worst = min(made, key=lambda cell: cell.lead_db)
        progress(
            f"{worst.rig}, {worst.scene}: defaults {mean(cell.defaults_db for cell in made):.2f} "
            "dB in the mean "
            f"of {len(made)} perturbations, worst against the plain loop {worst.lead_db:+.2f} dB "
            f"({worst.perturbation})"
        )
    if not cells:
        raise FileFormatError(
            "Nothing to measure", expected="scenes and masks that are available", got="none"
        )
    title = f"{spec.description}; snapshot {plan.snapshots} of a series, {plan.size}×{plan.size}"
    return RealityResult(
        name="reality",
        environment=environment(spec.device),
        tables=(ResultTable(title, SUMMARY_COLUMNS, summarise(cells), dense=True),),
        notes=verdicts(cells),
        settings={
            **{"iterations": spec.iterations, "snapshots": plan.snapshots, "size": plan.size},
            **(settings or {}),
        },
        cells=tuple(cells),
    )


def cell_table(result: RealityResult) -> ResultTable[object]:
    """Return a table with a row for each cell."""
    return ResultTable("every cell", CELL_COLUMNS, result.cells, dense=True)


@dataclass(frozen=True, slots=True, eq=False)
class RigOnScene:
    """The unit of work, whose cells share the true video;
    in a form that can be sent to a process.
    """

    rig: OpticalSetup
    scene: str
    half: Half
    optics: PatternOptics
    videos: F32


def _measured(
    plan: ComparisonPlan, spec: SolverSpec, jobs: int, progress: Progress
) -> Iterator[list[Cell]]:
    """Yield the cells of each rig on each scene, in the order of the plan."""
    perturbations = [parse_perturbation(name) for name in plan.perturbations]
    units = _units_of_work(plan, progress)
    if jobs == 1:
        yield from (measure(unit, perturbations, Reconstructor(spec)) for unit in units)
        return
    # Threads of one solve wait for each other at every convolution, which is slow beside other
    # work: cells share nothing, so each core solves its own.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, _start_worker, (spec,)) as pool:
        pending = [pool.submit(_measure_in_worker, unit, perturbations) for unit in units]
        yield from (future.result() for future in pending)


# The reconstructor of a worker process, made once.
_worker: list[Reconstructor] = []


def _start_worker(spec: SolverSpec) -> None:
    torch.set_num_threads(1)
    _worker.append(Reconstructor(spec))


def _measure_in_worker(unit: RigOnScene, perturbations: Sequence[Perturbation]) -> list[Cell]:
    return measure(unit, perturbations, _worker[0])


def _units_of_work(plan: ComparisonPlan, progress: Progress) -> Iterator[RigOnScene]:
    """Yield each rig with its scenes, halves in turn; report why others are unavailable."""
    reported: set[str] = set()
    for half in plan.halves:
        scenes = [scene for scene in SCENES if scene.half is half]
        following = 0
        for rig in plan.rigs:
            form = SceneFormat(plan.size, rig.n_frames, rig.colour, plan.snapshots)
            wanted = plan.scenes_per_rig or len(scenes)
            # Begin after the scene of the last rig, so that every scene has its turn.
            for place in [(following + offset) % len(scenes) for offset in range(len(scenes))]:
                if wanted == 0:
                    break
                scene = scenes[place]
                if form.colour and not scene.in_colour:
                    continue
                try:
                    yield RigOnScene(
                        rig, scene.name, half, rig.optics(plan.size), scene.frames(form)
                    )
                except SceneUnavailableError as reason:
                    if str(reason) not in reported:
                        progress(f"skipped: {reason}")
                    reported.add(str(reason))
                    continue
                wanted -= 1
                following = place + 1


def measure(
    unit: RigOnScene, perturbations: Sequence[Perturbation], reconstructor: Reconstructor
) -> list[Cell]:
    """Return a cell for each perturbation."""
    rig, cells = unit.rig, []
    for perturbation in perturbations:
        series = film(rig, unit.optics, unit.videos, perturbation)
        defaults_db = exact_db = reconstructor.series(series.assumed, series.snapshots)
        if series.exact is not series.assumed:
            exact_db = reconstructor.series(series.exact, series.of(series.exact))
        plain_db = reconstructor.plain(series.assumed, series.snapshots[-1])
        cells.append(
            Cell(
                scene=unit.scene,
                half=unit.half,
                rig=rig.name,
                masks=rig.patterns,
                blur_px=rig.blur_px,
                n_frames=rig.n_frames,
                colour=rig.colour,
                perturbation=perturbation.name,
                snapshots=len(unit.videos),
                exact_db=exact_db,
                defaults_db=defaults_db,
                plain_db=plain_db,
            )
        )
    return cells


def summarise(cells: Sequence[Cell]) -> tuple[Summary, ...]:
    """Return the means by perturbation, then by blur, masks, B and colour, of each half; in the
    order of the cells.
    """
    keys: tuple[Callable[[Cell], str], ...] = (
        lambda cell: cell.perturbation,
        lambda cell: f"s = {cell.blur_px:g} px",
        lambda cell: f"{cell.masks} masks",
        lambda cell: f"B = {cell.n_frames}",
        lambda cell: "Bayer" if cell.colour else "grey",
        lambda _: "everything",
    )
    rows = []
    for half in dict.fromkeys(cell.half for cell in cells):
        for key in keys:
            groups: dict[str, list[Cell]] = {}
            for cell in cells:
                if cell.half is half:
                    groups.setdefault(key(cell), []).append(cell)
            rows += [_summary(half, group, members) for group, members in groups.items()]
    return tuple(rows)


def _summary(half: Half, group: str, cells: Sequence[Cell]) -> Summary:
    return Summary(
        half=half.value,
        group=group,
        cells=len(cells),
        exact_db=mean(cell.exact_db for cell in cells),
        defaults_db=mean(cell.defaults_db for cell in cells),
        plain_db=mean(cell.plain_db for cell in cells),
        lead_db=mean(cell.lead_db for cell in cells),
        worst_lead_db=min(cell.lead_db for cell in cells),
        loss_db=mean(cell.loss_db for cell in cells),
        worst_loss_db=max(cell.loss_db for cell in cells),
    )


def verdicts(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return a sentence for each half: how many cells are below the plain loop,
    and the worst one.
    """
    lines = []
    for half in dict.fromkeys(cell.half for cell in cells):
        members = [cell for cell in cells if cell.half is half]
        below = [cell for cell in members if cell.lead_db < -PLAIN_MARGIN_DB]
        worst = min(members, key=lambda cell: cell.lead_db)
        lines.append(
            f"{half}: the defaults are more than {PLAIN_MARGIN_DB} dB below the plain loop in "
            f"{len(below)} of "
            f"{len(members)} cells, most in {worst.scene}, {worst.rig}, {worst.perturbation} "
            f"({worst.lead_db:+.2f} dB)"
        )
    return tuple(lines)


_WAYS = (
    ("exact_db", "exact calibration", "C2"),
    ("defaults_db", "defaults", "C0"),
    ("plain_db", "plain loop, 40", "C1"),
)


def plot(result: RealityResult, path: Path) -> None:
    """Draw, for each half of the scenes, the mean PSNR of each perturbation with every cell as a
    dot.
    """
    halves = list(dict.fromkeys(cell.half for cell in result.cells))
    with figure_file(path, (11, 4 * len(halves))) as figure:
        figure.suptitle(result.tables[0].title)
        for axis, half in zip(
            figure.subplots(len(halves), 1, squeeze=False)[:, 0], halves, strict=True
        ):
            cells = [cell for cell in result.cells if cell.half is half]
            names = list(dict.fromkeys(cell.perturbation for cell in cells))
            for offset, (key, label, colour) in enumerate(_WAYS):
                at = np.arange(len(names)) + 0.25 * (offset - 1)
                groups = [_values(cells, name, key) for name in names]
                axis.bar(
                    at,
                    [np.mean(group) for group in groups],
                    0.23,
                    color=colour,
                    alpha=0.5,
                    label=label,
                )
                for x, group in zip(at, groups, strict=True):
                    axis.plot([x] * len(group), group, ".", color=colour, markersize=3)
            axis.set(
                title=f"{half} scenes",
                ylabel="PSNR, dB",
                xticks=range(len(names)),
                xticklabels=names,
            )
            axis.set_ylim(
                bottom=min(getattr(cell, key) for cell in cells for key, _, _ in _WAYS) - 1
            )
            axis.grid(axis="y", alpha=0.3)
            axis.legend(loc="upper right", ncols=3, fontsize="small")


def _values(cells: Sequence[Cell], perturbation: str, key: str) -> list[float]:
    return [getattr(cell, key) for cell in cells if cell.perturbation == perturbation]
