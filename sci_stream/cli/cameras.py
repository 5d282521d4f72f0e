"""Camera commands: ``cameras list``, ``cameras features``, ``cameras grab``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sci_stream.cli.common import (
    AsJson,
    Force,
    app,
    echo,
    new_console,
    print_json,
    start_logging,
    table_console,
)
from sci_stream.errors import CameraError, ConfigError

if TYPE_CHECKING:
    from sci_stream.model import CameraCapabilities, Feature
    from sci_stream.ports import Camera
    from sci_stream.tools.cameras import FoundDriver, GrabReport, Intervals

cameras_app = typer.Typer(
    help="List cameras and their features, and test their frames.", no_args_is_help=True
)
app.add_typer(cameras_app, name="cameras")

Cti = Annotated[
    list[Path] | None,
    typer.Option(
        help="GenTL producer: a .cti file or a folder of them; repeatable. Default: "
        "GENICAM_GENTL64_PATH."
    ),
]
Driver = Annotated[str, typer.Option(help="Use only this driver.")]
Called = Annotated[
    str,
    typer.Argument(
        metavar="[SERIAL]", help="Serial number, user-defined name or id of the camera."
    ),
]
Rig = Annotated[
    Path | None,
    typer.Option(
        help="Use the camera of this rig, with its configuration, instead of SERIAL.",
        metavar="RIG.toml",
    ),
]
_LONGEST_VALUE = 40


@cameras_app.command("list")
def list_cameras(cti: Cti = None, driver: Driver = "", as_json: AsJson = False) -> None:
    """List the available cameras with their interfaces and producers."""
    from sci_stream.tools.cameras import find_cameras

    start_logging("cameras")
    drivers = find_cameras(cti or [], driver)
    if as_json:
        print_json([dataclasses.asdict(one) for one in drivers])
    else:
        _print_found(drivers)


@cameras_app.command()
def features(
    camera: Called = "",
    rig: Rig = None,
    cti: Cti = None,
    driver: Driver = "",
    as_json: AsJson = False,
) -> None:
    """Show the features of a camera: name, type, access, value, range, unit."""
    from sci_stream.ports import FeatureLister

    start_logging("cameras")
    name, made = _camera(camera, rig, cti, driver)
    if not isinstance(made, FeatureLister):
        raise CameraError(f"The driver {name} cannot list camera features")
    inspection = made.inspect()
    if as_json:
        print_json([dataclasses.asdict(feature) for feature in inspection.features])
    else:
        _print_features(inspection.features)


@cameras_app.command()
def grab(
    camera: Called = "",
    count: Annotated[int, typer.Option("-n", "--frames", min=1, help="Number of frames.")] = 100,
    rig: Rig = None,
    cti: Cti = None,
    driver: Driver = "",
    out: Annotated[
        Path | None, typer.Option(help="Write the frames, as TIFF, and their times to this folder.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.01, help="Timeout for a frame, s.")] = 5.0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Grab frames from a camera and report rate, gaps, incomplete frames and jitter."""
    from sci_stream.file_guard import check_output
    from sci_stream.tools.cameras import FRAME_FILES, write_frames
    from sci_stream.tools.cameras import grab as take

    start_logging("cameras")
    _, made = _camera(camera, rig, cti, driver)
    console = new_console(stderr=True)
    if out is not None:
        check_output(out, replace=force, folder=FRAME_FILES)

    def opened(capabilities: CameraCapabilities) -> None:
        size = f"{capabilities.height_px}×{capabilities.width_px} {capabilities.pixel_format}"
        console.print(
            f"{escape(capabilities.model)} {escape(capabilities.serial)}: {size}", highlight=False
        )

    with console.status("waiting for the first frame …") as line:
        report, frames = take(
            made, count, timeout_s=timeout, keep=out is not None, opened=opened,
            progress=lambda received: line.update(f"{received} of {count} frames"),
        )  # fmt: skip
    if out is not None:
        write_frames(out, frames, replace=force)
        echo(f"{len(frames)} frames written to {out}")
    if as_json:
        print_json(dataclasses.asdict(report))
    else:
        _print_report(report)


def _camera(
    called: str, rig: Path | None, cti: list[Path] | None, driver: str
) -> tuple[str, Camera]:
    """Return the selected camera, not yet open, and its driver's name."""
    from sci_stream.config import load_rig
    from sci_stream.devices.modulators import make_coded_camera
    from sci_stream.tools.cameras import choose, find_cameras, make_found_camera

    if bool(called or cti or driver) if rig else not called:
        raise ConfigError(
            "No camera selected", expected="either its serial number, user-defined name or id, or "
                                           "--rig alone",
            hint="sci-stream cameras list shows them.",
        )  # fmt: skip
    if rig is not None:
        loaded = load_rig(rig)
        return loaded.camera.driver, make_coded_camera(loaded)
    name, camera = choose(called, find_cameras(cti or [], driver))
    return name, make_found_camera(name, camera)


def _print_found(drivers: Sequence[FoundDriver]) -> None:
    table = Table(
        "producer",
        "interface",
        "vendor",
        "model",
        "serial",
        "name",
        "id",
        "access",
        header_style="bold",
    )
    count = 0
    for producer in (producer for one in drivers for producer in one.producers):
        label = f"{producer.name or Path(producer.path).name} {producer.version}".strip()
        if producer.problem:
            table.add_row(escape(label), f"[red]{escape(producer.problem)}[/]")
        elif not producer.interfaces:
            table.add_row(escape(label), "no camera")
        for interface in producer.interfaces:
            for camera in interface.cameras:
                known = (
                    camera.vendor,
                    camera.model,
                    camera.serial,
                    camera.user_defined_name,
                    camera.id,
                    camera.access,
                )
                table.add_row(
                    escape(label), escape(interface.name), *(escape(text) for text in known)
                )
                count += 1
            if not interface.cameras:
                table.add_row(escape(label), escape(interface.name), "no camera")
    for one in drivers:
        if not one.producers:
            table.add_row(
                escape(one.driver),
                "does not search",
                "",
                escape(f'[camera] driver = "{one.driver}"'),
            )
    console = table_console()
    console.print(table)
    console.print(f"{count} camera{'' if count == 1 else 's'}", highlight=False)


def _print_features(features: Sequence[Feature]) -> None:
    table = Table("name", "type", "access", "value", "range", "unit", header_style="bold")
    category = None
    for feature in features:
        if feature.visibility == "Invisible":
            continue
        if feature.category != category:
            category = feature.category
            table.add_row(f"[bold]{escape(category)}[/]")
        value = "" if feature.value is None else str(feature.value)
        value = value if len(value) <= _LONGEST_VALUE else value[:_LONGEST_VALUE] + "…"
        cells = (feature.kind, feature.access, value, _range(feature), feature.unit)
        table.add_row("  " + escape(feature.name), *(escape(cell) for cell in cells))
    table_console().print(table)


def _range(feature: Feature) -> str:
    if feature.choices:
        return ", ".join(feature.choices)
    if feature.minimum is None and feature.maximum is None:
        return ""
    low, high = ("" if end is None else f"{end:.10g}" for end in (feature.minimum, feature.maximum))
    step = f", step {feature.step:g}" if feature.step not in (None, 1) else ""
    return f"{low} … {high}{step}"


def _print_report(report: GrabReport) -> None:
    table = Table(show_header=False)
    table.add_row("frames", str(report.frames))
    table.add_row("rate", f"{report.rate_hz:.2f} Hz")
    table.add_row("missed", f"{report.missed} in {report.gaps} gaps, {report.repeated} repeated")
    for clock, intervals in (
        (f"camera's clock ({report.clock})", report.camera),
        ("host's clock", report.host),
    ):
        table.add_row(f"intervals, {clock}", _words(intervals))
    for name, count in {"incomplete": 0, **report.counters}.items():
        table.add_row(name, str(count))
    for name, value in report.chunks.items():
        table.add_row(f"chunk {name}", escape(str(value)))
    table_console().print(table)


def _words(intervals: Intervals | None) -> str:
    if intervals is None:
        return "unknown"
    median, deviation, longest = (
        1e3 * s for s in (intervals.median_s, intervals.deviation_s, intervals.longest_s)
    )
    return (
        f"median {median:.3f} ms, jitter {deviation:.3f} ms (standard deviation), longest "
        f"{longest:.3f} ms"
    )
