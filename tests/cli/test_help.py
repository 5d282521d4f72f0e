"""Help texts are printed as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from sci_stream.cli import app

ROOT = typer.main.get_command(app)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with the words that call it."""
    yield path, command
    if isinstance(command, TyperGroup):
        for name in command.list_commands(None):
            yield from commands(command.get_command(None, name), (*path, name))


def test_help_shows_names_in_brackets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sections of a rig, ``[reconstruct]``: the library that prints help takes words in brackets
    for styles.
    """
    monkeypatch.setenv("COLUMNS", "400")
    hidden = {}
    for path, command in commands(ROOT):
        helps = [getattr(parameter, "help", None) or "" for parameter in command.params]
        written = " ".join((command.help or "", *helps)).replace("\\[", "[")
        # All commands are built once: typer's own runner builds them for each call.
        with pytest.raises(SystemExit, match=r"^0$"):
            ROOT.main([*path, "--help"], prog_name="sci-stream")
        shown = capsys.readouterr().out
        hidden[" ".join(path)] = set(re.findall(r"\[[a-z_]+\]", written)) - set(
            re.findall(r"\[[a-z_]+\]", shown)
        )
    assert len(hidden) > 10
    assert {name: missing for name, missing in hidden.items() if missing} == {}
