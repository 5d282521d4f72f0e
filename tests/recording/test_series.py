"""Recorded series as arrays, from any number of segments."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sci_stream
from sci_stream.cli.recording_tables import describe
from sci_stream.delivery.trigger_ring import Event
from sci_stream.errors import FileFormatError
from sci_stream.recording.columns import COLUMNS
from sci_stream.recording.inspection import inspect_recording
from sci_stream.recording.reader import Recording
from sci_stream.recording.segments import segment_path
from sci_stream.recording.series import FrameStack, RecordedSeries
from sci_stream.recording.writer import RecordingWriter

LEDGER = {"acquired": 9, "closed": True}


@pytest.fixture
def recorded(tmp_path: Path, series) -> Path:
    """Three segments: snapshots 0–2; raw 3 and 4, with their video in the next one; 5, 6 dropped,
    8.
    """
    path = tmp_path / "run.h5"
    one = RecordingWriter(path, series.info, series.calibration)
    for seq in range(3):
        one.write_reconstruction(series.reconstruction(seq))
    two = one.next_segment()
    one.close(continued=two.path.name)
    two.write_raw(series.snapshot(3))
    two.write_raw(series.snapshot(4))
    three = two.next_segment()
    two.close(continued=three.path.name)
    for seq in (3, 4, 5, 8):
        three.write_reconstruction(series.reconstruction(seq))
    three.write_outcome(6, "dropped", "queue_full")
    three.close(LEDGER)
    return path


def check_all(recording: RecordedSeries, series) -> None:
    held = [0, 1, 2, 3, 4, 5, 8]
    assert recording.raw.seqs.tolist() == recording.video.seqs.tolist() == held
    assert recording.raw.shape == (7, 16, 24)
    assert recording.raw.dtype == np.uint16
    assert recording.video.shape == (7, 3, 16, 24)
    assert recording.video.dtype == np.float16
    assert np.array_equal(recording.raw, np.stack([series.counts(seq) for seq in held]))
    assert np.array_equal(recording.video, np.stack([series.video(seq) for seq in held]))
    assert recording.table["seq"].tolist() == [*held[:6], 6, 8]
    assert recording.table["camera_frame_id"].tolist() == [7, 8, 9, 10, 11, 12, -1, 15]
    assert recording.table["iterations"].tolist() == [12] * 6 + [0, 12]
    assert recording.table["reason"].tolist() == [b""] * 6 + [b"queue_full", b""]
    assert recording.calibration.hash == series.calibration.hash
    assert recording.info == series.info
    assert recording.ledger == LEDGER
    assert recording.finished


def test_open_gives_arrays_over_all_segments(recorded: Path, series) -> None:
    with sci_stream.open(recorded) as recording:
        assert len(recording.segments) == 3
        check_all(recording, series)
        with pytest.raises(KeyError, match="snapshot 6 has no video"):
            recording.frame_of("video", 6)
        with pytest.raises(IndexError, match="index 99 is out of bounds"):
            recording.video[0, 99]


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="counts open files as Linux shows them"
)
def test_more_segments_than_open_files_are_read(tmp_path: Path, series) -> None:
    path = tmp_path / "run.h5"
    writer = RecordingWriter(path, series.info, series.calibration)
    seqs = range(12)
    for seq in seqs:
        writer.write_reconstruction(series.reconstruction(seq))
        if seq % 2:
            writer, last = writer.next_segment(), writer
            last.close(continued=writer.path.name)
    writer.close(LEDGER)
    before = open_files()
    with sci_stream.open(path) as recording:
        for _ in range(2):  # also segments that were closed meanwhile
            for seq in seqs:
                assert np.array_equal(recording.frame_of("raw", seq), series.counts(seq))
                assert np.array_equal(recording.frame_of("video", seq), series.video(seq))
                assert open_files() <= before + 8
        assert recording.calibration.hash == series.calibration.hash
        recording.refresh()
        assert np.array_equal(recording.frame_of("raw", 0), series.counts(0))
    assert open_files() == before


def test_replaced_segment_is_detected(tmp_path: Path, series) -> None:
    for name in ("one", "two"):
        RecordingWriter(
            tmp_path / f"{name}.h5", replace(series.info, series=name), series.calibration
        ).close({})
    with Recording(tmp_path / "one.h5") as one, Recording(tmp_path / "two.h5") as two:
        assert two.ledger == {}
        (tmp_path / "two.h5").rename(tmp_path / "one.h5")
        with pytest.raises(FileFormatError, match=r"one\.h5 was replaced by another file"):
            _ = one.calibration


def test_later_segment_opens_alone(recorded: Path) -> None:
    with sci_stream.open(recorded.with_name("run_002.h5")) as recording:
        assert recording.video.seqs.tolist() == [3, 4, 5, 8]
        assert len(recording.raw) == 2


def test_segment_of_another_series_is_ignored(recorded: Path, tmp_path: Path, series) -> None:
    RecordingWriter(
        tmp_path / "other.h5", replace(series.info, series="other"), series.calibration
    ).close({})
    (tmp_path / "other.h5").rename(recorded.with_name("run_003.h5"))
    with sci_stream.open(recorded) as recording:
        assert [segment.path.name for segment in recording.segments] == [
            "run.h5",
            "run_001.h5",
            "run_002.h5",
        ]


@pytest.mark.parametrize("deleted", [1, 2])
def test_recording_without_a_segment_is_unfinished(recorded: Path, deleted: int) -> None:
    files = [segment_path(recorded, number) for number in range(3)]
    renamed = [
        file.rename(segment_path(recorded.with_stem("other"), i)) for i, file in enumerate(files)
    ]
    with sci_stream.open(renamed[0]) as recording:
        assert recording.finished
    renamed[deleted].unlink()
    with sci_stream.open(renamed[0]) as recording:
        assert [segment.path for segment in recording.segments] == [
            f for f in renamed if f.exists()
        ]
        assert not recording.finished
    renamed[deleted].write_text("damaged")
    assert dict(describe(inspect_recording(renamed[0])))["state"].startswith(
        "unfinished (a segment is missing or dam"
    )


def test_refresh_shows_rows_of_a_live_writer(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        writer.write_raw(series.snapshot(0))
        writer.flush()
        with sci_stream.open(tmp_path / "run.h5") as recording:
            writer.write_raw(series.snapshot(1))
            writer.flush()
            assert len(recording.raw) == 1
            recording.refresh()
            assert len(recording.raw) == 2
            assert not recording.finished


def test_empty_recording_opens_with_empty_arrays(tmp_path: Path, series) -> None:
    RecordingWriter(tmp_path / "run.h5", series.info, series.calibration).close({})
    with sci_stream.open(str(tmp_path / "run.h5")) as recording:
        assert np.asarray(recording.video).shape == recording.video[:5].shape == (0, 3, 16, 24)
        assert recording.video[:, 1].shape == (0, 16, 24)
        assert len(recording.table) == 0


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"nothing\.h5"):
        sci_stream.open(tmp_path / "nothing.h5")


def test_indexing_reads_only_the_selection() -> None:
    read: list[tuple[int, tuple[int | slice, ...]]] = []

    def note(seq: int, part: tuple[int | slice, ...]) -> np.ndarray:
        read.append((seq, part))
        return np.zeros((4, 5))[part]

    frames = FrameStack(np.array([3, 5, 9]), (4, 5), np.dtype(float), note)
    assert frames[1:, 2].shape == (2, 5)
    assert read == [(5, (2,)), (9, (2,))]
    assert repr(frames) == "<FrameStack (3, 4, 5) float64, 0.0 MB, on disk>"


KEYS = st.one_of(
    st.integers(-7, 6),
    st.slices(7),
    st.lists(st.integers(-7, 6), min_size=1, max_size=4),
    st.tuples(st.integers(-7, 6), st.slices(3), st.integers(0, 15)),
    st.tuples(st.slices(7), st.integers(-3, 2)),
    st.tuples(st.slices(7), st.slices(3), st.slices(16), st.slices(24)),
    st.tuples(st.just(Ellipsis), st.slices(24)),
    st.tuples(st.slices(7), st.just(Ellipsis), st.integers(0, 23)),
)


@pytest.fixture(scope="module")
def seven(tmp_path_factory, series):
    path = tmp_path_factory.mktemp("seven") / "run.h5"
    with RecordingWriter(path, series.info, series.calibration) as writer:
        for seq in range(0, 14, 2):
            writer.write_reconstruction(series.reconstruction(seq))
    with Recording(path), sci_stream.open(path) as recording:
        yield recording, np.stack([series.video(seq) for seq in range(0, 14, 2)])


@given(key=KEYS)
def test_indexing_follows_numpy(seven, key) -> None:
    recording, video = seven
    expected = video[key]
    got = recording.video[key]
    assert got.shape == expected.shape
    assert np.array_equal(got, expected)


def test_missing_column_reads_as_unwritten(recorded: Path, series) -> None:
    for path in (recorded, segment_path(recorded, 1), segment_path(recorded, 2)):
        with h5py.File(path, "r+") as file:
            del file["rows_crc32"]
            for column in COLUMNS:
                if not column.required:
                    del file["rows"][column.name]
    with RecordedSeries(recorded) as recording:
        check_all(recording, series)
        assert np.isnan(recording.table["mask_match"]).all()
        assert not recording.table["masks_corrected"].any()


def test_chunk_data_are_columns_of_all_segments(tmp_path: Path, series) -> None:
    path = tmp_path / "run.h5"
    one = RecordingWriter(
        path, replace(series.info, chunks={"ExposureTime": "us"}), series.calibration
    )
    one.write_raw(replace(series.snapshot(0), chunks={"ExposureTime": 7.5, "Format": "Mono12"}))
    one.write_raw(series.snapshot(1))
    two = one.next_segment()
    one.close(continued=two.path.name)
    two.write_reconstruction(replace(series.reconstruction(2), chunks={"ExposureTime": True}))
    two.close(LEDGER)
    with RecordedSeries(path) as recording:
        np.testing.assert_array_equal(recording.table["chunk_ExposureTime"], [7.5, np.nan, 1.0])
        assert recording.info.chunks == {"ExposureTime": "us"}
    with h5py.File(path) as file:
        assert file["rows/chunk_ExposureTime"].attrs["units"] == "us"


def test_event_has_its_snapshots_around_a_step_of_the_clock(tmp_path: Path, series) -> None:
    """The clock was set back by 500 ns before snapshot 5: two events have the same Unix times."""
    step_ns = 500
    first = Event(1, 1200, 1100, 1300, "motion")
    second = Event(2, 1200, 1000, 1300, "motion", behind_ns=step_ns)
    path = tmp_path / "run.h5"
    with RecordingWriter(path, series.info, series.calibration, video=False) as writer:
        for seq in range(10):
            time_ns = 1000 + 100 * seq - (step_ns if seq >= 5 else 0)
            writer.write_raw(series.snapshot(seq, host_time_ns=time_ns))
        writer.notes["events"] = [asdict(event) for event in (first, second)]
        writer.notes["clock_steps"] = [[5, step_ns]]
        writer.close({"closed": True})
    with RecordedSeries(path) as recording:
        assert recording.seqs_of_event(1) == [1, 2, 3]
        assert recording.seqs_of_event(2) == [5, 6, 7, 8]
