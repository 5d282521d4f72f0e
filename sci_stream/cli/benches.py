"""``sci-stream bench …``: figures measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sci_stream.cli.common import Device, JsonPath, app, table_console
from sci_stream.errors import ConfigError

if TYPE_CHECKING:
    from sci_stream.config import ReconstructSection

bench_app = typer.Typer(help="Benchmarks: figures measured on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")


@bench_app.command("stream")
def bench_stream(
    snapshots: Annotated[int, typer.Option(min=10, help="Snapshots in each part.")] = 1000,
    height: Annotated[int, typer.Option(min=2, help="Rows of a snapshot.")] = 512,
    width: Annotated[int, typer.Option(min=2, help="Columns of a snapshot.")] = 512,
    tcp: Annotated[bool, typer.Option("--tcp", help="Connect by TCP, as nodes on several hosts do.")] = False,
    record: Annotated[bool, typer.Option("--record", help="Measure recording of raw snapshots, too.")] = False,
    folder: Annotated[Path, typer.Option(help="With --record: a folder on the disk to measure.")] = Path(),
    rate: Annotated[float, typer.Option(min=0.1, help="With --record: snapshots a second of the paced part.")] = 250.0,
    json_path: JsonPath = None,
) -> None:
    """Measure the pipeline apart from reconstruction: camera, worker that only copies, sink."""
    from sci_stream.bench.stream import bench, print_figures

    figures = bench(snapshots=snapshots, height_px=height, width_px=width, tcp=tcp)
    if record:
        from sci_stream.bench.record import bench_record

        figures["parts"] += bench_record(folder, snapshots=snapshots, height_px=height, width_px=width, rate_hz=rate)
    print_figures(figures, table_console(), json_path)


@bench_app.command("quality")
def bench_quality(
    data: Annotated[Path, typer.Option(help="Folder of published .mat files, searched through.")],
    denoiser: Annotated[str, typer.Option(help="tv, ffdnet, …; auto: ffdnet with weights, else ffdnet-lite.")] = "auto",
    weights: Annotated[Path | None, typer.Option(help="FFDNet checkpoint.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Iterations; the prior's default if not given.")] = None,
    solver: Annotated[str | None, typer.Option(help="gap or admm.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any other key of \\[reconstruct], as in a rig file; repeatable."
        ),
    ] = None,
    device: Device = "auto",
    json_path: JsonPath = None,
    plot: Annotated[Path | None, typer.Option(help="Draw PSNR over iterations and frames into this picture.")] = None,
) -> None:
    """Measure PSNR and SSIM on published sets, beside the paper's figures."""
    from sci_stream.bench.quality import bench, print_figures

    if not data.is_dir():
        raise ConfigError(f"--data {data} is not a folder", expected="a folder with published .mat files")
    section = reconstruct_section(denoiser, weights, iterations, solver, set_ or [])
    console = Console(stderr=True)
    figures = bench(data, section, device, lambda line: console.print(line, highlight=False, markup=False), plot)
    print_figures(figures, table_console(), json_path)


@bench_app.command("colour")
def bench_colour(
    folder: Annotated[Path, typer.Argument(help="Folder of photographs, searched through.", show_default=False)],
    denoiser: Annotated[str, typer.Option(help="Prior that reconstructs the colour chart.")] = "tv",
    weights: Annotated[Path | None, typer.Option(help="FFDNet checkpoint.")] = None,
    device: Device = "auto",
    json_path: JsonPath = None,
) -> None:
    """Measure demosaicing on photographs, and a colour chart through the simulated camera and back."""
    from sci_stream.bench.colour import bench, print_figures
    from sci_stream.config import ReconstructSection

    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder", expected="a folder with photographs")
    console = Console(stderr=True)
    section = ReconstructSection(denoiser=denoiser, weights=weights)
    figures = bench(folder, section, device, lambda line: console.print(line, highlight=False, markup=False))
    print_figures(figures, table_console(), json_path)


def reconstruct_section(
    denoiser: str, weights: Path | None, iterations: int | None, solver: str | None, assignments: list[str]
) -> ReconstructSection:
    """Return ``[reconstruct]`` as a rig file with these options would give it, checked in the same way."""
    from sci_stream.config import parse_rig
    from sci_stream.config.toml_text import value_text

    given = {"denoiser": denoiser, "weights": weights and str(weights), "iterations": iterations, "solver": solver}
    if not any(assignment.partition("=")[0].strip() == "warm_start" for assignment in assignments):
        # Each shot for itself, as the paper's figures are; `bench warm` measures the other way.
        given["warm_start"] = False
    lines = [f"{key} = {value_text(value)}" for key, value in given.items() if value is not None]
    lines += [_toml_line(assignment) for assignment in assignments]
    return parse_rig("[reconstruct]\n" + "\n".join(lines), overrides={}, name="the command line").reconstruct


def _toml_line(assignment: str) -> str:
    """Bring ``key=value`` into TOML, where the value may stand without quotes."""
    import tomllib

    from sci_stream.config.toml_text import key_text, value_text

    key, is_one, text = assignment.partition("=")
    if not is_one:
        raise ConfigError("--set is not understood", expected="KEY=VALUE, such as gamma=0.1", got=repr(assignment))
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return f"{key_text(key.strip())} = {value_text(value)}"
