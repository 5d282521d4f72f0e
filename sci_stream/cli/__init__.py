"""The command line, which is also the composition root of the instrument."""

from __future__ import annotations

import logging
import sys

from rich.console import Console
from rich.markup import escape

from sci_stream.cli import (
    bench,
    calibration,
    cameras,
    control,
    keys,
    recordings,
    rigs,
    training,
)
from sci_stream.cli.common import app
from sci_stream.errors import SciStreamError
from sci_stream.nodes.runtime.logs import logs_json

__all__ = [
    "app",
    "bench",
    "calibration",
    "cameras",
    "control",
    "keys",
    "main",
    "recordings",
    "rigs",
    "training",
]


def main() -> None:
    """Run the command line; turn every error of this project into one message and its exit status."""
    try:
        app()
    except SciStreamError as error:
        if logs_json():
            logging.getLogger("sci_stream").error(str(error))
        else:
            Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_status)
