"""The writer stores every snapshot once, in any order, and refuses data that does not fit."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sci_stream.errors import InputError, StorageError
from sci_stream.imaging.estimated_error import error_estimate
from sci_stream.recording.calibration_file import load_calibration
from sci_stream.recording.layout import LEDGER_BYTES, Compression, ledger_document
from sci_stream.recording.reader import Recording
from sci_stream.recording.segments import recording_path
from sci_stream.recording.series import RecordedSeries
from sci_stream.recording.writer import MAX_EMPTY_ROWS, RecordingWriter


def test_clean_recording_round_trip(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        assert writer.write_raw(series.snapshot(0))
        assert writer.write_reconstruction(series.reconstruction(0))
        assert writer.write_raw(series.snapshot(1))
        assert writer.write_outcome(1, "raw_only", "overload")
        assert writer.write_outcome(2, "dropped", "overrun")
        assert writer.write_reconstruction(series.reconstruction(5))
        writer.close({"acquired": 6, "closed": True})

    with Recording(tmp_path / "run.h5") as recording:
        assert recording.info == series.info
        assert recording.info.rig_toml == series.info.rig_toml
        assert recording.calibration.hash == series.calibration.hash
        assert recording.clean
        assert recording.ledger == {"acquired": 6, "closed": True}
        assert recording.raw_seqs == [0, 1, 5]
        assert recording.video_seqs == [0, 5]
        for seq in recording.raw_seqs:
            assert np.array_equal(recording.raw(seq), series.counts(seq))
        for seq in recording.video_seqs:
            assert np.array_equal(recording.video(seq), series.video(seq))
        assert [recording.outcome(seq) for seq in range(7)] == [
            ("reconstructed", ""), ("raw_only", "overload"), ("dropped", "overrun"), None, None,
            ("reconstructed", ""),
            None,
        ]  # fmt: skip
        assert (recording.camera_frame_id(1), recording.camera_frame_id(2)) == (8, None)
        assert recording.rows["camera_time_ns"][1:3].tolist() == [500, -1]


def test_columns_describe_each_row(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        writer.write_reconstruction(series.reconstruction(1))
    with Recording(tmp_path / "run.h5") as recording:
        rows = {name: values[1].item() for name, values in recording.rows.items()}
        assert rows["psnr_db"] == pytest.approx(31.5)
        assert rows["residual"] == pytest.approx(0.02)
        chosen = (
            "epoch",
            "iterations",
            "start",
            "start_reason",
            "budget_limited",
            "solve_ns",
            "redelivered",
            "node",
        )
        assert tuple(rows[name] for name in chosen) == (
            1, 12, 2, b"motion", 1, 34_000_000, 1, b"reconstruct-0",
        )  # fmt: skip
        assert np.isnan(recording.rows["psnr_db"][0])


@pytest.mark.parametrize("compression", Compression)
def test_compression_is_lossless(tmp_path: Path, series, compression: Compression) -> None:
    calibration = series.calibration
    picture = np.random.default_rng(0).integers(0, 256, (*calibration.shape, 3)).astype(np.uint8)
    # The video explains its snapshot, and is nearly flat: so is what could be wrong with it.
    video = (0.5 + 0.02 * series.video(3)).astype(np.float16)
    counts = np.rint(
        (calibration.phi * video).sum(0) * calibration.full_scale_dn + calibration.dark
    ).astype(np.uint16)
    shown = series.reconstruction(3, picture=picture, video=video, counts=counts)
    with RecordingWriter(
        tmp_path / "run.h5",
        series.info,
        calibration,
        picture=True,
        error=True,
        compression=compression,
    ) as writer:
        writer.write_reconstruction(shown)
        writer.write_reconstruction(series.reconstruction(4, counts=None))
    with RecordedSeries(tmp_path / "run.h5") as recording:
        assert np.array_equal(recording.frame_of("raw", 3), counts)
        assert np.array_equal(recording.frame_of("video", 3), video)
        assert np.array_equal(recording.picture[:], picture[None])
        assert recording.error.shape == (1, 3, 4, 6)
        estimate = error_estimate(shown, calibration)
        assert 0.001 < estimate.mean() < 0.02
        assert np.abs(recording.error[0] - estimate).max() < 0.00051
    with h5py.File(tmp_path / "run.h5") as file:
        assert file["error"].attrs["scaling_factor"] == 0.001


def test_disabled_data_is_not_stored(tmp_path: Path, series) -> None:
    with RecordingWriter(
        tmp_path / "run.h5", series.info, series.calibration, raw=False, video=False
    ) as writer:
        writer.write_reconstruction(series.reconstruction(0))
    with Recording(tmp_path / "run.h5") as recording:
        assert (recording.raw_seqs, recording.video_seqs) == ([], [])
        assert recording.outcome(0) == ("reconstructed", "")
        with pytest.raises(KeyError):
            recording.raw(0)


def test_row_is_written_once(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        assert writer.write_raw(series.snapshot(0))
        assert not writer.write_raw(series.snapshot(0, counts=series.counts(9)))
        assert writer.write_reconstruction(series.reconstruction(0, counts=series.counts(9)))
        assert not writer.write_reconstruction(series.reconstruction(0, video=series.video(9)))
        assert not writer.write_outcome(0, "dropped", "late")
    with Recording(tmp_path / "run.h5") as recording:
        assert np.array_equal(recording.raw(0), series.counts(0))
        assert np.array_equal(recording.video(0), series.video(0))
        assert recording.outcome(0) == ("reconstructed", "")


def test_second_writer_opens_the_next_segment(tmp_path: Path, series) -> None:
    path = tmp_path / "run.h5"
    with RecordingWriter(path, series.info, series.calibration) as first:
        first.write_raw(series.snapshot(0))
        first.write_reconstruction(series.reconstruction(1))
    before = path.read_bytes()
    with RecordingWriter(path, series.info, series.calibration) as second:
        assert second.path == tmp_path / "run_001.h5"
        assert not second.write_raw(series.snapshot(0))
        assert not second.write_reconstruction(series.reconstruction(1))
        assert second.write_reconstruction(series.reconstruction(0))
    assert path.read_bytes() == before
    with Recording(second.path) as recording:
        assert (recording.raw_seqs, recording.video_seqs) == ([], [0])


def test_foreign_file_of_the_same_name_is_kept(tmp_path: Path, series) -> None:
    (tmp_path / "run.h5").write_text("not ours")
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        assert writer.path.name == "run_001.h5"
    assert (tmp_path / "run.h5").read_text() == "not ours"


@settings(max_examples=12)  # each writes and reads a file
@given(
    seqs=st.lists(st.integers(0, 2000), unique=True, max_size=12),
    flush_after=st.sets(st.integers(0, 11)),
    first_seq=st.integers(0, 3),
)
def test_rows_may_arrive_in_any_order(
    tmp_path_factory, series, seqs, flush_after, first_seq
) -> None:
    path = tmp_path_factory.mktemp("r") / "run.h5"
    with RecordingWriter(
        path, series.info, series.calibration, video=False, first_seq=first_seq
    ) as writer:
        for index, seq in enumerate(seqs):
            writer.write_raw(series.snapshot(seq + first_seq))
            if index in flush_after:
                writer.flush()
    with Recording(path) as recording:
        assert recording.raw_seqs == sorted(seq + first_seq for seq in seqs)
        assert all(
            np.array_equal(recording.raw(seq), series.counts(seq)) for seq in recording.raw_seqs
        )
        assert all(recording.camera_frame_id(seq) == seq + 7 for seq in recording.raw_seqs)


def test_late_row_in_an_evicted_block_keeps_its_neighbours(tmp_path: Path, series) -> None:
    with RecordingWriter(
        tmp_path / "run.h5", series.info, series.calibration, raw=False, video=False
    ) as writer:
        for seq in range(0, 6000, 500):
            writer.write_outcome(seq, "dropped", "overrun")
            writer.flush()
        writer.write_outcome(1, "dropped", "late")
    with Recording(tmp_path / "run.h5") as recording:
        assert recording.settled_seqs == sorted([1, *range(0, 6000, 500)])
        assert recording.outcome(0) == ("dropped", "overrun")


def test_skipped_rows_take_no_space(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        writer.write_raw(series.snapshot(200_000))
    assert writer.path.stat().st_size < 1_000_000


def test_recording_is_named_after_its_series() -> None:
    assert recording_path(Path("out"), "run 1.2-b") == Path("out/run 1.2-b.h5")


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "/abs", "a\\b", "a\0b", "a\nb", "µ" * 101]
)
def test_invalid_series_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="plain file name"):
        recording_path(Path("out"), name)


def test_nexus_attributes_define_the_plot(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        writer.write_raw(series.snapshot(0))
    with h5py.File(tmp_path / "run.h5") as file:
        node = file
        while node.attrs.get("NX_class") != "NXdata":
            node = node[node.attrs["default"]]
        assert np.array_equal(node[node.attrs["signal"]][0], series.counts(0))
        assert file["entry"].attrs["NX_class"] == "NXentry"
        assert "video" in file["entry"]


def test_calibration_can_be_loaded_from_a_recording(tmp_path: Path, series) -> None:
    RecordingWriter(tmp_path / "run.h5", series.info, series.calibration).close()
    assert load_calibration(tmp_path / "run.h5").hash == series.calibration.hash


def test_counts_are_converted_only_without_loss(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        assert writer.write_raw(series.snapshot(0, counts=series.counts(0).astype(np.float32)))
        with pytest.raises(InputError, match="without loss"):
            writer.write_raw(series.snapshot(1, counts=series.counts(1) + np.float32(0.5)))
        with pytest.raises(InputError, match="does not fit"):
            writer.write_raw(series.snapshot(2, counts=series.counts(2)[1:]))
        with pytest.raises(InputError, match="does not fit"):
            writer.write_reconstruction(series.reconstruction(2, video=series.video(2)[1:]))
    with Recording(writer.path) as recording:
        assert recording.raw_seqs == [0]


def test_missing_folder_is_named(tmp_path: Path, series) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        RecordingWriter(tmp_path / "nowhere" / "run.h5", series.info, series.calibration)


def test_failed_start_leaves_no_file(tmp_path: Path, series) -> None:
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        with pytest.raises(StorageError, match=r"run\.h5 cannot be"):
            RecordingWriter(tmp_path / "run.h5", series.info, series.calibration)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_next_segment_starts_at_first_snapshot_without_outcome(tmp_path: Path, series) -> None:
    first = RecordingWriter(tmp_path / "run.h5", series.info, series.calibration)
    first.write_reconstruction(series.reconstruction(0))
    first.write_raw(series.snapshot(1))
    first.write_reconstruction(series.reconstruction(2))
    with first.next_segment() as second:
        first.close({"acquired": 3}, continued=second.path.name)
        assert second.path == tmp_path / "run_001.h5"
        assert second.first_seq == 1
        assert not second.write_raw(series.snapshot(1)), "its counts are in the first segment"
        assert second.write_reconstruction(series.reconstruction(1))
        assert not second.write_reconstruction(series.reconstruction(2))
        second.close({"acquired": 3, "closed": True})
    with Recording(first.path) as one, Recording(second.path) as other:
        assert (one.raw_seqs, one.video_seqs, other.raw_seqs, other.video_seqs) == (
            [0, 1, 2],
            [0, 2],
            [],
            [1],
        )
        assert (one.continued, one.clean, one.finished) == ("run_001.h5", False, True)
        assert (other.continued, other.clean, other.finished) == (None, True, True)


def test_notes_are_stored_with_every_ledger(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        writer.notes["solvers"] = {"reconstruct-0": {"denoiser": "tv"}}
        writer.write_ledger({"acquired": 1})
        writer.close({"acquired": 2})
    with Recording(tmp_path / "run.h5") as recording:
        assert recording.notes == {"solvers": {"reconstruct-0": {"denoiser": "tv"}}}
        assert recording.ledger == {"acquired": 2}


def test_row_far_ahead_of_all_others_is_refused(tmp_path: Path, series) -> None:
    path = tmp_path / "run.h5"
    with RecordingWriter(path, series.info, series.calibration) as writer:
        writer.write_reconstruction(series.reconstruction(0))
        for seq in (MAX_EMPTY_ROWS + 1, 2**48 - 1):
            with pytest.raises(StorageError, match="too far ahead"):
                writer.write_outcome(seq, "dropped", "queue_full")
            with pytest.raises(StorageError, match="too far ahead"):
                writer.write_raw(series.snapshot(seq))
        writer.write_outcome(5000, "dropped", "queue_full")
    with Recording(path) as recording:
        assert recording.settled_seqs == [0, 5000]


def test_late_recording_begins_at_first_unsettled_snapshot(tmp_path: Path, series) -> None:
    path, start = tmp_path / "run.h5", 2 * MAX_EMPTY_ROWS
    with RecordingWriter(path, series.info, series.calibration, settled_below=start) as first:
        first.write_reconstruction(series.reconstruction(start))
        first.write_reconstruction(series.reconstruction(start + 2))
        with first.next_segment() as second:
            assert second.first_seq == start + 1
    with RecordingWriter(path, series.info, series.calibration) as after_restart:
        assert after_restart.first_seq == start + 1
    with RecordingWriter(
        path, series.info, series.calibration, settled_below=start + 9
    ) as without_rows:
        assert without_rows.first_seq == start + 9


def test_numbers_beyond_their_columns_become_the_nearest(tmp_path: Path, series) -> None:
    path = tmp_path / "run.h5"
    with RecordingWriter(path, series.info, series.calibration) as writer:
        writer.write_raw(series.snapshot(0, dropped_before=2**63 - 1, camera_time_ns=2**64))
    with Recording(path) as recording:
        limits = np.iinfo(recording.rows["dropped_before"].dtype)
        assert recording.rows["dropped_before"][0] == limits.max
        assert recording.rows["camera_time_ns"][0] == 2**63 - 1


def test_ledger_document_leaves_out_oldest_notes_over_the_limit() -> None:
    changes = [{"n": n, "text": "x" * 1000} for n in range(200)]
    text = ledger_document(
        {"ledger": {"acquired": 3}}, {"changes": changes, "changes_left_out": 7, "other": "y"}
    )
    document = json.loads(text.tobytes().rstrip(b"\0"))
    assert len(text) == LEDGER_BYTES
    assert document["ledger"] == {"acquired": 3}
    assert document["other"] == "y"
    assert document["changes"] == changes[-len(document["changes"]) :]
    assert document["changes_left_out"] == 7 + 200 - len(document["changes"])
