"""Commands that run and check rigs: ``demo``, ``run``, the nodes one by one, ``check``,
``config``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from sci_stream.cli.common import (
    SOLVERS,
    AsJson,
    Device,
    Duration,
    Force,
    RigPath,
    Snapshots,
    Summary,
    app,
    echo,
    new_console,
    print_json,
    require_linux,
    start_logging,
    state,
)

# The example rig runs on two cores that other programs use, too: a solve takes 0.4 to 1.1 s.
_SMALL = {"width_px": 128, "height_px": 128, "snapshot_rate_hz": 0.5}
_QUICK = {"solver": "ffdnet-lite", "iterations": 4}

config_app = typer.Typer(help="Rig files.", no_args_is_help=True)
app.add_typer(config_app, name="config")


@app.command()
def demo(
    snapshots: Snapshots = 0,
    duration: Duration = 0.0,
    summary: Summary = None,
    scene: Annotated[
        str,
        typer.Option(
            help="splash, fast, fan, drops, balloon, pan, belt, slow, or your own video file."
        ),
    ] = "",
    size: Annotated[
        int, typer.Option(min=0, help="Height and width in pixels; 0 to suit the device.")
    ] = 0,
    device: Device = "auto",
    solver: Annotated[
        str, typer.Option(help=f"{SOLVERS} What suits the device if not given.")
    ] = "",
    weights: Annotated[Path | None, typer.Option(help="Checkpoint of the solver.")] = None,
    record: Annotated[bool, typer.Option(help="Record to ./recordings.")] = True,
    browser: Annotated[bool, typer.Option(help="Open the live page in a browser.")] = True,
) -> None:
    """Run the whole instrument on the simulated camera, with settings that suit this machine."""
    require_linux()
    from sci_stream.nodes.runtime.process import limit_threads

    limit_threads()  # as in a reconstruct node, whose speed is measured
    from sci_stream.nodes.launcher.demo import demo_rig, pace_camera

    rig_path, why = demo_rig(
        scene=scene, size=size, device=device, record=record, open_browser=browser, report=echo,
        solver=solver, weights=weights and weights.resolve(),
    )  # fmt: skip
    echo(f"{why}\nrig file: {rig_path}\nin another terminal: sci-stream control")
    threading.Thread(target=pace_camera, args=(rig_path,), name="pace", daemon=True).start()
    _run_rig(rig_path, snapshots=snapshots, duration=duration, summary=summary)


@app.command()
def run(
    rig: RigPath,
    snapshots: Snapshots = 0,
    duration: Duration = 0.0,
    summary: Summary = None,
) -> None:
    """Run all nodes of a rig on this machine, as separate supervised processes."""
    _run_rig(rig, snapshots=snapshots, duration=duration, summary=summary)


def _run_rig(path: Path, *, snapshots: int, duration: float, summary: Path | None) -> None:
    require_linux()
    from sci_stream.nodes.launcher.run import run_rig

    raise typer.Exit(
        run_rig(
            path,
            snapshots=snapshots,
            duration_s=duration,
            summary=summary,
            verbose=state["verbose"],
        )
    )


@app.command()
def acquire(rig: RigPath, snapshots: Snapshots = 0, duration: Duration = 0.0) -> None:
    """Run the acquire node: the camera's host."""
    require_linux()
    from sci_stream.devices.modulators import make_coded_camera
    from sci_stream.nodes.acquire.series_loop import acquire_series
    from sci_stream.nodes.runtime.process import stop_on_signals
    from sci_stream.nodes.runtime.run_inputs import load_rig_of_run

    start_logging("acquire")
    loaded = load_rig_of_run(rig)
    calibration = None
    with stop_on_signals() as stop:
        if loaded.calibration.file:
            from sci_stream.recon.denoisers.plugin_code import source_of
            from sci_stream.recording.calibration_file import load_calibration

            calibration = load_calibration(source_of(loaded.calibration.file))
        acquire_series(
            loaded,
            make_coded_camera(loaded),
            calibration,
            stop,
            snapshots=snapshots,
            duration_s=duration,
        )


@app.command()
def reconstruct(
    rig: RigPath,
    index: Annotated[int, typer.Option(min=0, help="Which of several nodes this is.")] = 0,
    device: Annotated[
        str | None, typer.Option(help="Override the rig's device: cpu, cuda, cuda:N.")
    ] = None,
) -> None:
    """Run one reconstruct node: one for each GPU."""
    require_linux()
    from sci_stream.errors import CaptureError
    from sci_stream.nodes.runtime.process import limit_threads, restart_process, stop_on_signals
    from sci_stream.nodes.runtime.run_inputs import load_rig_of_run

    start_logging(f"reconstruct-{index}")
    # Before torch is imported, which takes seconds: an error in the rig file is reported at once.
    loaded = load_rig_of_run(rig)
    limit_threads()
    from sci_stream.nodes.reconstruct.node import ReconstructNode
    from sci_stream.nodes.reconstruct.solver_thread import SolverThread
    from sci_stream.recon.backend.device import device_of_node

    device = device or device_of_node(loaded.reconstruct.devices, index)
    with stop_on_signals() as stop:
        frame_s = loaded.modulator.frame_s
        solver = SolverThread(loaded.reconstruct, device, loaded.calibration, frame_s)
        try:
            ReconstructNode(loaded, solver, stop, index=index).run()
        except CaptureError as error:
            restart_process(str(error), SCI_STREAM_RIG__RECONSTRUCT__CUDA_GRAPHS="false")


@app.command()
def sink(rig: RigPath, summary: Summary = None) -> None:
    """Run the sink node: ledger, recording, live page."""
    require_linux()
    from sci_stream.nodes.runtime.process import stop_on_signals
    from sci_stream.nodes.runtime.run_inputs import load_rig_of_run
    from sci_stream.nodes.sink.node import SinkNode

    start_logging("sink")
    loaded = load_rig_of_run(rig)
    with stop_on_signals() as stop:
        SinkNode(loaded, stop, summary=summary).run()


@app.command()
def check(
    rig: RigPath,
    as_json: AsJson = False,
    junit: Annotated[
        Path | None, typer.Option(help="Also write a JUnit report, which CI services read.")
    ] = None,
    fix: Annotated[
        bool, typer.Option(help="Without asking, edit the rig file as the check advises.")
    ] = False,
) -> None:
    """Check a rig before it runs: file, camera, calibration, device, weights, addresses, disk."""
    require_linux()
    raise typer.Exit(run_checks(rig, as_json=as_json, junit=junit, fix=fix))


def run_checks(
    path: Path, *, as_json: bool = False, junit: Path | None = None, fix: bool = False
) -> int:
    """Check a rig, print each finding as it comes, and offer to edit the rig file; return the exit
    status.
    """
    from sci_stream.tools.preflight import Finding, check_rig, junit_report, print_finding

    console = new_console()
    findings: list[Finding] = []
    for finding in check_rig(path, _announce):
        findings.append(finding)
        if not as_json:
            print_finding(finding, console)
    if as_json:
        print_json([finding.to_json() for finding in findings])
    if junit is not None:
        junit.write_text(junit_report(path, findings), "utf-8")
    edit = {table: values for finding in findings for table, values in finding.edit.items()}
    if edit and not as_json:
        _offer_edit(path, edit, fix=fix)
    return max((finding.exit_status for finding in findings), default=0)


def _announce(what: str) -> None:
    """Show which check is under way, where a person watches; the next line replaces it."""
    if sys.stderr.isatty():
        print(f"…    {what:<12}\r", end="", file=sys.stderr, flush=True)


def _offer_edit(path: Path, edit: Mapping[str, Mapping[str, object]], *, fix: bool) -> None:
    """Show values that fit this machine, and write them to the rig file if the user agrees."""
    from sci_stream.config.toml_text import edited_text, table_text

    echo("this fits the machine:\n" + "".join(table_text(*table) for table in edit.items()))
    asks = not fix and sys.stdin.isatty()
    if fix or (asks and typer.confirm(f"Write it to {path}?", default=False)):
        text = path.read_text("utf-8")
        for table, values in edit.items():
            text = edited_text(text, table, values)
        path.write_text(text, "utf-8")
        echo(f"wrote {path}")
    elif not asks:
        echo("`check --fix` writes it to the rig file")


@config_app.command("init")
def config_init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("rig.toml"),
    driver: Annotated[str, typer.Option(help="Camera driver to write it for.")] = "simulated",
    camera: Annotated[
        str,
        typer.Option(
            help="Serial number, user-defined name or id of a camera to write it for.",
            metavar="SERIAL",
        ),
    ] = "",
    every_key: Annotated[
        bool, typer.Option("--all", help="Also list the keys that are rarely needed.")
    ] = False,
    force: Force = False,
) -> None:
    """Write a commented example rig file."""
    write_example(path, driver, camera, every_key=every_key, force=force)
    typer.echo(f"wrote {path}; next: sci-stream check {path}")


def write_example(
    path: Path,
    driver: str,
    camera: str,
    *,
    every_key: bool = False,
    force: bool = False,
    tables: Mapping[str, Mapping[str, object]] | None = None,
) -> None:
    """Write a commented rig file for a camera, with ``tables`` of values in place of
    the defaults.
    """
    from sci_stream.config import example_toml
    from sci_stream.devices.camera_drivers import load_driver
    from sci_stream.file_guard import complete_output
    from sci_stream.tools.cameras import suggested_options

    options = load_driver(driver).Options
    values, examples = suggested_options(driver, camera) if camera else ({}, {})
    if driver == "simulated":
        values = {**_SMALL, **values}
        tables = {**(tables or {}), "reconstruct": _QUICK}
    text = example_toml(
        driver, options, every_key=every_key, values=values, examples=examples, tables=tables
    )
    with complete_output(path, replace=force) as partial:
        partial.write_text(text, "utf-8")
