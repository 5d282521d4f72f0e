"""``sci-stream bench …``: figures measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sci_stream.cli.common import Device, JsonPath, app, table_console
from sci_stream.errors import ConfigError

bench_app = typer.Typer(help="Benchmarks: figures measured on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


@bench_app.command("stream")
def bench_stream(
    snapshots: Annotated[int, typer.Option(min=10, help="Snapshots in each part.")] = 1000,
    height: Annotated[int, typer.Option(min=2, help="Rows of a snapshot.")] = 512,
    width: Annotated[int, typer.Option(min=2, help="Columns of a snapshot.")] = 512,
    json_path: JsonPath = None,
) -> None:
    """Measure the pipeline apart from reconstruction: camera, worker that only copies, sink."""
    from sci_stream.bench.stream import bench, print_figures

    figures = bench(snapshots=snapshots, height_px=height, width_px=width)
    print_figures(figures, table_console(), json_path)


@bench_app.command("quality")
def bench_quality(
    data: Annotated[Path, typer.Option(help="Folder of published .mat files, searched through.")],
    denoiser: Annotated[str, typer.Option(help="tv, ffdnet, …; auto: ffdnet if weights are given.")] = "auto",
    weights: Annotated[Path | None, typer.Option(help="FFDNet checkpoint.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Iterations; the prior's default if not given.")] = None,
    device: Device = "auto",
    json_path: JsonPath = None,
) -> None:
    """Measure PSNR and SSIM on published sets, beside the paper's figures."""
    from sci_stream.bench.quality import bench, print_figures
    from sci_stream.config import ReconstructSection

    if not data.is_dir():
        raise ConfigError(f"--data {data} is not a folder", expected="a folder with published .mat files")
    section = ReconstructSection(denoiser=denoiser, weights=weights, iterations=iterations)
    console = Console(stderr=True)
    figures = bench(data, section, device, lambda line: console.print(line, highlight=False, markup=False))
    print_figures(figures, table_console(), json_path)
