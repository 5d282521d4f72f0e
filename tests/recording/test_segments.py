"""Creation of segments: readable from the start, never overwriting another."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from sci_stream.errors import StorageError
from sci_stream.recording.segments import new_segment
from sci_stream.recording.writer import RecordingWriter
from tests.series_fixtures import Series


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_segment_has_its_name_once_it_is_complete(tmp_path: Path) -> None:
    with new_segment(tmp_path / "run.h5") as hidden:
        hidden.write_text("whole")
        assert names(tmp_path) == [hidden.name]
    assert names(tmp_path) == ["run.h5"]


def test_concurrently_created_segment_is_kept(
    tmp_path: Path, series: Series, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = RecordingWriter._open

    def overtaken(writer: RecordingWriter, hidden: Path, opened: ExitStack) -> None:
        if writer.path.name == "run.h5":
            writer.path.write_text("another sink's")
        open_file(writer, hidden, opened)

    monkeypatch.setattr(RecordingWriter, "_open", overtaken)
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        assert (writer.segment, names(tmp_path)) == (1, ["run.h5", "run_001.h5"])
    assert (tmp_path / "run.h5").read_text() == "another sink's"


def test_hidden_file_of_a_killed_writer_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".run.h5.new").write_text("half")
    with new_segment(tmp_path / "run.h5") as hidden:
        hidden.write_text("whole")
    assert names(tmp_path) == ["run.h5"]


def test_failed_segment_leaves_no_file(tmp_path: Path) -> None:
    def fail() -> None:
        with new_segment(tmp_path / "run.h5") as hidden:
            hidden.write_text("half")
            raise StorageError("the disk is gone")

    with pytest.raises(StorageError, match="the disk is gone"):
        fail()
    assert names(tmp_path) == []
