"""Report of ``bench speed``: table, JSON and plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sci_stream.errors import ConfigError


def print_figures(figures: dict[str, Any], console: Console, json_path: Path | None) -> None:
    """Print tables; write everything as JSON if requested."""
    if "sizes" in figures:
        console.print(_size_table(figures))
    if "reach" in figures:
        console.print(_reach_table(figures["reach"]))
    if json_path is not None:
        json_path.write_text(json.dumps(figures, indent=2) + "\n")


def _size_table(figures: dict[str, Any]) -> Table:
    rate = figures["matrix_flop_per_s"]
    settings = figures["settings"]
    table = Table(
        title=f"{settings['denoiser']} ({figures['arithmetic']}) on {figures['device']}; "
        f"matrix product in {figures['matrix_dtype']} {rate / 1e12:.3g} TFLOP/s"
    )
    for column in (
        "size",
        "ms/iteration",
        "TFLOP/s",
        "of matrix rate",
        "iterations",
        "ms/snapshot",
        "snapshots/s",
        "MiB",
    ):
        table.add_column(column, justify="left" if column == "size" else "right", no_wrap=True)
    for row in figures["sizes"]:
        if "skipped" in row:
            table.add_row(row["size"], "skipped")
            continue
        counted = "flop_per_s" in row
        table.add_row(
            row["size"],
            f"{row['iteration_ms']:.4g}",
            f"{row['flop_per_s'] / 1e12:.3g}" if counted else "",
            f"{100 * row['of_matrix_rate']:.0f} %" if counted else "",
            str(row["iterations"]),
            f"{row['snapshot_ms']:.4g}",
            f"{row['snapshots_per_s']:.3g}",
            f"{row['memory_mib']:.0f}",
        )
    skipped = [f"{row['size']} skipped: {row['skipped']}" for row in figures["sizes"] if "skipped" in row]
    faults = [f"{row['size']}: {row['fault']}" for row in figures["sizes"] if row.get("fault")]
    table.caption = "\n".join(skipped + faults) or None
    return table


def _reach_table(reach: dict[str, Any]) -> Table:
    baseline, ratio = reach["baseline"], reach["ratio"]
    verdict = "not reached"
    if ratio is not None:
        verdict = f"reached in 1/{1 / ratio:.1f} of the time, 1/{1 / reach['cpu_ratio']:.1f} of the processor time"
    table = Table(title=f"Time to the published loop's result, mean of {reach['shots']} shots: {verdict}")
    for column in ("", "iterations", "s", "processor s", "PSNR dB"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row(
        "published loop, frame by frame, float32",
        str(baseline["iterations"]),
        f"{baseline['seconds'][-1]:.2f}",
        f"{baseline['cpu_seconds'][-1]:.2f}",
        f"{baseline['psnr_db'][-1]:.2f}",
    )
    for row in reach["ours"]:
        figures = (f"{row[key]:.2f}" for key in ("seconds", "cpu_seconds", "psnr_db"))
        table.add_row("sci_stream", str(row["iterations"]), *figures)
    return table


def plot_figures(figures: dict[str, Any], path: Path) -> None:
    """Draw snapshots per second by size, and PSNR over time where that was measured.

    Raises
    ------
    ConfigError
        If matplotlib is not installed, or does not support the file's suffix.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ConfigError(
            "--plot needs matplotlib", got=error, hint="Install it: pip install 'sci-stream[plot]'."
        ) from error
    rows = [row for row in figures.get("sizes", []) if "skipped" not in row]
    panels = bool(rows) + ("reach" in figures)
    figure = Figure(figsize=(6 * panels, 4), layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    if rows:
        bars = axes[0].bar([row["size"] for row in rows], [row["snapshots_per_s"] for row in rows])
        axes[0].bar_label(bars, fmt="%.3g")
        axes[0].set(
            ylabel="snapshots/s", yscale="log", title=f"{rows[0]['iterations']} iterations, {figures['device']}"
        )
    if "reach" in figures:
        baseline, ours = figures["reach"]["baseline"], figures["reach"]["ours"]
        axes[-1].plot(baseline["seconds"], baseline["psnr_db"], label="published loop, frame by frame, float32")
        axes[-1].plot(
            [row["seconds"] for row in ours], [row["psnr_db"] for row in ours], "o-", label="sci_stream, whole solves"
        )
        axes[-1].axhline(baseline["psnr_db"][-1], color="grey", linewidth=0.8, linestyle="--")
        axes[-1].set(xlabel="s", ylabel="PSNR, dB", xscale="log", title=f"mean of {figures['reach']['shots']} shots")
        axes[-1].legend()
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise ConfigError(
            f"Unsupported plot format: --plot {path}", expected="a name ending in .png, .svg or .pdf", got=error
        ) from error
