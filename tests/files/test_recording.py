"""A recording holds what was written, is readable at any time, and survives kill, full disk and foreign files."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.errors import FileFormatError, InputError, StorageError
from sci_stream.files import recording_writer
from sci_stream.files.calibration_file import load_calibration
from sci_stream.files.recording import Compression, Recording, RecordingWriter, recording_path


def test_a_clean_recording_gives_back_everything(tmp_path: Path, series) -> None:
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
        assert recording.rig_toml == series.info.rig_toml
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
            ("reconstructed", ""), ("raw_only", "overload"), ("dropped", "overrun"), None, None, ("reconstructed", ""),
            None,
        ]  # fmt: skip
        assert (recording.camera_frame_id(1), recording.camera_time_ns(1)) == (8, 500)
        assert (recording.camera_frame_id(2), recording.camera_time_ns(2)) == (None, None)


def test_columns_say_how_each_row_was_made(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        writer.write_reconstruction(series.reconstruction(1))
    with Recording(tmp_path / "run.h5") as recording:
        rows = {name: values[1].item() for name, values in recording.rows.items()}
        assert rows["psnr_db"] == pytest.approx(31.5)
        assert rows["residual"] == pytest.approx(0.02)
        chosen = ("epoch", "iterations", "start", "start_reason", "budget_limited", "solve_ns", "redelivered", "node")
        assert tuple(rows[name] for name in chosen) == (
            1, 12, 2, b"motion", 1, 34_000_000, 1, b"reconstruct-0",
        )  # fmt: skip
        assert np.isnan(recording.rows["psnr_db"][0])


@pytest.mark.parametrize("compression", Compression)
def test_compression_changes_no_value(tmp_path: Path, series, compression: Compression) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration, compression=compression) as writer:
        writer.write_reconstruction(series.reconstruction(3))
    with Recording(tmp_path / "run.h5") as recording:
        assert np.array_equal(recording.raw(3), series.counts(3))
        assert np.array_equal(recording.video(3), series.video(3))


def test_what_is_not_wanted_is_not_stored(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration, raw=False, video=False) as writer:
        writer.write_reconstruction(series.reconstruction(0))
    with Recording(tmp_path / "run.h5") as recording:
        assert (recording.raw_seqs, recording.video_seqs) == ([], [])
        assert recording.outcome(0) == ("reconstructed", "")
        with pytest.raises(KeyError):
            recording.raw(0)


def test_a_row_is_written_once(tmp_path: Path, series) -> None:
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


def test_a_second_writer_opens_the_next_segment_and_knows_what_the_first_holds(tmp_path: Path, series) -> None:
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


def test_a_foreign_file_of_the_same_name_is_left_alone(tmp_path: Path, series) -> None:
    (tmp_path / "run.h5").write_text("not ours")
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        assert writer.path.name == "run_001.h5"
    assert (tmp_path / "run.h5").read_text() == "not ours"


@given(
    seqs=st.lists(st.integers(0, 2000), unique=True, max_size=12),
    flush_after=st.sets(st.integers(0, 11)),
    first_seq=st.integers(0, 3),
)
def test_rows_may_come_in_any_order_and_far_apart(tmp_path_factory, series, seqs, flush_after, first_seq) -> None:
    path = tmp_path_factory.mktemp("r") / "run.h5"
    with RecordingWriter(path, series.info, series.calibration, video=False, first_seq=first_seq) as writer:
        for index, seq in enumerate(seqs):
            writer.write_raw(series.snapshot(seq + first_seq))
            if index in flush_after:
                writer.flush()
    with Recording(path) as recording:
        assert recording.raw_seqs == sorted(seq + first_seq for seq in seqs)
        assert all(np.array_equal(recording.raw(seq), series.counts(seq)) for seq in recording.raw_seqs)
        assert all(recording.camera_frame_id(seq) == seq + 7 for seq in recording.raw_seqs)


def test_a_late_row_in_a_block_that_left_memory_keeps_its_neighbours(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration, raw=False, video=False) as writer:
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


def test_a_live_recording_is_readable_up_to_its_last_flush(tmp_path: Path, series) -> None:
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


def test_two_readers_of_one_file_see_its_own_data_in_every_row(recorded: Path, series) -> None:
    with Recording(recorded) as first, Recording(recorded) as second:
        first.refresh()
        for recording in (first, second):
            assert all(np.array_equal(recording.raw(seq), series.counts(seq)) for seq in range(4))
            assert all(np.array_equal(recording.video(seq), series.video(seq)) for seq in range(4))


def test_a_reader_goes_on_when_another_of_the_same_file_is_closed(recorded: Path, series) -> None:
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


def test_foreign_handles_on_the_file_do_not_disturb_a_reader(recorded: Path, series) -> None:
    with h5py.File(recorded) as file, Recording(recorded) as recording:
        held = file["raw"]
        recording.refresh()
        assert all(np.array_equal(recording.raw(seq), series.counts(seq)) for seq in range(4))
        assert np.array_equal(held[2], series.counts(2))


def test_a_reader_whose_file_is_gone_says_so(recorded: Path) -> None:
    with Recording(recorded) as recording:
        recorded.rename(recorded.with_suffix(".old"))
        with pytest.raises(FileFormatError, match=r"no recording file.*run\.h5"):
            recording.refresh()
        with pytest.raises(FileFormatError, match="opened again"):
            recording.raw(0)
        shutil.copy(recorded.with_suffix(".old"), recorded)
        with pytest.raises(FileFormatError, match="taken the place"):
            recording.refresh()
        recorded.with_suffix(".old").replace(recorded)
        recording.refresh()
        assert recording.raw_seqs == [0, 1, 2, 3]


def test_a_recording_is_named_after_its_series() -> None:
    assert recording_path(Path("out"), "run 1.2-b") == Path("out/run 1.2-b.h5")


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/abs", "a\\b", "a\0b", "a\nb", "µ" * 101])
def test_a_series_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="plain file name"):
        recording_path(Path("out"), name)


def test_viewers_find_the_plot_by_its_nexus_attributes(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        writer.write_raw(series.snapshot(0))
    with h5py.File(tmp_path / "run.h5") as file:
        node = file
        while node.attrs.get("NX_class") != "NXdata":
            node = node[node.attrs["default"]]
        assert np.array_equal(node[node.attrs["signal"]][0], series.counts(0))
        assert file["entry"].attrs["NX_class"] == "NXentry"
        assert "video" in file["entry"]


def test_the_calibration_can_be_taken_out_of_a_recording(tmp_path: Path, series) -> None:
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


WRITE_FOR_EVER = """
    import sys
    from pathlib import Path
    import numpy as np
    from sci_stream.files.recording import RecordingWriter
    from sci_stream.model import Policy, SeriesInfo, Snapshot, SnapshotId
    from sci_stream.optics.calibration import Calibration
    calibration = Calibration(phi=np.full((2, 64, 64), 0.5, np.float32))
    info = SeriesInfo("s", 0, "rig", Policy.RECORD, "m", "1", 64, 64, "Mono16", 16, 2, calibration.hash)
    writer = RecordingWriter(Path(sys.argv[1]), info, calibration)
    every = int(sys.argv[2])
    for seq in range(1 << 16):
        counts = np.full((64, 64), seq, np.uint16)
        writer.write_raw(Snapshot(SnapshotId("s", 0, seq), counts, calibration.hash, 2, seq))
        if seq % every == every - 1:
            writer.flush()
            print(seq + 1, flush=True)
"""


def start_writer(path: Path, every: int) -> subprocess.Popen[str]:
    code = textwrap.dedent(WRITE_FOR_EVER)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(every)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("every", [1, 16])
def test_after_a_kill_plain_h5py_reads_all_but_the_last_unflushed_batch(tmp_path: Path, every: int) -> None:
    path = tmp_path / "run.h5"
    writer = start_writer(path, every)
    assert writer.stdout is not None
    with writer.stdout:
        while int(writer.stdout.readline()) < 160:
            pass
        writer.send_signal(signal.SIGKILL)
        promised = max([160, *(int(line) for line in writer.stdout.read().splitlines())])
    writer.wait()

    with h5py.File(path, "r", swmr=True) as file:
        held = int((file["rows/state"][:] & 1).sum())
        assert promised <= held <= promised + every
        for row in range(held):
            assert (file["raw"][row] == row).all()
    with Recording(path) as recording:
        assert not recording.clean
        assert recording.raw_seqs == list(range(held))


def test_all_readers_in_a_process_follow_a_writer_in_another(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    writer = start_writer(path, 16)
    assert writer.stdout is not None
    with writer.stdout:
        writer.stdout.readline()
        with Recording(path) as first, Recording(path) as second:
            seen = 0
            for lap in (1, 2, 3):
                while int(writer.stdout.readline()) < 700 * lap:
                    pass
                first.refresh()
                second.refresh()
                assert len(first.raw_seqs) > seen
                seen = len(first.raw_seqs)
                for recording in (first, second):
                    assert all((recording.raw(seq) == seq).all() for seq in recording.raw_seqs)
            writer.kill()
            second.refresh()
            assert len(second.raw_seqs) >= seen
    writer.wait()


def test_a_disk_that_is_full_is_refused_before_it_does_harm(tmp_path: Path, series, monkeypatch) -> None:
    writer = RecordingWriter(tmp_path / "run.h5", series.info, series.calibration)
    writer.write_raw(series.snapshot(0))
    monkeypatch.setattr(recording_writer, "free_bytes", lambda _: 1000)
    with pytest.raises(StorageError, match=r"run\.h5.*full.*MB"):
        writer.write_reconstruction(series.reconstruction(1))
    writer.close({"acquired": 2})
    with Recording(writer.path) as recording:
        assert recording.raw_seqs == [0]
        assert recording.clean


def test_when_the_system_refuses_to_write_what_was_flushed_stays_readable(tmp_path: Path, series) -> None:
    writer = RecordingWriter(tmp_path / "run.h5", series.info, series.calibration, video=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    written = 0

    def write_on() -> None:
        nonlocal written
        for seq in range(1000):
            writer.write_raw(series.snapshot(seq))
            writer.flush()
            written += 1

    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
        with pytest.raises(StorageError, match=r"run\.h5.*MB free"):
            write_on()
        with pytest.raises(StorageError, match="has failed"):
            writer.write_raw(series.snapshot(2000))
        writer.close({"acquired": written})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert written > 10
    with Recording(tmp_path / "run.h5") as recording:
        assert recording.raw_seqs[:written] == list(range(written))
        assert all(np.array_equal(recording.raw(seq), series.counts(seq)) for seq in range(written))
        assert not recording.clean


def test_a_folder_that_is_missing_is_named(tmp_path: Path, series) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        RecordingWriter(tmp_path / "nowhere" / "run.h5", series.info, series.calibration)


def test_a_file_that_cannot_be_begun_is_not_left_behind(tmp_path: Path, series) -> None:
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        with pytest.raises(StorageError, match=r"run\.h5 cannot be"):
            RecordingWriter(tmp_path / "run.h5", series.info, series.calibration)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


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
    [foreign_text, cut_short, cut_short_in_use, foreign_hdf5, without_columns, with_other_info, newer, Path.unlink],
)
def test_what_is_not_a_recording_is_refused_with_its_name(tmp_path: Path, series, break_it) -> None:
    path = tmp_path / "run.h5"
    RecordingWriter(path, series.info, series.calibration).close()
    break_it(path)
    with pytest.raises(FileFormatError, match=r"run\.h5"):
        Recording(path)
