"""Commands for after the run: ``inspect``, ``replay``, ``export``, ``repair``, ``compare``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from sci_stream.cli.common import Device, app, progress_bar, say, state, table_console
from sci_stream.errors import InputError
from sci_stream.model import JsonObject

RecordingPath = Annotated[Path, typer.Argument(metavar="FILE", help="A recording.", show_default=False)]
First = Annotated[int | None, typer.Option("--first", min=0, help="Sequence number of the first snapshot.")]
Last = Annotated[int | None, typer.Option("--last", min=0, help="Sequence number of the last snapshot.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command()
def inspect(file: RecordingPath, as_json: AsJson = False) -> None:
    """Print the content of a recording: snapshots, ledger, gaps, rates, solver, calibration."""
    from sci_stream.cli.recording_tables import describe
    from sci_stream.storage.recording.inspection import inspect_recording

    found = inspect_recording(file)
    if as_json:
        typer.echo(json.dumps(_finite(found.to_json()), indent=2))
        return
    console = Console()
    for name, value in describe(found):
        console.print(f"{name:<14}{escape(value)}", highlight=False, soft_wrap=True)


@app.command()
def replay(
    file: RecordingPath,
    out: Annotated[
        Path | None, typer.Option(help="The new recording; NAME_replay.h5 next to FILE if not given.")
    ] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="For every snapshot; as recorded if not given.")] = None,
    denoiser: Annotated[str | None, typer.Option(help="Another prior: tv, ffdnet-lite, ffdnet.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Checkpoint of the prior.")] = None,
    sigma_first: Annotated[float | None, typer.Option(min=1e-6, max=1, help="First noise level, 0–1 scale.")] = None,
    sigma_last: Annotated[float | None, typer.Option(min=1e-6, max=1, help="Last noise level, 0–1 scale.")] = None,
    calibration: Annotated[Path | None, typer.Option(help="A better calibration than the recorded one.")] = None,
    first: First = None,
    last: Last = None,
    live: Annotated[
        bool, typer.Option("--live", help="At the recorded pace, with the iterations that fit it.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a replay that was stopped.")] = False,
    device: Device = "auto",
) -> None:
    """Reconstruct a recording again from its raw snapshots, into a new recording; Ctrl-C keeps what is done."""
    from sci_stream.nodes.runtime.logs import set_up_logging
    from sci_stream.nodes.runtime.process import stop_on_signals
    from sci_stream.tools.replay.replay import ReplayPlan
    from sci_stream.tools.replay.replay import replay as replay_recording
    from sci_stream.tools.replay.solver import SolverChanges

    set_up_logging("replay", verbose=state["verbose"])
    plan = ReplayPlan(
        out=out,
        solver=SolverChanges(denoiser, weights, iterations, sigma_first, sigma_last),
        calibration=calibration,
        device=device,
        first=first,
        last=last,
        live=live,
        resume=resume,
    )
    with stop_on_signals() as stop, progress_bar("replay") as show:
        result = replay_recording(
            file,
            plan,
            progress=lambda done, total, _: show(done, total),
            stop=lambda: bool(stop),
        )
    now = result.done - result.before
    rate = f", {now / result.seconds:.2f} snapshots/s" if result.seconds > 0 and now else ""
    further = "" if result.complete else "; continue with --resume"
    say(f"{result.done} of {result.total} snapshots in {result.path}{rate}{further}")


@app.command()
def export(
    file: RecordingPath,
    out: Annotated[Path, typer.Argument(help=".mp4, .mkv, .tif, .zarr, or a folder.", show_default=False)],
    form: Annotated[str, typer.Option("--as", help="mp4, mkv, ffv1, tiff, zarr, png; by the name's ending.")] = "",
    coded: Annotated[bool, typer.Option("--coded", help="The coded snapshots instead of the video.")] = False,
    pictures: Annotated[bool, typer.Option("--pictures", help="TIFF, Zarr: 8-bit pictures, not the values.")] = False,
    first: First = None,
    last: Last = None,
    fps: Annotated[float, typer.Option(min=0.01, max=1000, help="Frames a second of a film.")] = 25.0,
    gamma: Annotated[float, typer.Option(min=0.1, max=10, help="Of pictures: 2.2 for linear light.")] = 2.2,
    exposure: Annotated[float, typer.Option(min=-10, max=10, help="Of pictures: brightness in stops.")] = 0.0,
    black: Annotated[float, typer.Option(min=0, max=0.95, help="Of pictures: light that is shown as black.")] = 0.0,
    grey_world: Annotated[bool, typer.Option("--grey-world", help="Balance colours to a grey mean.")] = False,
    demosaic: Annotated[str, typer.Option(help="bilinear, edge_aware, malvar or directional.")] = "directional",
    false_colour: Annotated[str, typer.Option(help="Of mono: none, inferno, viridis, turbo or bone.")] = "none",
    force: Annotated[bool, typer.Option(help="Replace what is there.")] = False,
) -> None:
    """Write a recording as MP4, Matroska (H.264 or lossless FFV1), OME-TIFF, OME-Zarr or PNG pictures."""
    from sci_stream.imaging.tone import ToneSettings
    from sci_stream.tools.export import ExportOptions, Form
    from sci_stream.tools.export import export as export_recording

    if form and form not in set(Form):
        raise InputError(f"--as {form} is not known", expected="one of " + ", ".join(Form))
    options = ExportOptions(
        form=Form(form) if form else None,
        coded=coded,
        pictures=pictures,
        first=first,
        last=last,
        fps=fps,
        tone=ToneSettings().changed(
            {
                "exposure_ev": exposure,
                "black": black,
                "gamma": gamma,
                "white_balance": "grey_world" if grey_world else "none",
                "false_colour": false_colour,
                "demosaic": demosaic,
            }
        ),
        replace=force,
    )
    with progress_bar("export") as report:
        done = export_recording(file, out, options, report)
    left_out = f"; {done.left_out} in between are not in the recording" if done.left_out else ""
    say(f"wrote {done.path}: {done.snapshots} snapshots, {done.frames} frames, {done.form}{left_out}")


@app.command()
def repair(file: RecordingPath) -> None:
    """Make clean files of the segments that a crash left; the old ones are kept."""
    from sci_stream.storage.recording.repair import repair_recording
    from sci_stream.storage.recording.segments import existing_segments
    from sci_stream.storage.recording.virtual_dataset import write_virtual_recording

    repaired = 0
    segments = list(existing_segments(file)) or [file]
    for segment in segments:
        with progress_bar(f"repair {segment.name}") as report:
            done = repair_recording(segment, report)
        if done is not None:
            repaired += 1
            say(f"{done.path} is clean: {_account(done.ledger)}; original: {done.kept}")
    if not repaired:
        say(f"nothing to repair: {file} was closed properly")
    if len(segments) > 1:
        say(f"{write_virtual_recording(file)} holds all {len(segments)} segments")


@app.command()
def compare(
    reference: Annotated[Path, typer.Argument(metavar="A", help="The recording to compare with.", show_default=False)],
    other: Annotated[Path, typer.Argument(metavar="B", help="Another of the same series.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Compare the video of two recordings: PSNR and SSIM, snapshot by snapshot."""
    from sci_stream.cli.recording_tables import comparison_figures, comparison_table
    from sci_stream.tools.compare import compare_recordings

    with progress_bar("compare") as report:
        found = compare_recordings(reference, other, report)
    if as_json:
        typer.echo(json.dumps(_finite(comparison_figures(found)), indent=2))
    else:
        table_console().print(comparison_table(found, str(reference), str(other)))


def _account(ledger: JsonObject) -> str:
    dropped = "".join(f", {count} {reason}" for reason, count in ledger["dropped"].items())
    return f"{ledger['reconstructed']} reconstructed, {ledger['raw_only']} raw only{dropped}"


def _finite(value: Any) -> Any:
    """Replace infinities and NaN, which JSON lacks, by null."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
