"""Commands for after the run: ``inspect``, ``replay``, ``export``, ``repair``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sci_stream.cli.common import (
    SOLVER_NAMES,
    SOLVERS,
    VIDEO_FILES,
    AsJson,
    Device,
    Flicker,
    Force,
    Form,
    Fps,
    Gamma,
    app,
    echo,
    print_json,
    progress_bar,
    show,
    start_logging,
    table_console,
)
from sci_stream.errors import FileFormatError, InputError

if TYPE_CHECKING:
    from sci_stream.tools.replay.jobs import JobResult

RecordingPath = Annotated[
    Path, typer.Argument(metavar="FILE", help="A recording.", show_default=False)
]
First = Annotated[
    int | None, typer.Option("--first", min=0, help="Sequence number of the first snapshot.")
]
Last = Annotated[
    int | None, typer.Option("--last", min=0, help="Sequence number of the last snapshot.")
]
Iterations = Annotated[
    int | None, typer.Option(min=1, help="For every snapshot; as recorded if not given.")
]
Solver = Annotated[str | None, typer.Option(*SOLVER_NAMES, help=f"Another: {SOLVERS}")]
Weights = Annotated[Path | None, typer.Option(help="Checkpoint of the solver.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print a line of JSON for each recording.")]


@app.command()
def inspect(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A recording, or a folder of recordings.", show_default=False
        ),
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every frame, and list the damaged ones.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the content of a recording: snapshots, ledger, gaps, rates, solver, calibration.

    The exit status is 2 if it is damaged.
    """
    from sci_stream.cli.recording_tables import describe
    from sci_stream.recording.inspection import inspect_recording, verify_segment
    from sci_stream.recording.segments import existing_segments

    if file.is_dir():
        _list_folder(file, as_json=as_json)
        return
    damage = []
    for segment in existing_segments(file) if verify else ():
        with progress_bar(f"verify {segment.name}") as report:
            damage += verify_segment(segment, report)
    for problem in damage:
        echo(problem)
    recording = inspect_recording(file)
    if verify:
        recording.add_damage(damage)
    if as_json:
        print_json(recording.figures)
    else:
        for name, value in describe(recording):
            show(f"{name:<14}{escape(value)}")
    if known := recording.figures["damage"]:
        raise FileFormatError(
            f"{file} is damaged",
            got=f"{len(known)} faults",
            hint="What can be read is undamaged. Take the rest from another copy.",
        )


def _list_folder(folder: Path, *, as_json: bool) -> None:
    """Print state, size and ledger of each recording in a folder, newest first."""
    files = sorted(folder.glob("*.h5"), key=lambda file: file.stat().st_mtime, reverse=True)
    if as_json:
        print_json([_folder_row(file) for file in files])
        return
    columns = ("file", "state", "mb", "acquired", "reconstructed", "dropped")
    table = Table(*columns, box=None, pad_edge=False)
    for file in files:
        row = _folder_row(file)
        table.add_row(*(escape(str(row.get(name, ""))) for name in columns))
    table_console().print(table)


def _folder_row(file: Path) -> dict[str, object]:
    from sci_stream.recording.reader import DAMAGE, Recording

    row: dict[str, object] = {"file": file.name, "mb": round(file.stat().st_size / 1e6, 1)}
    try:
        with Recording(file) as recording:
            state = "complete" if recording.clean else "unfinished"
            ledger = recording.ledger
    except DAMAGE:
        return {**row, "state": "unreadable"}
    if ledger is not None:
        row |= {name: ledger[name] for name in ("acquired", "reconstructed")}
        row["dropped"] = sum(ledger["dropped"].values())
    return {**row, "state": state}


@app.command()
def replay(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES...", help="Recordings.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The new recording, a folder for several FILES; NAME_replay.h5 next to each if "
            "not given."
        ),
    ] = None,
    iterations: Iterations = None,
    solver: Solver = None,
    weights: Weights = None,
    sigma_first: Annotated[
        float | None, typer.Option(min=1e-6, max=1, help="First noise level, 0–1 scale.")
    ] = None,
    sigma_last: Annotated[
        float | None, typer.Option(min=1e-6, max=1, help="Last noise level, 0–1 scale.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="A better calibration than the recorded one.")
    ] = None,
    first: First = None,
    last: Last = None,
    event: Annotated[
        int | None, typer.Option(min=1, help="Number of an event of a triggered recording.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue stopped replays; complete replays are kept.")
    ] = False,
    keep_free_mib: Annotated[
        float, typer.Option(min=0, help="Stop before the disk has less free space than this, MiB.")
    ] = 0.0,
    as_json: JsonLines = False,
    device: Device = "auto",
) -> None:
    """Reconstruct recordings again from their raw snapshots, into new recordings; Ctrl-C keeps
    finished work.
    """
    from sci_stream.nodes.runtime.process import stop_on_signals
    from sci_stream.tools.replay.jobs import JobState, ReplayJob, plan_jobs, run_jobs
    from sci_stream.tools.replay.replay import ReplayPlan
    from sci_stream.tools.replay.solver import SolverChanges

    start_logging("replay")
    plan = ReplayPlan(
        solver=SolverChanges(solver, weights, iterations, sigma_first, sigma_last),
        calibration=calibration,
        device=device,
        first=first,
        last=last,
        event=event,
        resume=resume,
    )
    if len(files) == 1 and not (out is not None and out.is_dir()):
        jobs = [ReplayJob(files[0], dataclasses.replace(plan, out=out))]
    else:
        jobs = plan_jobs(files, out, plan)
    failed = []
    with stop_on_signals() as stop, progress_bar("replay") as report:
        for result in run_jobs(
            jobs,
            progress=lambda done, total, _report: report(done, total),
            stop=lambda: bool(stop),
            keep_free_mib=keep_free_mib,
        ):
            if result.state is JobState.FAILED:
                failed.append(result)
            elif not as_json:
                further = "; continue with --resume" if result.state is JobState.STOPPED else ""
                echo(
                    f"{result.state}: {result.snapshots} snapshots in {result.out}, "
                    f"{result.seconds:.1f} s{further}"
                )
            report_result(result, as_json=as_json, failure=len(jobs) > 1)
    if failed:
        raise (
            failed[0].cause
            if len(jobs) == 1 and failed[0].cause
            else some_failed(len(failed), len(jobs))
        )


def report_result(result: JobResult, *, as_json: bool, failure: bool = True) -> None:
    """Print a result for programs, and its failure for a person, who does not see it otherwise."""
    if as_json:
        typer.echo(json.dumps(result.to_json()))
    if failure and result.error:
        echo(f"failed: {result.source}: {result.error}")


def some_failed(count: int, total: int) -> InputError:
    """Return the error of a command of which some recordings failed."""
    return InputError(
        f"{count} of {total} recordings were not replayed", hint="The reasons are above."
    )


@app.command()
def export(
    file: RecordingPath,
    out: Annotated[Path, typer.Argument(help=VIDEO_FILES, show_default=False)],
    form: Form = "",
    coded: Annotated[
        bool, typer.Option("--coded", help="The coded snapshots instead of the video.")
    ] = False,
    error: Annotated[
        bool, typer.Option("--error", help="Its estimated error instead of the video.")
    ] = False,
    pictures: Annotated[
        bool, typer.Option("--pictures", help="TIFF, Zarr: 8-bit pictures, not the values.")
    ] = False,
    first: First = None,
    last: Last = None,
    fps: Fps = 25.0,
    gamma: Gamma = 2.2,
    flicker: Flicker = False,
    exposure: Annotated[
        float, typer.Option(min=-10, max=10, help="Of pictures: brightness in stops.")
    ] = 0.0,
    black: Annotated[
        float, typer.Option(min=0, max=0.95, help="Of pictures: light that is shown as black.")
    ] = 0.0,
    grey_world: Annotated[
        bool, typer.Option("--grey-world", help="Balance colours to a grey mean.")
    ] = False,
    demosaic: Annotated[str, typer.Option(help="bilinear or directional.")] = "directional",
    false_colour: Annotated[
        str, typer.Option(help="Of mono: none, inferno, viridis, turbo or bone.")
    ] = "none",
    force: Force = False,
) -> None:
    """Write a recording as a film (H.264 or lossless FFV1), page, GIF, OME-TIFF, OME-Zarr, array or
    PNG pictures.
    """
    from sci_stream.imaging.tone import ToneSettings
    from sci_stream.tools.export import ExportOptions
    from sci_stream.tools.export import export as export_recording

    if coded and error:
        raise InputError("An export has one content", expected="--coded or --error", got="both")
    tone = ToneSettings().changed({
        "exposure_ev": exposure, "black": black, "gamma": gamma, "false_colour": false_colour,
        "demosaic": demosaic,
        "white_balance": "grey_world" if grey_world else "none",
    })  # fmt: skip
    stored = "raw" if coded else "error" if error else "video"
    options = ExportOptions(form, stored, pictures, first, last, fps, tone, force, flicker)
    with progress_bar("export") as report:
        done = export_recording(file, out, options, report)
    left_out = (
        f"; {done.left_out} in between are missing from the recording" if done.left_out else ""
    )
    echo(
        f"wrote {done.path}: {done.snapshots} snapshots, {done.frames} frames, "
        f"{done.format}{left_out}"
    )


@app.command()
def repair(file: RecordingPath) -> None:
    """Write clean copies of the segments left by a crash; the originals are kept."""
    from sci_stream.delivery.ledger import outcomes_in_words
    from sci_stream.recording.repair import repair_recording
    from sci_stream.recording.segments import existing_segments

    repaired = 0
    segments = existing_segments(file) or [file]
    for segment in segments:
        with progress_bar(f"repair {segment.name}") as report:
            done = repair_recording(segment, report)
        if done is not None:
            repaired += 1
            echo(
                f"{done.path} is clean: {outcomes_in_words(done.ledger)}; original: {done.original}"
            )
    if not repaired:
        echo(f"nothing to repair: {file} was closed properly")
