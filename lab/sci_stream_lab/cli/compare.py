"""``sci-stream compare``: solvers on one measurement, or the video of two recordings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sci_stream.cli.common import (
    AsJson,
    Device,
    Force,
    Gamma,
    echo,
    print_json,
    progress_bar,
    table_console,
)
from sci_stream.errors import InputError

if TYPE_CHECKING:
    from sci_stream_lab.bench.quality.comparison import Comparison
    from sci_stream_lab.bench.quality.solvers import SolverComparison

compare_app = typer.Typer()
_MAX_ROWS = 40


@compare_app.command()
def compare(
    reference: Annotated[
        Path,
        typer.Argument(
            metavar="A", help="A measurement, or the recording to compare with.", show_default=False
        ),
    ],
    other: Annotated[
        Path | None,
        typer.Argument(metavar="B", help="Another recording of the series.", show_default=False),
    ] = None,
    solver: Annotated[
        str, typer.Option(help="Solvers of A, by commas: tv,unrolled,mine.py:Net@weights.pth.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help=".html, with a figure as .png and .pdf; or one of them."),
    ] = None,
    mask: Annotated[Path | None, typer.Option(help="The masks, if A has none.")] = None,
    truth: Annotated[Path | None, typer.Option(help="The true frames, if A has none.")] = None,
    bayer: Annotated[str | None, typer.Option(help="Phase of the colour filters: RGGB, …")] = None,
    first: Annotated[
        int | None, typer.Option(min=1, help="So many snapshots alone, from the first.")
    ] = None,
    gamma: Gamma = 1.0,
    device: Device = "auto",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compare solvers on a measurement, or the video of two recordings: PSNR, SSIM, seconds."""
    if (other is None) == (not solver):
        raise InputError(
            "Nothing to compare", expected="A --solver NAME,NAME, or two recordings A B"
        )
    if other is None:
        from sci_stream.files.measurement_file import load_measurement
        from sci_stream_lab.bench.quality.solvers import compare_solvers

        data = load_measurement(reference, mask, truth)
        with progress_bar("compare") as report:
            solved = compare_solvers(
                data.y, data.masks, solver.split(","), truth=data.truth, first=first, bayer=bayer,
                name=reference.name, device=device, progress=report,
            )  # fmt: skip
        written = [] if out is None else solved.save(out, gamma=gamma, replace=force)
        if as_json:
            print_json(solved.to_json())
            return
        table_console().print(_table_of(solved))
        for one in solved.results:
            for fault in one.faults:
                echo(f"warning: {one.name}: {fault}")
        for path in written:
            echo(f"wrote {path}")
        return
    from sci_stream_lab.bench.quality.comparison import compare_recordings

    with progress_bar("compare") as report:
        comparison = compare_recordings(reference, other, report)
    if as_json:
        print_json(comparison.to_json())
    else:
        table_console().print(_table(comparison, f"{other} against {reference}"))


def _table_of(comparison: SolverComparison) -> Table:
    """Return the figures of solvers as a table."""
    columns = ("solver", "PSNR dB", "SSIM", "s/snapshot", "residual")
    table = Table(*columns, title=comparison.name)
    for one in comparison.results:
        psnr_db = "–" if one.psnr_db is None else f"{one.psnr_db:.2f}"
        ssim = "–" if one.ssim is None else f"{one.ssim:.4f}"
        table.add_row(escape(one.name), psnr_db, ssim, f"{one.seconds:.2f}", f"{one.residual:.2%}")
    return table


def _table(comparison: Comparison, title: str) -> Table:
    """Return a comparison as a table: the snapshots, the least alike first, and the means below."""
    table = Table(title=title, show_footer=True)
    mean_db = "equal" if comparison.psnr_db is None else f"{comparison.psnr_db['mean']:.2f}"
    mean_ssim = "–" if comparison.ssim is None else f"{comparison.ssim['mean']:.4f}"
    largest = max(one.max_difference for one in comparison.snapshots)
    table.add_column("seq", justify="right", footer=f"{len(comparison.snapshots)} snapshots, mean")
    table.add_column("PSNR dB", justify="right", footer=mean_db)
    table.add_column("SSIM", justify="right", footer=mean_ssim)
    table.add_column("largest difference", justify="right", footer=f"{largest:.4f}")
    for one in sorted(comparison.snapshots, key=lambda one: one.psnr_db)[:_MAX_ROWS]:
        psnr_db = "equal" if math.isinf(one.psnr_db) else f"{one.psnr_db:.2f}"
        ssim = "–" if one.ssim is None else f"{one.ssim:.4f}"
        table.add_row(str(one.seq), psnr_db, ssim, f"{one.max_difference:.4f}")
    if comparison.only_first or comparison.only_second:
        table.caption = (
            f"not compared: {comparison.only_first} only in the first, "
            f"{comparison.only_second} only in the second"
        )
    return table
