"""Loading camera drivers by the name of their entry point."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from sci_stream.config import parse_rig
from sci_stream.devices.camera_drivers import GROUP, load_driver, make_camera
from sci_stream.errors import ConfigError, FileFormatError
from sci_stream.plugin_entries import plugin_names
from sci_stream.ports import Camera


def test_own_drivers_are_installed() -> None:
    assert {"simulated", "replay", "harvesters"} <= set(plugin_names(GROUP))


def test_misspelt_driver_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"'simulatet'.*Did you mean simulated"):
        load_driver("simulatet")


def test_driver_import_error_names_dependencies(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("broken", "no_such_module:Camera", GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [entry])
    with pytest.raises(
        ConfigError, match=r"driver 'broken' \(no_such_module:Camera\).*no_such_module"
    ):
        load_driver("broken")


def test_make_camera_returns_unopened_camera() -> None:
    rig = parse_rig(
        '[camera]\ndriver = "simulated"\noptions = { width_px = 32, height_px = 32 }\n',
        overrides={},
    )
    camera = make_camera(rig)
    assert isinstance(camera, Camera)
    assert camera.open().width_px == 32
    camera.close()


def test_invalid_option_is_named_with_its_location(tmp_path: Path) -> None:
    source = tmp_path / "rig.toml"
    rig = parse_rig("[camera.options]\nwidth = 32\n", source=source, overrides={})
    with pytest.raises(ConfigError) as caught:
        make_camera(rig)
    for words in (str(source), "[camera.options]", "width", "width_px"):
        assert words in str(caught.value)


def test_relative_path_is_resolved_against_the_rig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clip.mat").write_text("not a measurement")
    rig = parse_rig(
        '[camera]\ndriver = "replay"\noptions = { path = "clip.mat" }\n',
        source=tmp_path / "rig.toml",
        overrides={},
    )
    monkeypatch.chdir("/")
    with pytest.raises(FileFormatError, match=str(tmp_path / "clip.mat")):
        make_camera(rig).open()
