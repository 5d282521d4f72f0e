"""``sci-stream bench speed``: all that it measures, its tables and its plot."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sci_stream.errors import ConfigError
from sci_stream.ports import Solver
from sci_stream.recon.backend.device import describe_device, pick_device
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.registry import named_prior
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import FfdnetWeights, load_ffdnet
from sci_stream.recon.settings import default_settings
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.bench.result import (
    BenchResult,
    Progress,
    ResultColumn,
    ResultTable,
    figure_file,
    solver_settings,
)
from sci_stream_lab.bench.speed import solve_times
from sci_stream_lab.bench.speed.live import LiveRun, run_live
from sci_stream_lab.bench.speed.network_ways import WayTrial
from sci_stream_lab.bench.speed.solve_times import SIZES, ChunkSpeed, Size, SizeSpeed, Speeds
from sci_stream_lab.bench.speed.time_to_quality import TimeToQuality, read_shots, time_to_reach
from sci_stream_lab.training.convert import read_any
from sci_stream_lab.training.learner import initial_weights
from sci_stream_lab.training.variants import VARIANTS, variant_shape

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class SpeedPlan:
    """What to measure.

    Parameters
    ----------
    denoiser, weights, precision
        The prior. Without weights ``ffdnet`` has random ones, which take the same time.
    sizes, iterations, warm, most_seconds
        Sizes to time, unless one takes longer; iterations of a snapshot, and whether it starts from
        the one before.
    chunks, stacks
        Whether to time several chunk sizes, and every way to run the network.
    against, shots
        Published file to time the published loop and the instrument on, and how many of its shots;
        None for neither.
    live
        Snapshots of a rig that records, at the first size; 0 for none.
    """

    denoiser: str = "ffdnet"
    weights: Path | None = None
    precision: Precision = Precision.AUTO
    sizes: tuple[Size, ...] = SIZES
    iterations: int = 8
    warm: bool = False
    most_seconds: float = 120.0
    chunks: bool = False
    stacks: bool = False
    against: Path | None = None
    shots: int = 1
    live: int = 0


@dataclass(frozen=True)
class SpeedResult(BenchResult):
    """Time by size, by chunk size if asked for, and to the published result if asked for."""

    sizes: tuple[SizeSpeed, ...] = ()
    matrix_flop_per_s: float = 0.0
    matrix_dtype: str = ""
    arithmetic: str = ""
    chunks: tuple[ChunkSpeed, ...] = ()
    stacks: tuple[WayTrial, ...] = ()
    reach: TimeToQuality | None = None
    live: LiveRun | None = None


_SIZE_COLUMNS = (
    ResultColumn("size", "size", left=True),
    ResultColumn("iteration", "ms/iteration", unit="ms"),
    ResultColumn("tflop_per_s", "TFLOP/s", ".3g"),
    ResultColumn("rate_percent", "of matrix rate"),
    ResultColumn("iterations", "iterations"),
    ResultColumn("snapshot_ms", "ms/snapshot", ".4g", "ms"),
    ResultColumn("snapshots_per_s", "snapshots/s", ".3g", "1/s"),
    ResultColumn("memory_mib", "MiB", ".0f", "MiB"),
)
_STACK_COLUMNS = (
    ResultColumn("way", "way", left=True),
    ResultColumn("ms", "ms", ".3g", "ms"),
    ResultColumn("flop_per_s", "FLOP/s", ".3g"),
    ResultColumn("why_not", "not available", left=True, wraps=True),
)
_REACH_COLUMNS = (
    ResultColumn("implementation", "", left=True),
    ResultColumn("iterations", "iterations"),
    ResultColumn("seconds", "s", ".2f", "s"),
    ResultColumn("cpu_seconds", "processor s", ".2f", "s"),
    ResultColumn("psnr_db", "PSNR dB", ".2f", "dB"),
)


def bench(plan: SpeedPlan, device_name: str, progress: Progress) -> SpeedResult:
    """Measure what a plan asks for; a line of ``progress`` for each figure.

    Raises
    ------
    ConfigError
        If the plan compares with the published loop but has no trained network.
    """
    device = pick_device(device_name)
    network, make = _denoisers(plan, device)
    if plan.against is not None and (network is None or plan.weights is None):
        raise ConfigError(
            "--against needs a trained network", expected="--weights, with ffdnet or ffdnet-lite"
        )
    footage = None if plan.against is None else read_shots(plan.against, plan.shots)
    prior, settings = make(None), default_settings(device, plan.denoiser)
    few = min(settings.min_iterations, plan.iterations)
    timed = dataclasses.replace(
        settings, iterations=plan.iterations, min_iterations=few, warm_start=plan.warm
    )
    speeds = solve_times.bench(
        prior,
        network,
        timed,
        device=device,
        sizes=plan.sizes,
        progress=progress,
        most_seconds=plan.most_seconds,
    )
    stacks: tuple[WayTrial, ...] = ()
    chunks: tuple[ChunkSpeed, ...] = ()
    reach = None
    if network is not None and plan.stacks:
        dtype = getattr(prior, "half", None) or torch.float32
        stacks = solve_times.time_stacks(network, device, dtype, progress)
    if network is not None and plan.chunks and plan.sizes:
        chunks = solve_times.time_chunks(make, device, plan.sizes[0], progress)
    if network is not None and footage is not None:
        reach = time_to_reach(footage, network, prior, settings, device=device, progress=progress)
    on = describe_device(device)
    live = None
    if plan.live and speeds.sizes and (per_s := speeds.sizes[0].snapshots_per_s) is not None:
        first = plan.sizes[0]
        live = run_live(
            first,
            plan.denoiser,
            plan.iterations,
            device_name,
            solves_per_s=per_s,
            snapshots=plan.live,
        )
        progress(live.sentence(on))
    tables: list[ResultTable[object]] = []
    if speeds.sizes or reach is None:
        tables.append(_size_table(speeds, prior.name, on))
    if stacks:
        title = "Ways to run the network, eight frames of 256×256 pixels; a node runs the plain one"
        tables.append(ResultTable(title, _STACK_COLUMNS, stacks))
    if reach is not None:
        tables.append(_reach_table(reach))
    return SpeedResult(
        name="speed",
        environment=environment(on),
        tables=tuple(tables),
        settings=solver_settings(prior.name, plan.weights, timed),
        sizes=speeds.sizes,
        matrix_flop_per_s=speeds.matrix_flop_per_s,
        matrix_dtype=speeds.matrix_dtype,
        arithmetic=speeds.arithmetic,
        chunks=chunks,
        stacks=stacks,
        reach=reach,
        live=live,
    )


def _denoisers(
    plan: SpeedPlan, device: torch.device
) -> tuple[FfdnetWeights | None, Callable[[int | None], Solver]]:
    """Return the network (None if the prior has none) and a factory of the denoiser by pixels per
    chunk.
    """
    name, weights = plan.denoiser, plan.weights
    if name not in VARIANTS:
        return None, lambda _pixels: named_prior(name, device, weights, plan.precision)
    if weights is not None:
        network = read_any(weights)
    elif name == "ffdnet-lite":
        network = load_ffdnet(shipped_weights(name))
    else:
        network = initial_weights(variant_shape(name), seed=0)
    return network, lambda pixels: FfdnetDenoiser(
        network, device, plan.precision, name=name, pixels_per_chunk=pixels
    )


def _size_table(speeds: Speeds, prior: str, device: str) -> ResultTable[SizeSpeed]:
    skipped = [f"{row.size} skipped: {row.skipped}" for row in speeds.sizes if row.skipped]
    faults = [f"{row.size}: {row.fault}" for row in speeds.sizes if row.fault]
    return ResultTable(
        f"{prior} ({speeds.arithmetic}) on {device}; "
        f"matrix product in {speeds.matrix_dtype} {speeds.matrix_flop_per_s / 1e12:.3g} TFLOP/s",
        _SIZE_COLUMNS,
        speeds.sizes,
        caption="\n".join(skipped + faults),
    )


def _reach_table(reach: TimeToQuality) -> ResultTable[object]:
    verdict = "not reached"
    if reach.ratio is not None and reach.cpu_ratio is not None:
        verdict = (
            f"reached in 1/{1 / reach.ratio:.1f} of the time, 1/{1 / reach.cpu_ratio:.1f} "
            "of the processor time"
        )
    title = f"Time to the published loop's result, mean of {reach.shots} shots: {verdict}"
    return ResultTable(title, _REACH_COLUMNS, reach.rows)


def plot(result: SpeedResult, path: Path) -> None:
    """Draw snapshots per second by size, and PSNR over time where that was measured."""
    rows = [row for row in result.sizes if not row.skipped]
    panels = bool(rows) + (result.reach is not None)
    with figure_file(path, (6 * panels, 4)) as figure:
        axes = list(figure.subplots(1, panels, squeeze=False)[0])
        if rows:
            bars = axes[0].bar([row.size for row in rows], [row.snapshots_per_s for row in rows])
            axes[0].bar_label(bars, fmt="%.3g")
            title = f"{rows[0].iterations} iterations, {result.environment.device}"
            axes[0].set(ylabel="snapshots/s", yscale="log", title=title)
        if result.reach is not None:
            _plot_reach(axes[-1], result.reach)


def _plot_reach(axis: Axes, reach: TimeToQuality) -> None:
    baseline, ours = reach.baseline, reach.ours
    axis.plot(baseline.seconds, baseline.psnr_db, label="published loop, frame by frame, float32")
    label = "sci_stream, whole solves"
    axis.plot([row.seconds for row in ours], [row.psnr_db for row in ours], "o-", label=label)
    axis.axhline(baseline.psnr_db[-1], color="grey", linewidth=0.8, linestyle="--")
    axis.set(xlabel="s", ylabel="PSNR, dB", xscale="log", title=f"mean of {reach.shots} shots")
    axis.legend()
