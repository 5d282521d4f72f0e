"""A runner of commands that need no process of their own."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sci_stream.cli import main
from tests.e2e.kit import Ended

CommandHere = Callable[..., Ended]


@pytest.fixture
def command_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandHere:
    """Return a function that runs ``sci-stream`` as the command line does, here, where torch is
    imported already.
    """

    def run(*arguments: str | Path, cwd: Path) -> Ended:
        monkeypatch.chdir(cwd)
        monkeypatch.setenv("COLUMNS", "200")  # as in the environment of processes
        monkeypatch.setattr(sys, "argv", ["sci-stream", *map(str, arguments)])
        capfd.readouterr()
        root = logging.getLogger()
        before = root.handlers[:], root.level
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:  # a command logs to its own standard error
            root.handlers[:] = before[0]
            root.setLevel(before[1])
        printed = capfd.readouterr()
        return Ended(int(ended.value.code or 0), printed.out + printed.err)

    return run
