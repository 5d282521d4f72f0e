"""One printer and one writer for all benchmarks."""

from __future__ import annotations

import dataclasses
import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from sci_stream.errors import StorageError
from sci_stream.recon.settings import SolverSettings
from sci_stream_lab.bench.environment import Environment, environment
from sci_stream_lab.bench.result import (
    BenchResult,
    ResultColumn,
    ResultTable,
    markdown,
    print_result,
    solver_settings,
    write_json,
    write_markdown,
)


@dataclass(frozen=True)
class Row:
    name: str
    psnr_db: float | None
    per_shot: tuple[float, ...] = ()

    @property
    def shots(self) -> int:
        return len(self.per_shot)


@dataclass(frozen=True)
class Result(BenchResult):
    rows: tuple[Row, ...] = ()
    best: Row | None = None


COLUMNS = (
    ResultColumn("name", "set", left=True),
    ResultColumn("shots", "shots"),
    ResultColumn("psnr_db", "PSNR\ndB", ".2f", "dB"),
)
ROWS = (Row("drop", 38.126, (38.0, 38.3)), Row("[red]kobe", None))
RESULT = Result(
    name="quality",
    environment=Environment("a machine", "cpu", {"numpy": "2"}),
    tables=(
        ResultTable("some sets", COLUMNS, ROWS, caption="kobe is missing", wrong=frozenset({1})),
    ),
    notes=("all [bold]done",),
    settings={"iterations": 12},
    rows=ROWS,
    best=ROWS[0],
)


def test_print_result_shows_tables_with_captions_and_notes() -> None:
    shown = io.StringIO()
    print_result(
        RESULT,
        Console(file=shown, width=80),
        [ResultTable("more", COLUMNS[:1], ROWS[:1], dense=True)],
    )
    text = shown.getvalue()
    for words in ("some sets", "38.13", "[red]kobe", "kobe is missing", "more", "all [bold]done"):
        assert words in text


def test_write_json_has_every_field_of_rows_and_units_of_columns(tmp_path: Path) -> None:
    write_json(RESULT, tmp_path / "out.json")
    content = json.loads((tmp_path / "out.json").read_text())
    assert set(content) == {entry.name for entry in dataclasses.fields(Result)}
    assert content["rows"][0] == {"name": "drop", "psnr_db": 38.126, "per_shot": [38.0, 38.3]}
    assert content["tables"] == [{"title": "some sets", "units": {"psnr_db": "dB"}}]
    assert content["environment"]["versions"] == {"numpy": "2"}


def test_write_json_into_missing_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        write_json(RESULT, tmp_path / "nowhere" / "out.json")


def test_write_json_of_unknown_type_raises(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="set cannot be written"):
        write_json(dataclasses.replace(RESULT, best={1}), tmp_path / "out.json")  # type: ignore[arg-type]


def test_write_markdown_has_environment_tables_and_notes(tmp_path: Path) -> None:
    write_markdown(RESULT, tmp_path / "out.md", [ResultTable("more", COLUMNS[:1], ROWS[:1])])
    text = (tmp_path / "out.md").read_text()
    for words in (
        "a machine",
        "numpy 2",
        "iterations = 12",
        "## some sets",
        "| drop | 2 | 38.13 |",
        "## more",
        "- all",
    ):
        assert words in text
    with pytest.raises(StorageError, match="cannot be written"):
        write_markdown(RESULT, tmp_path / "nowhere" / "out.md")


def test_markdown_has_row_for_each_row_and_nothing_for_none() -> None:
    assert markdown(RESULT.tables[0]).splitlines() == [
        "| set | shots | PSNR dB |",
        "| :--- | ---: | ---: |",
        "| drop | 2 | 38.13 |",
        "| [red]kobe | 0 |  |",
    ]


def test_environment_names_machine_and_versions() -> None:
    here = environment("cpu")
    assert here.device == "cpu"
    assert "cores" in here.machine
    assert {"python", "numpy", "torch"} <= set(here.versions)


def test_solver_settings_are_written(tmp_path: Path) -> None:
    result = dataclasses.replace(RESULT, settings=solver_settings("tv", None, SolverSettings()))
    write_json(result, tmp_path / "out.json")
    settings = json.loads((tmp_path / "out.json").read_text())["settings"]
    assert (settings["denoiser"], settings["weights"]) == ("tv", "")
