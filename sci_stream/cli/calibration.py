"""``sci-stream calibrate`` and ``sci-stream calibration …``: measure, import and check
calibrations.
"""

from __future__ import annotations

import contextlib
import json
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from sci_stream.cli.common import (
    Force,
    JsonPath,
    RigPath,
    app,
    echo,
    new_console,
    show,
    start_logging,
)
from sci_stream.errors import CalibrationError, ConfigError
from sci_stream.file_guard import check_output, writing
from sci_stream.model import BayerPhase

if TYPE_CHECKING:
    from sci_stream.calibration.measurement import Measured
    from sci_stream.calibration.quality import QualityFigure
    from sci_stream.optics.calibration import Calibration

calibration_app = typer.Typer(help="Import and check calibration files.", no_args_is_help=True)
app.add_typer(calibration_app, name="calibration")

CalibrationPath = Annotated[
    Path, typer.Argument(metavar="FILE.h5", help="A calibration, or a recording with one.")
]
OutPath = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE.h5", help="Where to write the calibration.")
]
ReportPath = Annotated[
    Path | None, typer.Option(help="Picture file; by default next to the calibration.")
]
Unattended = Annotated[
    bool, typer.Option("--yes", "-y", help="Unattended: the rig must command the modulator.")
]
Brightness = Annotated[
    float,
    typer.Option(
        min=0.0, help="Brightness of the white field, 1 = white; 0 for the camera's value."
    ),
]
ExposureUs = Annotated[
    float, typer.Option(min=0.0, help="Exposure time, µs; by default the camera's value.")
]

_INTERRUPTED = 130


@app.command()
def calibrate(
    rig: RigPath,
    output: OutPath,
    frames: Annotated[
        int, typer.Option(min=1, max=10_000, help="Frames averaged for each pattern.")
    ] = 32,
    settle: Annotated[
        int, typer.Option(min=0, help="Frames discarded after each change of pattern.")
    ] = 2,
    masks: Annotated[
        int, typer.Option(min=0, help="Number of masks B; 0 for the camera's value.")
    ] = 0,
    yes: Unattended = False,
    manual: Annotated[
        bool, typer.Option(help="Ask before each pattern, as to cover the lens for dark.")
    ] = False,
    white_field: Annotated[
        str, typer.Option(help="even: an integrating sphere; uneven: anything else.")
    ] = "even",
    brightness: Brightness = 0.0,
    held: Annotated[
        bool, typer.Option(help="Patterns are shown for whole exposures, not for 1/B of one.")
    ] = True,
    reverse: Annotated[bool, typer.Option(help="Request the patterns from last to first.")] = False,
    exposure_us: ExposureUs = 0.0,
    gain_db: Annotated[
        float | None, typer.Option(help="Gain, dB; by default the camera's value.")
    ] = None,
    report: ReportPath = None,
    force: Force = False,
) -> None:
    """Measure the masks of a rig: dark, white and each pattern in turn."""
    from sci_stream.calibration.measurement import Field, MeasurementConditions
    from sci_stream.calibration.quality import assess
    from sci_stream.config import load_rig
    from sci_stream.devices.modulated_camera import ModulatedCamera
    from sci_stream.devices.modulators import make_coded_camera
    from sci_stream.recording.calibration_file import save_calibration
    from sci_stream.tools.calibrate import CalibrationPlan
    from sci_stream.tools.calibrate import calibrate as take
    from sci_stream.web.calibration_page import CalibrationPage

    start_logging("calibrate")
    if white_field not in set(Field):
        raise ConfigError(
            "Unknown --white-field", expected=" or ".join(Field), got=repr(white_field)
        )
    check_output(output, replace=force)  # before the operator spends half an hour
    loaded = load_rig(rig)
    camera = make_coded_camera(loaded)
    if yes and (manual or not isinstance(camera, ModulatedCamera)):
        raise ConfigError(
            "--yes needs a mask modulator that the rig commands",
            got=f"--manual, or no [modulator] driver in {rig}",
            hint="Without --yes you are prompted for each pattern.",
        )
    plan = CalibrationPlan(
        frames=frames,
        settle=settle,
        n_frames=masks or None,
        automatic=not manual,
        unattended=yes,
        progress_file=output.with_name(output.name + ".part"),
        brightness=brightness or None,
        reverse=reverse,
        conditions=MeasurementConditions(
            Field(white_field),
            lit_share=None if held else 1,
            exposure_ns=round(1e3 * exposure_us) or None,
            gain_db=gain_db,
        ),
    )
    console = new_console(stderr=True)

    def ask(words: str, meanwhile: Callable[[], object]) -> None:
        console.print(
            f"[bold]{escape(words)}[/], then press Enter (Ctrl-C to stop) ", end="", highlight=False
        )
        while sys.stdin.isatty() and not select.select([sys.stdin], [], [], 0.0)[0]:
            meanwhile()
        console.input()

    def progress(words: str, done: int, total: int) -> None:
        if done == 0:
            echo(f"{words.partition(':')[0]}: {total} frames")

    with contextlib.ExitStack() as closing:
        page = CalibrationPage(loaded.preview) if loaded.preview.enabled else None
        if page is not None:
            closing.callback(page.close)
            echo(f"white level, focus and contrast: {page.url}")
        try:
            calibration, measured = take(
                camera, plan, ask, progress, *(() if page is None else (page.show,))
            )
        except (KeyboardInterrupt, EOFError):
            echo("stopped: the camera is closed; the same command resumes the calibration")
            raise typer.Exit(_INTERRUPTED) from None
    save_calibration(output, calibration, measured, overwrite=force)
    figures = assess(calibration, measured)
    _finish(output, calibration, measured, figures, report)


@calibration_app.command("import")
def calibration_import(
    source: Annotated[
        Path, typer.Argument(help=".mat, .npy, multi-page TIFF, or a folder of images.")
    ],
    output: OutPath,
    variable: Annotated[str, typer.Option(help="Name of the array, if the file has several.")] = "",
    axis: Annotated[
        int | None, typer.Option(min=0, max=2, help="Axis of the masks; by default the shortest.")
    ] = None,
    reverse: Annotated[bool, typer.Option(help="The last mask is exposed first.")] = False,
    dark: Annotated[
        Path | None, typer.Option(help="Dark frame to subtract: .npy, image, folder.")
    ] = None,
    white: Annotated[
        Path | None, typer.Option(help="All-open frame to divide by; else the maximum is 1.")
    ] = None,
    full_scale_dn: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="DN of a frame of brightness 1 through an open mask; 0: white fills the range.",
        ),
    ] = 0.0,
    black_level_dn: Annotated[
        float | None, typer.Option(help="Black level, DN; else the dark frame, or 0.")
    ] = None,
    read_noise_dn: Annotated[float | None, typer.Option(help="Read noise, DN.")] = None,
    gain_e_per_dn: Annotated[
        float | None, typer.Option(help="Electrons per DN, which sets the shot noise.")
    ] = None,
    bit_depth: Annotated[
        int, typer.Option(min=0, max=32, help="Bit depth of the snapshots; 0 if unknown.")
    ] = 0,
    bayer: Annotated[str, typer.Option(help="RGGB, GRBG, GBRG, BGGR or none.")] = "none",
    serial: Annotated[str, typer.Option(help="Serial number of the camera it belongs to.")] = "",
    report: ReportPath = None,
    force: Force = False,
) -> None:
    """Import masks that were published or measured otherwise."""
    from sci_stream.calibration.quality import assess
    from sci_stream.files.calibration_import import ImportOptions, import_masks
    from sci_stream.recording.calibration_file import save_calibration

    check_output(output, replace=force)
    options = ImportOptions(
        variable=variable,
        axis=axis,
        reverse=reverse,
        dark=dark,
        white=white,
        full_scale_dn=full_scale_dn or None,
        black_level_dn=black_level_dn,
        read_noise_dn=read_noise_dn,
        gain_e_per_dn=gain_e_per_dn,
        bit_depth=bit_depth or None,
        bayer=BayerPhase.named(bayer),
        camera_serial=serial,
    )
    calibration = import_masks(source, options, lambda text: echo(f"note: {text}"))
    save_calibration(output, calibration, overwrite=force)
    _finish(output, calibration, None, assess(calibration), report)


@calibration_app.command("check")
def calibration_check(
    path: CalibrationPath,
    strict: Annotated[bool, typer.Option(help="Fail on warnings too.")] = False,
    json_path: JsonPath = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a picture of the masks to this file.")
    ] = None,
) -> None:
    """Print the properties of a calibration and check it;
    exit status 2 if it is not fit for use.
    """
    from sci_stream.calibration.quality import Verdict, assess, worst
    from sci_stream.recording.calibration_file import load_calibration, load_measured
    from sci_stream.tools.calibration_report import write_report

    calibration = load_calibration(path)
    measured = load_measured(path)
    figures = assess(calibration, measured)
    verdict = worst(figures)
    _print_properties(calibration, measured)
    _print(figures)
    if report is not None:
        write_report(report, calibration, measured)
    if json_path is not None:
        content = {
            "file": str(path),
            "hash": calibration.hash,
            "verdict": verdict.value,
            "figures": [figure.as_dict() for figure in figures],
        }
        with writing(json_path):
            json_path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    failed = verdict is Verdict.BAD or (strict and verdict is Verdict.WARN)
    raise typer.Exit(CalibrationError.exit_status if failed else 0)


def _print_properties(calibration: Calibration, measured: Measured | None) -> None:
    height, width = calibration.shape
    properties: dict[str, str | int | None] = {
        "hash": calibration.hash,
        "masks": f"{calibration.n_frames} of {height}×{width}",
        "Bayer phase": calibration.bayer or "none",
        "bit depth": calibration.bit_depth,
        "full scale": f"{calibration.full_scale_dn:.2f} DN",
        "camera": calibration.camera_serial,
        "exposure": f"{calibration.exposure_ns / 1000:g} µs" if calibration.exposure_ns else "",
        "gain": f"{calibration.gain_db:g} dB" if calibration.gain_db is not None else "",
        "made": calibration.created,
        "source": calibration.source,
        "patterns": calibration.patterns[:12],
        "order": " ".join(map(str, measured.mask_order)) if measured is not None else "",
    }
    for name, value in properties.items():
        if value not in (None, ""):
            show(f"{name:<21}{escape(str(value))}")


def _finish(
    path: Path,
    calibration: Calibration,
    measured: Measured | None,
    figures: list[QualityFigure],
    report: Path | None,
) -> None:
    """Print the quality of a calibration and write its picture."""
    from sci_stream.tools.calibration_report import write_report

    _print(figures)
    picture = report or path.with_suffix(".png")
    write_report(picture, calibration, measured)
    typer.echo(f"wrote {path} and {picture}; [calibration] file = {json.dumps(str(path))}")


def _print(figures: list[QualityFigure]) -> None:
    colours = {"ok": "green", "warn": "yellow", "bad": "bold red"}
    for figure in figures:
        word = figure.verdict.value
        show(f"[{colours[word]}]{word:<5}[/]{figure.name:<16}{escape(figure.text)}")
