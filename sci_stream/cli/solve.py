"""``solve``: reconstruct the snapshots of a file, without a rig."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
)
from sci_stream.errors import DataError, InputError

if TYPE_CHECKING:
    from sci_stream.tools.solve import SolvedFile

Measurement = Annotated[
    Path,
    typer.Argument(
        metavar="MEAS",
        help="Coded snapshots: .mat, .npy, .npz, HDF5, TIFF, a folder of images, or a recording.",
        show_default=False,
    ),
]
MaskPath = Annotated[
    Path | None,
    typer.Option("--mask", help="The masks, if MEAS has none: the same formats, or a calibration."),
]
OutPath = Annotated[Path | None, typer.Option("-o", "--out", help=VIDEO_FILES)]


@app.command()
def solve(
    measurement: Measurement,
    mask: MaskPath = None,
    out: OutPath = None,
    form: Form = "",
    truth: Annotated[
        Path | None, typer.Option(help="The true frames, for PSNR, if MEAS has none.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Per snapshot; chosen for the solver.")
    ] = None,
    solver: Annotated[str, typer.Option(*SOLVER_NAMES, help=f"auto, {SOLVERS}")] = "auto",
    weights: Annotated[Path | None, typer.Option(help="Checkpoint of the solver.")] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            min=0, help="Noise of MEAS, standard deviation in its unit; 0: none; estimated."
        ),
    ] = None,
    white: Annotated[
        float | None,
        typer.Option(help="Value of a white frame through an open mask; estimated from MEAS."),
    ] = None,
    variable: Annotated[
        list[str] | None,
        typer.Option(help="Names of arrays in the files: y=NAME, masks=NAME, truth=NAME."),
    ] = None,
    bayer: Annotated[
        str, typer.Option(help="Phase of the colour filters: RGGB, GRBG, GBRG, BGGR.")
    ] = "",
    channels: Annotated[
        bool,
        typer.Option(
            "--channels",
            help="Each three snapshots are red, green and blue of one moment: write colour.",
        ),
    ] = False,
    first: Annotated[int, typer.Option(min=0, help="First snapshot, from 0.")] = 0,
    last: Annotated[int | None, typer.Option(min=0, help="Last snapshot.")] = None,
    fps: Fps = 25.0,
    gamma: Gamma = 1.0,
    check_masks: Annotated[
        bool,
        typer.Option(help="Write nothing if a video would be made up, as the masks do not fit."),
    ] = True,
    flicker: Flicker = False,
    force: Force = False,
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Reconstruct coded snapshots from files in this process, and write the video.

    Ends with status 7 if the data has a defect that was not corrected: the message names it with
    its remedy.
    """
    from sci_stream.nodes.runtime.process import limit_threads

    limit_threads()
    from sci_stream.files.measurement_file import COLOURS, load_measurement
    from sci_stream.recording.segments import existing_segments, first_segment
    from sci_stream.tools.solve import SolveOptions, solve_file

    inputs = [path for path in (measurement, mask, truth, weights) if path is not None]
    options = SolveOptions(
        iterations=iterations, solver=solver, weights=weights, device=device, noise=noise,
        white=white,
        bayer=bayer or None, first=first, last=last, form=form, fps=fps,
        gamma=gamma, channels=channels,
        check_masks=check_masks, light="as_recorded" if flicker else "even", replace=force,
        sources=[one for path in inputs for one in existing_segments(first_segment(path))],
    )  # fmt: skip
    variables = dict(entry.partition("=")[::2] for entry in variable or [])
    data = load_measurement(measurement, mask, truth, variables)
    if data.is_mosaic and not bayer:
        raise InputError(
            f"The names in {measurement} say that its arrays are mosaics of a colour sensor",
            hint="Name the colours of the first 2×2 pixels: --bayer RGGB, GRBG, GBRG or BGGR.",
        )
    for assumption in data.assumed:
        if not (channels and assumption == COLOURS):
            echo(f"note: {assumption}")
    with progress_bar("solve") as report:
        done = solve_file(data, out, options, report)
    for defect in done.defects:
        echo(f"{'note' if defect.corrected else 'warning'}: {defect.text}")
    if as_json:
        print_json(done.to_json())
    else:
        _report(done, given_truth=data.truth is not None)
    if not all(defect.corrected for defect in done.defects):
        raise typer.Exit(DataError.exit_status)


def _report(done: SolvedFile, *, given_truth: bool) -> None:
    """Print the result for a person."""
    if any(defect.fatal for defect in done.defects):
        echo("nothing written: the video would be made up")
        return
    seconds = sum(solved.solve_ns for solved in done.reports) / 1e9
    score = "" if done.psnr_db is None else f", {done.psnr_db:.2f} dB PSNR"
    solved = (
        f"{_number(len(done.reports), 'snapshot')} of {_number(done.n_frames, 'frame')} with "
        f"{done.solver}"
    )
    echo(f"{solved} in {seconds:.1f} s on {done.device}{score}")
    if done.correction:
        echo(f"masks corrected at last: {done.correction}")
    if moving := [solved.moving_image for solved in done.reports if solved.moving_image]:
        echo(f"moving image {moving[-1]}")
    if done.psnr_db is None and not given_truth:
        echo(f"white: {done.white:g} in the unit of the snapshots became 1.0")
    if done.out:
        echo(f"wrote {done.out}")
    else:
        echo("nothing written: -o OUT.mp4 writes a film, -o OUT.npy the values")


def _number(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
