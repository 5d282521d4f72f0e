"""The result of every benchmark: its tables printed, and written as JSON, Markdown and plots."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from sci_stream.errors import ConfigError
from sci_stream.file_guard import writing
from sci_stream.recon.settings import SolverSettings
from sci_stream_lab.bench.environment import Environment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row_co = TypeVar("Row_co", covariant=True)
Progress = Callable[[str], None]
"""Takes a line of progress, for a person."""
Settings = dict[str, int | float | str | bool | None]
"""The parameters of a run, by name, in plain JSON types."""


def mean(values: Iterable[float]) -> float:
    """Return the arithmetic mean."""
    return float(np.mean(list(values)))


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column: the attribute ``key`` of each row, under a heading.

    ``spec`` is the format specification of a value; a None prints as nothing. ``unit`` accompanies
    the figure in JSON; the heading contains it where the table shows it.
    """

    key: str
    heading: str
    spec: str = ""
    unit: str = ""
    left: bool = False
    wraps: bool = False

    def cell(self, row: object) -> str:
        """Return the text of a row's cell."""
        value = getattr(row, self.key)
        return "" if value is None else format(value, self.spec)


@dataclass(frozen=True, slots=True)
class ResultTable(Generic[Row_co]):
    """Rows of one type and the columns to print of them.

    Rows have more fields than columns: JSON has them all.

    ``wrong`` are the indices of rows to print in red; ``dense`` drops the frame, for tables of many
    columns.
    """

    title: str
    columns: tuple[ResultColumn, ...]
    rows: tuple[Row_co, ...]
    caption: str = ""
    wrong: frozenset[int] = frozenset()
    dense: bool = False


@dataclass(frozen=True)
class BenchResult:
    """Everything that one benchmark measured, with the means to judge and repeat it.

    ``tables`` has the figures, ``notes`` the lines printed below them, ``settings`` the parameters
    of the run. Each benchmark derives a class whose further fields have all figures by name, for
    programs; JSON has them too.
    """

    name: str
    environment: Environment
    tables: tuple[ResultTable[object], ...]
    notes: tuple[str, ...] = ()
    settings: Settings = field(default_factory=dict)


def solver_settings(prior: str, weights: Path | None, settings: SolverSettings) -> Settings:
    """Return denoiser, weights and solver settings, as every benchmark of reconstruction records
    them.
    """
    return {"denoiser": prior, "weights": str(weights or ""), **dataclasses.asdict(settings)}


def print_result(
    result: BenchResult, console: Console, more: Iterable[ResultTable[object]] = ()
) -> None:
    """Print every table of a result and ``more`` about it, then its notes."""
    for table in (*result.tables, *more):
        console.print(_rich(table))
    for note in result.notes:
        console.print(note, highlight=False, markup=False)


def _rich(table: ResultTable[object]) -> RichTable:
    rich = RichTable(title=table.title, caption=table.caption or None)
    if table.dense:
        rich.box, rich.pad_edge, rich.padding = SIMPLE_HEAD, False, (0, 1, 0, 0)
    for column in table.columns:
        rich.add_column(
            column.heading, justify="left" if column.left else "right", no_wrap=not column.wraps
        )
    for number, row in enumerate(table.rows):
        cells = [column.cell(row) for column in table.columns]
        rich.add_row(*map(escape, cells), style="bold red" if number in table.wrong else "")
    return rich


def write_json(result: BenchResult, path: Path) -> None:
    """Write a result as JSON: its fields, and of each table its title and the units of its columns.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    content = {entry.name: getattr(result, entry.name) for entry in dataclasses.fields(result)}
    with writing(path):
        path.write_text(json.dumps(content, indent=2, default=_plain) + "\n", encoding="utf-8")


def _plain(value: object) -> object:
    """Return a value that JSON has no type for as one that it has."""
    if isinstance(value, ResultTable):
        units = {column.key: column.unit for column in value.columns if column.unit}
        return {"title": value.title, "units": units}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def write_markdown(
    result: BenchResult, path: Path, more: Iterable[ResultTable[object]] = ()
) -> None:
    """Write tables, notes, settings and environment as Markdown, for `docs/results`.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    here = result.environment
    versions = ", ".join(f"{name} {version}" for name, version in here.versions.items())
    settings = ", ".join(
        f"{name} = {value}" for name, value in result.settings.items() if value not in {None, ""}
    )
    parts = [
        f"Measured on {here.processor or 'an unnamed processor'} ({here.machine}), {versions}; "
        f"{settings}.\n"
    ]
    parts += [f"## {table.title}\n\n{markdown(table)}" for table in (*result.tables, *more)]
    parts += ["".join(f"- {note}\n" for note in result.notes)] if result.notes else []
    with writing(path):
        path.write_text("\n".join(parts), encoding="utf-8")


def markdown(table: ResultTable[object]) -> str:
    """Return a table as Markdown."""
    headings = [column.heading.replace("\n", " ") for column in table.columns]
    rules = [":---" if column.left else "---:" for column in table.columns]
    lines: list[Sequence[str]] = [headings, rules]
    lines += [[column.cell(row) for column in table.columns] for row in table.rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def require_plot_format(path: Path) -> None:
    """Raise unless a figure can be written to this file; called before the measurements.

    Raises
    ------
    ConfigError
        If matplotlib does not support the file's suffix.
    """
    from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415 - half a second, for plots alone

    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise ConfigError(
            f"Unsupported plot format: --plot {path}",
            expected=", ".join(sorted(known)),
            got=repr(path.suffix),
        )


@contextmanager
def figure_file(path: Path, size_in: tuple[float, float]) -> Iterator[Figure]:
    """Yield an empty figure to draw into, then write it.

    Raises
    ------
    ConfigError
        If matplotlib does not support the file's suffix.
    StorageError
        If the file cannot be written.
    """
    require_plot_format(path)
    from matplotlib.figure import Figure  # noqa: PLC0415 - without pyplot, which needs a display

    figure = Figure(figsize=size_in, layout="constrained")
    yield figure
    with writing(path):
        figure.savefig(path, dpi=110)
