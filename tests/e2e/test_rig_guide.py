"""The simulated rigs of the rig guide, with the commands in the head of each file."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import CommandHere
from tests.e2e.kit import ROOT

pytestmark = pytest.mark.rig(seconds=60)

RIGS = ROOT / "deploy" / "rigs"
# As fast as frames are made; less is measured than by a user.
FAST = {
    "calibrate": ["--frames", "8"],
    "run": ["--snapshots", "6", "--summary", "summary.json"],
}


def commands_of(text: str) -> list[tuple[dict[str, str], list[str]]]:
    """Return environment and arguments of each command in the head of a rig file."""
    found = []
    for line in re.findall(r"^#   (.*sci-stream .*)$", text, re.MULTILINE):
        before, _, arguments = line.partition("sci-stream ")
        environment = dict(word.split("=") for word in before.split())
        found.append((environment, shlex.split(arguments)))
    return found


@pytest.mark.parametrize("name", ["dmd-genicam-simulated", "moving-mask-simulated"])
def test_simulated_rig_works_as_its_file_says(
    tmp_path: Path, command_here: CommandHere, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shutil.copy(RIGS / f"{name}.toml", tmp_path / "rig.toml")
    monkeypatch.setenv("SCI_STREAM_RIG__PREVIEW__PORT", "0")
    for environment, arguments in commands_of((tmp_path / "rig.toml").read_text()):
        if arguments[:2] == ["masks", "hold"]:
            continue  # until Ctrl-C
        with monkeypatch.context() as patch:
            if arguments[0] == "calibrate":
                patch.setenv("SCI_STREAM_RIG__CAMERA__OPTIONS__SNAPSHOT_RATE_HZ", "0")
            for variable, value in environment.items():
                patch.setenv(variable, value)
            ended = command_here(*arguments, *FAST.get(arguments[0], ()), cwd=tmp_path)
        assert ended.status == 0, ended.output
        if arguments[0] == "calibrate":
            assert re.search("ok +bad_pixels", ended.output), ended.output
            assert re.search("ok +white_evenness", ended.output), ended.output
    assert json.loads((tmp_path / "summary.json").read_text())["ledger"]["acquired"] == 6


@pytest.mark.parametrize("name", ["dmd-genicam", "moving-mask"])
def test_real_rig_has_a_simulated_one(name: str) -> None:
    commands = commands_of((RIGS / f"{name}.toml").read_text())
    simulated = commands_of((RIGS / f"{name}-simulated.toml").read_text())
    words = [[arguments[0] for _, arguments in listed] for listed in (commands, simulated)]
    assert [word for word in words[1] if word != "masks"] == [
        word for word in words[0] if word != "masks"
    ]
