"""``sci-stream compare``: the video of two recordings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sci_stream.cli.common import AsJson, print_json, progress_bar, table_console

if TYPE_CHECKING:
    from sci_stream_lab.bench.quality.comparison import Comparison

compare_app = typer.Typer()
_MAX_ROWS = 40


@compare_app.command()
def compare(
    reference: Annotated[
        Path, typer.Argument(metavar="A", help="The recording to compare with.", show_default=False)
    ],
    other: Annotated[
        Path, typer.Argument(metavar="B", help="Another of the same series.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Compare the video of two recordings: PSNR and SSIM, snapshot by snapshot."""
    from sci_stream_lab.bench.quality.comparison import compare_recordings

    with progress_bar("compare") as report:
        comparison = compare_recordings(reference, other, report)
    if as_json:
        print_json(comparison.to_json())
    else:
        table_console().print(_table(comparison, f"{other} against {reference}"))


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
