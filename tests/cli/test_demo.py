from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.rig

ROOT = Path(__file__).parents[2]
FIRST_WORDS = "measuring this machine …"


def _imports_and_output(*arguments: str) -> str:
    """Return the output of a command, with a line for each import at its time."""
    command = [sys.executable, "-X", "importtime", "-m", "sci_stream", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stderr


def test_demo_speaks_before_it_loads_libraries() -> None:
    before, said, after = _imports_and_output("demo", "--no-such-option").partition(FIRST_WORDS)
    assert said
    libraries = ("typer", "numpy", "sci_stream.cli")
    assert not [line for line in before.splitlines() if line.endswith(libraries)]
    assert [line for line in after.splitlines() if line.endswith("typer")]
    assert FIRST_WORDS not in after


def test_other_commands_do_not_speak_of_measuring() -> None:
    assert FIRST_WORDS not in _imports_and_output("demo", "--help")
    assert FIRST_WORDS not in _imports_and_output("config")


def test_installed_program_is_the_one_that_speaks_first() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"sci-stream": "sci_stream.__main__:main"}
