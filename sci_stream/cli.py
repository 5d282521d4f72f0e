"""The command line, and the composition root: here the parts of the instrument are put together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sci_stream.errors import ConfigError, SciStreamError

app = typer.Typer(
    name="sci-stream",
    help="Live video from snapshot compressive imaging cameras.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Rig files.", no_args_is_help=True)
bench_app = typer.Typer(help="Benchmarks: figures measured on this machine.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(bench_app, name="bench")


def _table_console() -> Console:
    """Return where tables go: as wide as the terminal, and wide enough for them where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


RigPath = Annotated[Path, typer.Argument(metavar="RIG.toml", help="The rig file.", show_default=False)]
Snapshots = Annotated[int, typer.Option(min=0, help="End after this many snapshots; 0 for no limit.")]
Duration = Annotated[float, typer.Option(min=0.0, help="End after this many seconds; 0 for no limit.")]
Summary = Annotated[Path | None, typer.Option(help="Write an account of the run to this JSON file.")]

_state = {"verbose": False}


@app.callback()
def _root(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say what goes on, not only what goes wrong.")
    ] = False,
) -> None:
    _state["verbose"] = verbose


@app.command()
def demo(
    snapshots: Snapshots = 0,
    duration: Duration = 0.0,
    summary: Summary = None,
    scene: Annotated[str, typer.Option(help="A scene of the simulated camera, or a video file.")] = "",
    weights: Annotated[Path | None, typer.Option(help="FFDNet checkpoint; without one, the TV prior is used.")] = None,
    size: Annotated[int, typer.Option(min=0, help="Height and width in pixels; 0 to suit the device.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    record: Annotated[bool, typer.Option(help="Record to ./recordings.")] = True,
    browser: Annotated[bool, typer.Option(help="Open the live page in a browser.")] = True,
) -> None:
    """Run the whole instrument on the simulated camera, with settings that suit this machine."""
    from sci_stream.nodes.demo import demo_rig

    rig_path, why = demo_rig(
        scene=scene, weights=weights, size=size, device=device, record=record, open_browser=browser
    )
    Console(stderr=True).print(f"{escape(why)}\nrig file: [bold]{escape(str(rig_path))}[/]", highlight=False)
    _run_rig(rig_path, snapshots=snapshots, duration=duration, summary=summary)


@app.command()
def run(rig: RigPath, snapshots: Snapshots = 0, duration: Duration = 0.0, summary: Summary = None) -> None:
    """Run all nodes of a rig on this machine, as separate supervised processes."""
    _run_rig(rig, snapshots=snapshots, duration=duration, summary=summary)


def _run_rig(path: Path, *, snapshots: int, duration: float, summary: Path | None) -> None:
    from sci_stream.nodes.run import run_rig

    raise typer.Exit(
        run_rig(path, snapshots=snapshots, duration_s=duration, summary=summary, verbose=_state["verbose"])
    )


@app.command()
def acquire(rig: RigPath, snapshots: Snapshots = 0, duration: Duration = 0.0) -> None:
    """Run the acquire node: the camera's host."""
    from sci_stream.config import load_rig
    from sci_stream.files.calibration_file import load_calibration
    from sci_stream.nodes.acquire import AcquireNode
    from sci_stream.nodes.drivers import make_camera
    from sci_stream.nodes.runner import set_up_logging, stop_on_signals

    set_up_logging("acquire", verbose=_state["verbose"])
    loaded = load_rig(rig)
    with stop_on_signals() as stop:
        calibration = load_calibration(loaded.calibration.file) if loaded.calibration.file else None
        AcquireNode(loaded, make_camera(loaded), calibration, stop, snapshots=snapshots, duration_s=duration).run()


@app.command()
def reconstruct(
    rig: RigPath,
    index: Annotated[int, typer.Option(min=0, help="Which of several nodes this is.")] = 0,
    device: Annotated[str | None, typer.Option(help="Override the rig's device: cpu, cuda, cuda:N.")] = None,
) -> None:
    """Run one reconstruct node: one for each GPU."""
    from sci_stream.nodes.runner import set_up_logging, share_the_cores, stop_on_signals

    share_the_cores()
    from sci_stream.config import load_rig
    from sci_stream.nodes.reconstruct import ReconstructNode
    from sci_stream.nodes.solver_thread import SolverThread

    set_up_logging(f"reconstruct-{index}", verbose=_state["verbose"])
    loaded = load_rig(rig)
    devices = loaded.reconstruct.devices
    with stop_on_signals() as stop:
        solver = SolverThread(loaded.reconstruct, device or devices[index % len(devices)])
        ReconstructNode(loaded, solver, stop, index=index).run()


@app.command()
def sink(rig: RigPath, summary: Summary = None) -> None:
    """Run the sink node: ledger, recording, live page."""
    from sci_stream.config import load_rig
    from sci_stream.nodes.runner import set_up_logging, stop_on_signals
    from sci_stream.nodes.sink import SinkNode

    set_up_logging("sink", verbose=_state["verbose"])
    loaded = load_rig(rig)
    with stop_on_signals() as stop:
        SinkNode(loaded, stop, summary=summary).run()


@app.command()
def check(rig: RigPath) -> None:
    """Check a rig before it runs: file, camera, calibration, device, weights, addresses, disk."""
    from sci_stream.nodes.check import check_rig, print_findings

    findings = check_rig(rig)
    print_findings(findings, Console())
    raise typer.Exit(max((finding.exit_status for finding in findings), default=0))


@config_app.command("init")
def config_init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("rig.toml"),
    driver: Annotated[str, typer.Option(help="Camera driver to write it for.")] = "simulated",
    force: Annotated[bool, typer.Option(help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented example rig file."""
    from sci_stream.config import example_toml
    from sci_stream.nodes.drivers import load_driver

    options = load_driver(driver).Options
    if path.exists() and not force:
        raise ConfigError(f"{path} exists", hint="Choose another name, or use --force to overwrite it.")
    try:
        path.write_text(example_toml(driver, options))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written", got=error.strerror) from None
    Console().print(f"wrote {escape(str(path))}; next: sci-stream check {escape(str(path))}", highlight=False)


@bench_app.command("stream")
def bench_stream(
    snapshots: Annotated[int, typer.Option(min=10, help="Snapshots in each part.")] = 1000,
    height: Annotated[int, typer.Option(min=2, help="Rows of a snapshot.")] = 512,
    width: Annotated[int, typer.Option(min=2, help="Columns of a snapshot.")] = 512,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Measure the pipeline apart from reconstruction: camera, worker that only copies, sink."""
    from sci_stream.bench.stream import bench, print_figures

    figures = bench(snapshots=snapshots, height_px=height, width_px=width)
    print_figures(figures, _table_console(), json_path)


@bench_app.command("quality")
def bench_quality(
    data: Annotated[Path, typer.Option(help="Folder of published .mat files, searched through.")],
    denoiser: Annotated[str, typer.Option(help="tv, ffdnet, …; auto: ffdnet if weights are given.")] = "auto",
    weights: Annotated[Path | None, typer.Option(help="FFDNet checkpoint.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Iterations; the prior's default if not given.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Measure PSNR and SSIM on published sets, beside the paper's figures."""
    from sci_stream.bench.quality import bench, print_figures
    from sci_stream.config import ReconstructSection

    if not data.is_dir():
        raise ConfigError(f"--data {data} is not a folder", expected="a folder with published .mat files")
    section = ReconstructSection(denoiser=denoiser, weights=weights, iterations=iterations)
    console = Console(stderr=True)
    figures = bench(data, section, device, lambda line: console.print(line, highlight=False, markup=False))
    print_figures(figures, _table_console(), json_path)


def main() -> None:
    """Run the command line; every error this project raises becomes one message and its exit status."""
    try:
        app()
    except SciStreamError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
