"""Commands of other packages: found by entry points, loaded when called, harmless when broken or
absent.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner

from sci_stream.cli import app
from sci_stream.cli.plugin_commands import GROUP, PACKAGES
from sci_stream.errors import ConfigError

Install = Callable[..., None]

hello = typer.Typer()


@hello.command()
def _hello(name: str) -> None:
    """Greet."""
    typer.echo(f"hello {name}")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that makes these the only installed commands of other packages."""

    def install(**values: str) -> None:
        entries = [
            importlib.metadata.EntryPoint(name, value, GROUP) for name, value in values.items()
        ]

        def entry_points(
            *, group: str, name: str | None = None
        ) -> list[importlib.metadata.EntryPoint]:
            return [
                entry for entry in entries if entry.group == group and name in {None, entry.name}
            ]

        monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)

    return install


def test_plugin_command_runs_under_its_entry_points_name(install: Install) -> None:
    install(greet=f"{__name__}:hello")
    assert "greet" in CliRunner().invoke(app, ["--help"]).output
    assert CliRunner().invoke(app, ["greet", "camera"]).output == "hello camera\n"


def test_broken_command_is_listed_with_its_error(install: Install) -> None:
    install(broken="no_such_module:app", greet=f"{__name__}:hello")
    listed = CliRunner().invoke(app, ["--help"])
    assert listed.exit_code == 0
    assert "broken" in listed.output
    assert "Cannot import" in listed.output
    assert CliRunner().invoke(app, ["greet", "camera"]).exit_code == 0
    called = CliRunner().invoke(app, ["broken", "--any", "argument"])
    assert isinstance(called.exception, ConfigError)
    assert "no_such_module" in str(called.exception)


@pytest.mark.parametrize(("name", "package"), PACKAGES.items())
def test_command_of_an_absent_package_says_how_to_get_it(
    name: str, package: str, install: Install
) -> None:
    install()
    assert f" {name} " not in CliRunner().invoke(app, ["--help"]).output
    called = CliRunner().invoke(app, [*name.split("."), "any", "--help"])
    assert isinstance(called.exception, ConfigError)
    assert f"pip install '{package}'" in str(called.exception)


def test_other_commands_do_not_load_plugins() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "sci_stream", "config", "init", "--help"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "sci_stream.cli.plugin_commands" in loaded
    assert "sci_stream_lab" not in loaded
    assert "sci_stream_bridges" not in loaded
