"""The command line, which is also the composition root of the instrument."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, NoReturn

import typer
from rich.markup import escape

from sci_stream import __version__
from sci_stream.cli import (  # noqa: F401 - a module adds its commands to the application
    calibration,
    cameras,
    control,
    keys,
    masks,
    recordings,
    rigs,
    setup,
    solve,
)
from sci_stream.cli.common import app, new_console, state
from sci_stream.errors import SciStreamError, missing_library
from sci_stream.nodes.runtime.logs import logs_json

__all__ = ["app", "main"]


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"sci-stream {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Verbose logging.")] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    state["verbose"] = verbose


def main() -> None:
    """Run the command line; turn every error of this project into one message and its
    exit status.
    """
    try:
        app()
    except ModuleNotFoundError as error:
        explained = missing_library(error)
        if explained is None:
            raise
        _fail(explained)
    except SciStreamError as error:
        _fail(error)


def _fail(error: SciStreamError) -> NoReturn:
    if logs_json():
        logging.getLogger("sci_stream").error(str(error))
    else:
        new_console(stderr=True).print(
            f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True
        )
    sys.exit(error.exit_status)
