"""Shared parts of all commands: the application, common options, table output."""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sci_stream.cli.plugin_commands import PluginGroup
from sci_stream.errors import EnvironmentFault

app = typer.Typer(
    name="sci-stream",
    cls=PluginGroup,
    help="Live video from snapshot compressive imaging cameras.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def named_rig(path: Path) -> Path:
    """Return a rig file; the word ``demo`` is that of the last demo."""
    if path == Path("demo") and not path.exists() and sys.platform == "linux":
        from sci_stream.nodes.runtime.runtime_folder import demo_rig_file

        return demo_rig_file()
    return path


RigPath = Annotated[
    Path,
    typer.Argument(
        metavar="RIG.toml",
        help="The rig file; `demo` for the running demo.",
        show_default=False,
        callback=named_rig,
    ),
]
Snapshots = Annotated[
    int, typer.Option(min=0, help="End after this many snapshots; 0 for no limit.")
]
Duration = Annotated[
    float, typer.Option(min=0.0, help="End after this many seconds; 0 for no limit.")
]
Summary = Annotated[Path | None, typer.Option(help="Write a summary of the run to this JSON file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Form = Annotated[
    str,
    typer.Option(
        "--as",
        help="mp4, mkv, ffv1, gif, tiff, zarr, npy, npz, hdf5, html, png, sheet; else the suffix.",
    ),
]
Fps = Annotated[float, typer.Option(min=0.01, max=1000, help="Playback rate of a video file, Hz.")]
Gamma = Annotated[float, typer.Option(min=0.1, max=10, help="Of pictures: 2.2 for linear light.")]
Flicker = Annotated[
    bool, typer.Option("--flicker", help="Keep the changes of the light within exposures.")
]
SOLVERS = (
    "unrolled, tv, ffdnet-lite, ffdnet, a plug-in, file.py:Class, or a network in .pt, .pt2, .onnx."
)
SOLVER_NAMES = ("--solver", "--denoiser")
"""The option, and its name before a solver could be a network."""
VIDEO_FILES = (
    ".mp4, .mkv, .gif, .tif, .zarr, .npy, .npz, .h5, .html; .png for one snapshot; --as for others."
)
Force = Annotated[bool, typer.Option(help="Replace existing files.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]

state = {"verbose": False}


def require_linux() -> None:
    """Raise `EnvironmentFault` unless nodes can run on this system."""
    if sys.platform != "linux":
        raise EnvironmentFault(
            "The nodes of a rig need Linux",
            got=platform.system(),
            hint="Here, solve files and arrays, and subscribe to, control and export from a rig "
            "on another machine.",
        )


def start_logging(name: str) -> None:
    """Log to standard error under this name, with the verbosity of the command line."""
    from sci_stream.nodes.runtime.logs import set_up_logging

    set_up_logging(name, verbose=state["verbose"])


def new_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that prints texts as they are: in names like ``a:b:c``, rich would show
    ``:b:`` as a symbol.
    """
    return Console(stderr=stderr, width=width, emoji=False)


def table_console() -> Console:
    """Return the console for tables: as wide as the terminal, or wide enough for tables without
    one.
    """
    console = new_console()
    return console if console.is_terminal else new_console(width=120)


def echo(line: str) -> None:
    """Print a line for a person, on standard error."""
    new_console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)


def show(line: str) -> None:
    """Print a line with markup, as a result."""
    new_console().print(line, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value as JSON, for programs; infinities and NaN, which JSON lacks, become null."""

    def finite(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: finite(entry) for key, entry in part.items()}
        if isinstance(part, list | tuple):
            return [finite(entry) for entry in part]
        return None if isinstance(part, float) and not math.isfinite(part) else part

    typer.echo(json.dumps(finite(value), indent=2, ensure_ascii=False))


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress where a person watches; yields the function to report it: done, of how many."""
    console = new_console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
