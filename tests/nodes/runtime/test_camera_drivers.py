"""Finding a camera driver by the name under which it is installed."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from sci_stream.config import parse_rig
from sci_stream.errors import ConfigError, FileFormatError
from sci_stream.nodes.runtime.camera_drivers import GROUP, driver_names, load_driver, make_camera
from sci_stream.ports import Camera


def test_the_project_s_own_drivers_are_installed_like_any_other() -> None:
    assert {"simulated", "replay", "harvesters"} <= set(driver_names())


def test_a_name_with_a_slip_of_the_pen_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"'simulatet'.*Did you mean 'simulated'"):
        load_driver("simulatet")


def test_a_driver_that_cannot_be_imported_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("broken", "no_such_module:Camera", GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [entry])
    with pytest.raises(ConfigError, match=r"driver 'broken' \(no_such_module:Camera\).*no_such_module"):
        load_driver("broken")


def test_options_become_a_camera_that_is_not_open_yet() -> None:
    rig = parse_rig('[camera]\ndriver = "simulated"\noptions = { width_px = 32, height_px = 32 }\n', overrides={})
    camera = make_camera(rig)
    assert isinstance(camera, Camera)
    assert camera.open().width_px == 32
    camera.close()


def test_a_wrong_option_is_named_with_its_place_in_the_file(tmp_path: Path) -> None:
    source = tmp_path / "rig.toml"
    rig = parse_rig("[camera.options]\nwidth = 32\n", source=source, overrides={})
    with pytest.raises(ConfigError) as caught:
        make_camera(rig)
    for words in (str(source), "[camera.options]", "width", "width_px"):
        assert words in str(caught.value)


def test_a_file_beside_the_rig_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clip.mat").write_text("not a measurement")
    rig = parse_rig(
        '[camera]\ndriver = "replay"\noptions = { path = "clip.mat" }\n', source=tmp_path / "rig.toml", overrides={}
    )
    monkeypatch.chdir("/")
    with pytest.raises(FileFormatError, match=str(tmp_path / "clip.mat")):
        make_camera(rig).open()
