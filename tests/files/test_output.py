"""Outputs appear complete or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sci_stream.errors import FileFormatError, StorageError
from sci_stream.file_guard import complete_output


def test_output_appears_under_its_name_once_written(tmp_path: Path) -> None:
    out = tmp_path / "out.bin"
    with complete_output(out, replace=False) as partial:
        partial.write_bytes(b"new")
        assert not out.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out.bin"]
    assert out.read_bytes() == b"new"


@pytest.mark.parametrize(
    "error", [FileFormatError("bad frames"), OSError(28, "No space left on device")]
)
def test_failed_output_leaves_the_earlier_file_and_nothing_else(
    tmp_path: Path, error: Exception
) -> None:
    out = tmp_path / "out.bin"
    out.write_bytes(b"old")

    def fail() -> None:
        with complete_output(out, replace=True) as partial:
            partial.write_bytes(b"half")
            raise error

    with pytest.raises((FileFormatError, StorageError)):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["out.bin"]
    assert out.read_bytes() == b"old"


def test_output_does_not_follow_a_symbolic_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / f".video.mp4.{os.getpid()}.part").symlink_to(other)
    with complete_output(tmp_path / "video.mp4", replace=True) as partial:
        partial.write_text("video")
    assert other.read_text() == "precious"
    assert (tmp_path / "video.mp4").read_text() == "video"


def test_folder_takes_the_place_of_a_folder_or_a_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"a file")
    for name in ("1.png", "2.png"):
        with complete_output(out, replace=True, folder=r"\d\.png") as partial:
            partial.mkdir()
            (partial / name).touch()
        assert [path.name for path in out.iterdir()] == [name]
    (out / "notes.txt").touch()
    for folder in ("", r"\d\.png"):
        with (
            pytest.raises(StorageError, match="is a folder"),
            complete_output(out, replace=True, folder=folder),
        ):
            pass
    assert len(list(out.iterdir())) == 2
