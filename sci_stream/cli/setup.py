"""``sci-stream setup``: questions in the terminal, from the camera to a running rig."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sci_stream.cli.calibration import calibrate
from sci_stream.cli.common import Force, app, echo, start_logging
from sci_stream.cli.rigs import run, run_checks, write_example

if TYPE_CHECKING:
    from sci_stream.model import FoundCamera

_SIMULATED = "simulated"


@app.command()
def setup(
    path: Annotated[Path, typer.Argument(metavar="RIG.toml", help="Rig file to write.")] = Path(
        "rig.toml"
    ),
    force: Force = False,
) -> None:
    """Ask a few questions, write a rig file, check it, measure the masks and run the rig.

    Enter takes the default.
    """
    from sci_stream.tools.cameras import find_cameras

    start_logging("setup")
    echo("looking for cameras …")
    found = [(driver.driver, camera) for driver in find_cameras([]) for camera in driver.cameras]
    driver, camera = _chosen(found)
    calibration = path.parent / "calibration.h5"
    measured = driver != _SIMULATED and typer.confirm(
        "Is there a calibration of its masks already?", default=False
    )
    if measured:
        calibration = Path(typer.prompt("Calibration file", default=str(calibration))).expanduser()
    tables: dict[str, dict[str, object]] = {
        "rig": {"name": typer.prompt("Name of the rig", default="rig")}
    }
    if driver != _SIMULATED:
        tables["calibration"] = {"file": str(calibration.resolve())}
    records = typer.confirm("Record from the start?", default=True)
    tables["record"] = {
        "enabled": records,
        "folder": typer.prompt("Folder for recordings", default="recordings"),
    }
    if records and typer.confirm(
        "Record every snapshot raw, so that none is lost under overload?", default=False
    ):
        tables["policy"] = {"mode": "record"}
    if typer.confirm("Watch from other computers too?", default=False):
        tables["preview"] = {"host": "0.0.0.0", "token": secrets.token_urlsafe(12)}
    write_example(path, driver, camera, force=force, tables=tables)
    path.chmod(0o600)  # it may hold a token
    echo(f"wrote {path}")
    if driver != _SIMULATED and not measured:
        if not typer.confirm("Measure the masks now? Dark, white, then each pattern", default=True):
            echo(f"next: sci-stream calibrate {path} -o {calibration}")
            return
        calibrate(path, calibration, force=force)
    if status := run_checks(path):
        echo(f"correct these, then: sci-stream check {path}")
        raise typer.Exit(status)
    if typer.confirm("Run it now?", default=True):
        run(path)


def _chosen(found: Sequence[tuple[str, FoundCamera]]) -> tuple[str, str]:
    """Ask for a camera; return its driver, and its serial number or id."""
    names = [
        f"{camera.vendor} {camera.model} {camera.serial} ({driver})" for driver, camera in found
    ]
    for number, name in enumerate([*names, "the simulated camera"], 1):
        echo(f"  {number}  {name}")
    while not 1 <= (number := typer.prompt("Camera", type=int, default=1)) <= len(found) + 1:
        echo(f"a number from 1 to {len(found) + 1}")
    if number > len(found):
        return _SIMULATED, ""
    driver, camera = found[number - 1]
    return driver, camera.serial or camera.id
