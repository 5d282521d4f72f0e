"""Creation of segments: readable from the start, never overwriting another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from sci_stream.errors import StorageError
from sci_stream.recording.hdf5 import LIBVER, build_image
from sci_stream.recording.segments import WrittenRows, create_segment

IMAGE = build_image(lambda file: file.create_group("rows"))


def begin(hidden: Path, named: Path) -> h5py.File:
    file = h5py.File(hidden, "r+", libver=LIBVER)
    assert not named.exists(), "HDF5 marks it as being written, but not yet as readable meanwhile"
    file.swmr_mode = True
    return file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_segment_is_readable_once_it_has_its_name(tmp_path: Path) -> None:
    opened: list[h5py.File] = []

    def keep(hidden: Path, named: Path) -> h5py.File:
        opened.append(begin(hidden, named))
        return opened[-1]

    number = create_segment(tmp_path / "run.h5", "run", WrittenRows(), lambda _known: IMAGE, keep)
    assert (number, names(tmp_path)) == (0, ["run.h5"])
    with opened[0], h5py.File(tmp_path / "run.h5", "r", swmr=True) as file:
        assert list(file) == ["rows"]


def test_symbolic_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    folder, other = tmp_path / "recordings", tmp_path / "other"
    folder.mkdir()
    other.write_text("precious")
    (folder / "run.h5").symlink_to(tmp_path / "missing")
    for name in ("run.h5", "run_001.h5"):
        (folder / f".{name}.{os.getpid()}.new").symlink_to(other)
    assert create_segment(folder / "run.h5", "run", WrittenRows(), lambda _known: IMAGE, begin) == 1
    assert other.read_text() == "precious"
    assert not (tmp_path / "missing").exists()


def test_concurrently_created_segment_is_kept(tmp_path: Path) -> None:
    def overtaken(hidden: Path, named: Path) -> h5py.File:
        file = begin(hidden, named)
        if named.name == "run.h5":
            named.write_text("another sink's")
        return file

    number = create_segment(tmp_path / "run.h5", "run", WrittenRows(), lambda _known: IMAGE, overtaken)
    assert (number, names(tmp_path)) == (1, ["run.h5", "run_001.h5"])
    assert (tmp_path / "run.h5").read_text() == "another sink's"


def test_hidden_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (tmp_path / f".run.h5.{int(dead.stdout)}.new").write_text("half")
    (tmp_path / f".run.h5.{os.getppid()}.new").write_text("in hand")
    create_segment(tmp_path / "run.h5", "run", WrittenRows(), lambda _known: IMAGE, begin)
    assert names(tmp_path) == [f".run.h5.{os.getppid()}.new", "run.h5"]


def test_failed_segment_leaves_no_file(tmp_path: Path) -> None:
    def refused(hidden: Path, named: Path) -> h5py.File:
        raise StorageError("the disk is gone")

    with pytest.raises(StorageError, match="the disk is gone"):
        create_segment(tmp_path / "run.h5", "run", WrittenRows(), lambda _known: IMAGE, refused)
    assert names(tmp_path) == []
