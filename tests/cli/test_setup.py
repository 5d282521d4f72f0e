"""The dialogue from a camera to a running rig, answered through standard input."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from sci_stream.cli import app
from sci_stream.cli import setup as dialogue
from sci_stream.config import load_rig
from sci_stream.model import FoundCamera, FoundInterface, FoundProducer
from sci_stream.tools import cameras, preflight
from sci_stream.tools.cameras import FoundDriver
from sci_stream.tools.preflight import Finding


def answer(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in answers)))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """Return the commands that the dialogue started: nothing is measured, checked or run here."""
    ran: list[tuple[str, Path]] = []
    monkeypatch.setattr(cameras, "find_cameras", lambda _places: [])
    monkeypatch.setattr(dialogue, "run", lambda path: ran.append(("run", path)))
    monkeypatch.setattr(
        dialogue, "calibrate", lambda path, _out, force: ran.append((f"calibrate {force}", path))
    )
    monkeypatch.setattr(preflight, "check_rig", lambda path, _: ran.append(("check", path)) or [])
    return ran


def set_up(path: Path, *options: str) -> None:
    app(["setup", str(path), *options], standalone_mode=False)


def test_answers_of_nothing_run_a_simulated_rig(tmp_path: Path, ran, monkeypatch) -> None:
    answer(monkeypatch, *[""] * 7)
    path = tmp_path / "rig.toml"
    set_up(path)
    rig = load_rig(path, overrides={})
    assert (rig.camera.driver, rig.rig.name, rig.policy.mode, rig.record.enabled) == (
        "simulated",
        "rig",
        "live",
        True,
    )
    assert (rig.preview.host, rig.calibration.file) == ("127.0.0.1", None)
    assert ran == [("check", path), ("run", path)]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the dialogue find a camera."""
    camera = FoundCamera("id-7", "Maker", "Model", "7", "", "ready", {})
    producer = FoundProducer(
        "a.cti", "tl", "Maker", "1", (FoundInterface("if", "if", "USB", (camera,)),)
    )
    monkeypatch.setattr(
        cameras, "find_cameras", lambda _places: [FoundDriver("simulated", [producer])]
    )
    monkeypatch.setattr(
        cameras, "suggested_options", lambda _driver, query: ({"seed": int(query)}, {})
    )
    monkeypatch.setattr(dialogue, "_SIMULATED", "none")


def test_camera_is_chosen_measured_and_watched_from_elsewhere(
    tmp_path: Path, ran, found, monkeypatch
) -> None:
    answer(monkeypatch, "9", "1", "n", "bench", "y", str(tmp_path / "films"), "y", "y", "y", "n")
    path = tmp_path / "rig.toml"
    set_up(path, "--force")
    rig = load_rig(path, overrides={})
    assert (rig.rig.name, rig.policy.mode, rig.record.enabled) == ("bench", "record", True)
    assert (rig.camera.options["seed"], rig.calibration.file) == (7, tmp_path / "calibration.h5")
    assert (rig.preview.host, len(rig.preview.token) >= 16, rig.record.folder) == (
        "0.0.0.0",
        True,
        tmp_path / "films",
    )
    assert path.stat().st_mode & 0o077 == 0
    assert ran == [("calibrate True", path), ("check", path)]


def test_calibration_may_be_in_the_home_folder(tmp_path: Path, ran, found, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    answer(monkeypatch, "1", "y", "~/masks.h5", *[""] * 6)
    set_up(tmp_path / "rig.toml")
    assert (
        load_rig(tmp_path / "rig.toml", overrides={}).calibration.file
        == tmp_path / "home" / "masks.h5"
    )


def test_failed_check_ends_before_the_run(tmp_path: Path, ran, monkeypatch, capsys) -> None:
    fault = Finding("camera", "not there", exit_status=3)
    monkeypatch.setattr(preflight, "check_rig", lambda *_: [fault])
    answer(monkeypatch, *[""] * 6)
    assert app(["setup", str(tmp_path / "rig.toml")], standalone_mode=False) == 3
    assert ran == []
    assert "correct these" in capsys.readouterr().err
