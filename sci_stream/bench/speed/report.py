"""Report of ``bench speed``: its tables and its plot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sci_stream.bench.environment import environment
from sci_stream.bench.result import BenchResult, ResultColumn, ResultTable, Settings, require_matplotlib, save_figure
from sci_stream.bench.speed.solve_times import ChunkSpeed, SizeSpeed, Speeds
from sci_stream.bench.speed.time_to_quality import TimeToQuality
from sci_stream.recon.denoisers.network_stack import CHOICE, StackTrial

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class SpeedResult(BenchResult):
    """Time by size, by chunk size if asked for, and to the published result if asked for."""

    sizes: tuple[SizeSpeed, ...] = ()
    matrix_flop_per_s: float = 0.0
    matrix_dtype: str = ""
    arithmetic: str = ""
    chunks: tuple[ChunkSpeed, ...] = ()
    stacks: tuple[StackTrial, ...] = ()
    reach: TimeToQuality | None = None


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


def speed_result(
    speeds: Speeds,
    settings: Settings,
    device: str,
    *,
    chunks: tuple[ChunkSpeed, ...] = (),
    stacks: tuple[StackTrial, ...] = (),
    reach: TimeToQuality | None = None,
) -> SpeedResult:
    """Return the result of these measurements; ``settings`` name the denoiser, ``device`` is in words."""
    tables: list[ResultTable[object]] = []
    if speeds.sizes or reach is None:
        tables.append(_size_table(speeds, settings, device))
    if stacks:
        title = f"Ways to run the network, eight frames of 256×256 pixels; {CHOICE} names one for a node"
        tables.append(ResultTable(title, _STACK_COLUMNS, stacks))
    if reach is not None:
        tables.append(_reach_table(reach))
    return SpeedResult(
        name="speed",
        environment=environment(device),
        tables=tuple(tables),
        settings=settings,
        sizes=speeds.sizes,
        matrix_flop_per_s=speeds.matrix_flop_per_s,
        matrix_dtype=speeds.matrix_dtype,
        arithmetic=speeds.arithmetic,
        chunks=chunks,
        stacks=stacks,
        reach=reach,
    )


def _size_table(speeds: Speeds, settings: Settings, device: str) -> ResultTable[SizeSpeed]:
    skipped = [f"{row.size} skipped: {row.skipped}" for row in speeds.sizes if row.skipped]
    faults = [f"{row.size}: {row.fault}" for row in speeds.sizes if row.fault]
    return ResultTable(
        f"{settings['denoiser']} ({speeds.arithmetic}) on {device}; "
        f"matrix product in {speeds.matrix_dtype} {speeds.matrix_flop_per_s / 1e12:.3g} TFLOP/s",
        _SIZE_COLUMNS,
        speeds.sizes,
        caption="\n".join(skipped + faults),
    )


def _reach_table(reach: TimeToQuality) -> ResultTable[object]:
    verdict = "not reached"
    if reach.ratio is not None and reach.cpu_ratio is not None:
        verdict = f"reached in 1/{1 / reach.ratio:.1f} of the time, 1/{1 / reach.cpu_ratio:.1f} of the processor time"
    title = f"Time to the published loop's result, mean of {reach.shots} shots: {verdict}"
    return ResultTable(title, _REACH_COLUMNS, reach.rows)


def plot_figures(result: SpeedResult, path: Path) -> None:
    """Draw snapshots per second by size, and PSNR over time where that was measured.

    Raises
    ------
    ConfigError
        If matplotlib is not installed, or does not support the file's suffix.
    """
    require_matplotlib(path)
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    rows = [row for row in result.sizes if not row.skipped]
    panels = bool(rows) + (result.reach is not None)
    figure = Figure(figsize=(6 * panels, 4), layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    if rows:
        bars = axes[0].bar([row.size for row in rows], [row.snapshots_per_s for row in rows])
        axes[0].bar_label(bars, fmt="%.3g")
        title = f"{rows[0].iterations} iterations, {result.environment.device}"
        axes[0].set(ylabel="snapshots/s", yscale="log", title=title)
    if result.reach is not None:
        _plot_reach(axes[-1], result.reach)
    save_figure(figure, path)


def _plot_reach(axis: Axes, reach: TimeToQuality) -> None:
    baseline, ours = reach.baseline, reach.ours
    axis.plot(baseline.seconds, baseline.psnr_db, label="published loop, frame by frame, float32")
    label = "sci_stream, whole solves"
    axis.plot([row.seconds for row in ours], [row.psnr_db for row in ours], "o-", label=label)
    axis.axhline(baseline.psnr_db[-1], color="grey", linewidth=0.8, linestyle="--")
    axis.set(xlabel="s", ylabel="PSNR, dB", xscale="log", title=f"mean of {reach.shots} shots")
    axis.legend()
