"""``sci-stream bench warm``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sci_stream.cli.benches import bench_app, reconstruct_section
from sci_stream.cli.common import Device, JsonPath, table_console
from sci_stream.errors import ConfigError

if TYPE_CHECKING:
    from sci_stream.bench.footage import Footage


@bench_app.command("warm")
def bench_warm(
    data: Annotated[Path | None, typer.Option(help="Folder of published .mat files, searched through.")] = None,
    video: Annotated[list[Path] | None, typer.Option(help="Video to film through the simulated optics.")] = None,
    snapshots: Annotated[int, typer.Option(min=2, help="Snapshots of each video.")] = 56,
    size: Annotated[int, typer.Option(min=16, help="Height and width of a video's snapshots, pixels.")] = 256,
    speed: Annotated[float, typer.Option(min=0.0, help="Pictures of the video per reconstructed frame.")] = 1.0,
    iterations: Annotated[list[int] | None, typer.Option(min=1, help="Compare at so many; may be repeated.")] = None,
    reference: Annotated[int, typer.Option(min=0, help="Cold iterations to measure by; 0 for none.")] = 40,
    denoiser: Annotated[str, typer.Option(help="tv, ffdnet, …; auto: ffdnet with weights, else ffdnet-lite.")] = "auto",
    weights: Annotated[Path | None, typer.Option(help="FFDNet checkpoint.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other key of \\[reconstruct], as in a rig; repeatable."),
    ] = None,
    device: Device = "auto",
    json_path: JsonPath = None,
    plot_path: Annotated[Path | None, typer.Option("--plot", help="Draw PSNR over snapshots to this file.")] = None,
) -> None:
    """Compare warm starts with cold ones at equal iterations and at equal time; at 4, 8 and 12 if not given."""
    from sci_stream.bench import footage, warm

    if data is not None and not data.is_dir():
        raise ConfigError(f"--data {data} is not a folder", expected="a folder with published .mat files")

    def sequences() -> Iterator[Footage | str]:
        if data is not None:
            yield from footage.published(data)
        for path in video or ():
            if not path.is_file():
                raise ConfigError(f"--video {path} is not a file", expected="a video that OpenCV reads")
            options = {"height_px": size, "width_px": size, "bayer": None, "snapshots": snapshots, "speed": speed}
            scene = str(path.resolve())
            yield footage.filmed(path.stem, "simulated", scene=scene, snapshot_rate_hz=0.0, truth=True, **options)

    section = reconstruct_section(denoiser, weights, None, None, set_ or [])
    console = Console(stderr=True)
    figures = warm.bench(
        sequences(),
        section,
        device,
        lambda line: console.print(line, highlight=False, markup=False),
        iterations=tuple(iterations or (4, 8, 12)),
        reference=reference,
    )
    warm.print_figures(figures, table_console(), json_path)
    if plot_path is not None:
        warm.plot(figures, plot_path)
