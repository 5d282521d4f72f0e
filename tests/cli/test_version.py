from __future__ import annotations

import re
import tomllib
from pathlib import Path

from typer.testing import CliRunner

import sci_stream
from sci_stream.cli import app

ROOT = Path(__file__).parents[2]


def test_version_option_prints_package_version() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0
    assert shown.output == f"sci-stream {sci_stream.__version__}\n"


def test_version_is_the_same_in_package_metadata_and_citation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert citation is not None
    assert sci_stream.__version__ == project["version"] == citation[1]
