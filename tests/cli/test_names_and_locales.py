"""Commands work in any locale, and with folders whose names are no Unicode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sci_stream.config import load_rig
from sci_stream.config.loader import parse_rig
from sci_stream.errors import ConfigError


def run(*words: str | bytes, folder: bytes) -> subprocess.CompletedProcess[bytes]:
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = os.environ | locale | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "sci_stream", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> bytes:
    path = os.fsencode(tmp_path) + b"/f\xff"
    try:
        os.mkdir(path)  # noqa: PTH102 - a name in bytes
    except OSError:
        pytest.skip("this disk has names in Unicode alone")
    return path


def test_rig_file_is_complete_where_the_locale_is_ascii(folder: bytes) -> None:
    done = run("config", "init", folder + b"/rig.toml", folder=folder)
    assert done.returncode == 0, done.stderr
    assert load_rig(Path(os.fsdecode(folder), "rig.toml"), {}).rig.name == "rig"


def test_error_with_a_name_in_bytes_is_one_line(folder: bytes) -> None:
    done = run("solve", folder + b"/absent\xfc.npy", folder=folder)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"absent?.npy was not found" in done.stderr


def test_recorded_rig_with_a_folder_in_bytes_is_unicode() -> None:
    source = Path(os.fsdecode(b"/f\xff/rig.toml"))
    assert "/f?/recordings" in parse_rig("", source=source, overrides={}).to_toml()


@pytest.mark.parametrize("content", ["", "\n \n", "\0\0\0\0"])
def test_empty_rig_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "rig.toml").write_text(content)
    with pytest.raises(ConfigError, match=r"rig\.toml is empty; expected a rig file.*config init"):
        load_rig(tmp_path / "rig.toml", {})


def test_rig_file_with_the_mark_of_its_encoding_is_read(tmp_path: Path) -> None:
    (tmp_path / "rig.toml").write_text('[rig]\nname = "a"\n', "utf-8-sig")
    assert load_rig(tmp_path / "rig.toml", {}).rig.name == "a"
