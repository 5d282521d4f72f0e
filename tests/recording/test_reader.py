"""Recordings are readable while they grow, by any number of readers; other files are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from sci_stream.errors import FileFormatError
from sci_stream.recording import columns
from sci_stream.recording.hdf5 import read_dataset
from sci_stream.recording.reader import Recording
from sci_stream.recording.segments import count_recorded
from sci_stream.recording.writer import RecordingWriter


def test_live_recording_is_readable_up_to_its_last_flush(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        writer.write_raw(series.snapshot(0))
        writer.flush()
        with Recording(writer.path) as recording:
            assert recording.raw_seqs == [0]
            assert not recording.clean
            assert recording.ledger is None
            writer.write_raw(series.snapshot(1))
            assert recording.raw_seqs == [0]
            writer.write_ledger({"acquired": 2})
            writer.flush()
            recording.refresh()
            assert recording.raw_seqs == [0, 1]
            assert np.array_equal(recording.raw(1), series.counts(1))
            assert recording.ledger == {"acquired": 2}
            assert not recording.clean


@pytest.fixture
def recorded(tmp_path: Path, series) -> Path:
    """A finished recording of four snapshots."""
    path = tmp_path / "run.h5"
    with RecordingWriter(path, series.info, series.calibration) as writer:
        for seq in range(4):
            writer.write_reconstruction(series.reconstruction(seq))
    return path


def test_end_and_restart_of_a_series_read_only_outcomes(
    recorded: Path, series, monkeypatch
) -> None:
    """A day at 30 snapshots a second has a gigabyte of other columns, and its acquire node waits
    for the end.
    """
    read: set[str] = set()

    def noted(node: h5py.Dataset, part: slice) -> np.ndarray:
        read.add(node.name)
        return read_dataset(node, part)

    monkeypatch.setattr(columns, "read_dataset", noted)
    assert count_recorded(recorded, series.info.series) == (4, 4, [])
    with RecordingWriter(recorded, series.info, series.calibration) as writer:
        assert writer.path == recorded.with_stem("run_001")
    assert read == {"/rows/state", "/rows/outcome", "/rows_crc32"}


def test_reader_by_row_returns_the_same_snapshots(recorded: Path) -> None:
    with Recording(recorded) as whole, Recording(recorded, by_row=True) as by_row:
        assert by_row.count("video") == 4
        for index, seq in enumerate(whole.video_seqs):
            assert by_row.seq_at("video", index) == seq
            one = by_row.reconstruction(seq)
            other = whole.reconstruction(seq)
            assert np.array_equal(one.video, other.video)
            assert (one.report, one.times, one.chunks) == (other.report, other.times, other.chunks)
        with pytest.raises(IndexError, match="fewer"):
            by_row.seq_at("video", 4)


def test_two_readers_of_one_file_see_its_data_in_every_row(recorded: Path, series) -> None:
    with Recording(recorded) as first, Recording(recorded) as second:
        first.refresh()
        for recording in (first, second):
            assert all(np.array_equal(recording.raw(seq), series.counts(seq)) for seq in range(4))
            assert all(np.array_equal(recording.video(seq), series.video(seq)) for seq in range(4))


def test_reader_continues_when_another_of_the_file_is_closed(recorded: Path, series) -> None:
    link = recorded.with_name("other-name.h5")
    link.symlink_to(recorded)
    with Recording(recorded) as first:
        with Recording(link) as second:
            assert np.array_equal(second.raw(2), series.counts(2))
        assert np.array_equal(first.raw(3), series.counts(3))
        assert first.calibration.hash == series.calibration.hash
    first.close()
    with pytest.raises(ValueError, match=r"run\.h5 is closed"):
        first.raw(3)


def test_foreign_handles_do_not_disturb_a_reader(recorded: Path, series) -> None:
    with h5py.File(recorded) as file, Recording(recorded) as recording:
        held = file["raw"]
        recording.refresh()
        assert all(np.array_equal(recording.raw(seq), series.counts(seq)) for seq in range(4))
        assert np.array_equal(held[2], series.counts(2))


def test_removed_file_error_says_so(recorded: Path) -> None:
    with Recording(recorded) as recording:
        recorded.rename(recorded.with_suffix(".old"))
        with pytest.raises(FileFormatError, match=r"no recording file.*run\.h5"):
            recording.refresh()
        with pytest.raises(FileFormatError, match="no recording file"):
            recording.raw(0)
        shutil.copy(recorded.with_suffix(".old"), recorded)
        with pytest.raises(FileFormatError, match="was replaced"):
            recording.refresh()
        recorded.with_suffix(".old").replace(recorded)
        recording.refresh()
        assert recording.raw_seqs == [0, 1, 2, 3]


def foreign_text(path: Path) -> None:
    path.write_text("no HDF5")


def foreign_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data"] = np.zeros(3)


def without_columns(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["rows"]["state"]


def with_other_info(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["series_info"]
        file["series_info"] = '{"series": 1}'


def newer(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["schema_version"] = 2


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:300])


def cut_short_in_use(path: Path) -> None:
    data = bytearray(path.read_bytes()[:300])
    data[11] = 0x05  # as a writer that was killed leaves it
    path.write_bytes(data)


@pytest.mark.parametrize(
    "break_it",
    [
        foreign_text,
        cut_short,
        cut_short_in_use,
        foreign_hdf5,
        without_columns,
        with_other_info,
        newer,
        Path.unlink,
    ],
)
def test_invalid_recording_is_refused_with_its_name(tmp_path: Path, series, break_it) -> None:
    path = tmp_path / "run.h5"
    RecordingWriter(path, series.info, series.calibration).close()
    break_it(path)
    with pytest.raises(FileFormatError, match=r"run\.h5"):
        Recording(path)
