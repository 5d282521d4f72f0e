"""Repair of recordings left by a crash."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from sci_stream.errors import StorageError
from sci_stream.recording import segments
from sci_stream.recording.inspection import inspect_recording
from sci_stream.recording.layout import Compression
from sci_stream.recording.reader import Recording
from sci_stream.recording.repair import repair_recording
from sci_stream.recording.series import RecordedSeries
from sci_stream.recording.writer import RecordingWriter
from tests.recording.writing import start_writer

pytestmark = pytest.mark.rig


def crashed(path: Path, series, compression: Compression = Compression.NONE) -> Path:
    """Copy a recording while its writer has it open, which equals the file after a kill."""
    live = path.with_name("live.h5")
    info = replace(series.info, chunks={"Gain": "dB"})
    with RecordingWriter(
        live, info, series.calibration, picture=True, error=True, compression=compression
    ) as writer:
        picture = np.full((*series.calibration.shape, 3), 7, np.uint8)
        writer.write_reconstruction(
            replace(series.reconstruction(0), chunks={"Gain": 6.0}, picture=picture)
        )
        writer.write_raw(series.snapshot(1))
        writer.write_outcome(2, "dropped", "queue_full")
        writer.write_raw(series.snapshot(5))
        writer.write_reconstruction(series.reconstruction(6))
        writer.notes["solvers"] = {"reconstruct-0": {"denoiser": "tv"}}
        writer.write_ledger({"acquired": 7})
        writer.flush()
        path.write_bytes(live.read_bytes())
    live.unlink()
    return path


@pytest.mark.parametrize("compression", Compression)
def test_repair_makes_a_clean_file_with_a_closed_ledger(
    tmp_path: Path, series, compression: Compression
) -> None:
    path = crashed(tmp_path / "run.h5", series, compression)
    before = path.read_bytes()
    done = repair_recording(path)
    assert done is not None
    assert done.original.read_bytes() == before
    with h5py.File(path) as file:
        assert file["raw"].shape[0] == file["rows/state"].shape[0] == 7, "no empty rows at its end"
        assert np.array_equal(file["raw"][5], series.counts(5)), "plain h5py reads it, without SWMR"
        assert file["rows/chunk_Gain"][0] == 6.0
        assert np.isnan(file["rows/chunk_Gain"][1:]).all()
    with Recording(path) as recording:
        assert recording.clean
        assert recording.raw_seqs == [0, 1, 5, 6]
        assert recording.video_seqs == [0, 6]
        assert all(
            np.array_equal(recording.raw(seq), series.counts(seq)) for seq in recording.raw_seqs
        )
        assert all(
            np.array_equal(recording.video(seq), series.video(seq)) for seq in recording.video_seqs
        )
        assert [recording.outcome(seq) for seq in range(7)] == [
            ("reconstructed", ""), ("raw_only", ""), ("dropped", "queue_full"), ("dropped",
            "lost_in_crash"),
            ("dropped", "lost_in_crash"), ("raw_only", ""), ("reconstructed", ""),
        ]  # fmt: skip
        assert recording.ledger == done.ledger == {
            "acquired": 7, "reconstructed": 2, "raw_only": 2, "not_kept": 0,
            "dropped": {"lost_in_crash": 2, "queue_full": 1},
            "in_flight": 0, "closed": True, "repaired": True,
        }  # fmt: skip
        assert (recording.seqs_with("picture"), recording.seqs_with("error")) == ([0], [0, 6])
        assert (recording.frame("picture", 0) == 7).all()
        assert recording.notes["solvers"] == {"reconstruct-0": {"denoiser": "tv"}}
        assert recording.calibration.hash == series.calibration.hash
    assert repair_recording(path) is None, "it needs no repair any more"


def test_replay_has_lost_no_snapshots_that_its_source_lacks(tmp_path: Path, series) -> None:
    path, live = tmp_path / "replay.h5", tmp_path / "live.h5"
    with RecordingWriter(
        live, series.info, series.calibration, raw=False, parent={"file": "run.h5"}
    ) as writer:
        for seq in (0, 1, 100):
            writer.write_reconstruction(series.reconstruction(seq))
        writer.flush()
        path.write_bytes(live.read_bytes())
    done = repair_recording(path)
    assert done is not None
    assert (done.ledger["acquired"], done.ledger["reconstructed"], done.ledger["dropped"]) == (
        3,
        3,
        {},
    )


def test_snapshots_of_other_segments_are_not_lost(tmp_path: Path, series) -> None:
    path = crashed(tmp_path / "run.h5", series)
    with RecordingWriter(path, series.info, series.calibration) as after:
        assert after.path.name == "run_001.h5"
        after.write_reconstruction(series.reconstruction(3))
        after.close({"acquired": 7})
    assert repair_recording(path) is not None
    with Recording(path) as recording:
        assert recording.outcome(3) is None
        assert recording.outcome(4) == ("dropped", "lost_in_crash")


def test_snapshot_in_flight_at_segment_change_has_one_outcome(tmp_path: Path, series) -> None:
    path = tmp_path / "run.h5"
    first = RecordingWriter(path, series.info, series.calibration)
    for seq in range(4):
        first.write_raw(series.snapshot(seq))
    first.write_outcome(0, "raw_only")
    with first.next_segment() as after:
        first.close({"acquired": 4}, continued=after.path.name)
        after.write_reconstruction(series.reconstruction(1))
        after.flush()
        left = after.path.read_bytes()
    after.path.write_bytes(left)
    done = repair_recording(after.path)
    assert done is not None
    assert done.snapshots == 3, "two more rows than before: snapshots with an outcome only"
    with Recording(after.path) as recording:
        assert [recording.outcome(seq) for seq in (1, 2, 3)] == [
            ("reconstructed", ""), ("raw_only", ""), ("raw_only", ""),
        ]  # fmt: skip
        assert recording.raw_seqs == []
    found = inspect_recording(path).figures
    assert (found["state"], found["rows"]["open"], found["stored"]["raw"]) == ("complete", 0, 4)


def test_ledger_of_repaired_segments_is_that_of_the_series(tmp_path: Path, series) -> None:
    path = crashed(tmp_path / "run.h5", series)
    with RecordingWriter(path, series.info, series.calibration) as after:
        after.write_reconstruction(series.reconstruction(1))
        after.write_outcome(7, "not_kept")
        after.flush()
        killed = after.path.read_bytes()
    after.path.write_bytes(killed)
    ledgers = [repair_recording(segment).ledger for segment in (path, after.path)]
    assert [ledger["acquired"] for ledger in ledgers] == [6, 8]
    summary = inspect_recording(path).figures
    assert summary["ledger"] == ledgers[-1]
    assert {name: ledgers[-1][name] for name in ("reconstructed", "raw_only", "not_kept")} == {
        "reconstructed": 3,
        "raw_only": 1,
        "not_kept": 1,
    }
    assert ledgers[-1]["dropped"] == {"queue_full": 1, "lost_in_crash": 2}
    assert [segment["state"] for segment in summary["segments"]] == ["continued", "last"]
    after.path.unlink()
    assert inspect_recording(path).figures["state"] != "complete", "a segment is missing"


def test_outcome_of_a_later_segment_is_kept(tmp_path: Path, series) -> None:
    path = crashed(tmp_path / "run.h5", series)
    with RecordingWriter(path, series.info, series.calibration) as after:
        after.write_reconstruction(series.reconstruction(1))
        after.close({"acquired": 7})
    done = repair_recording(path)
    assert done is not None
    with Recording(path) as recording:
        assert recording.outcome(1) is None
    assert done.ledger["acquired"] == 6
    assert inspect_recording(path).figures["rows"]["open"] == 0


def test_clean_file_is_unchanged(tmp_path: Path, series) -> None:
    path = tmp_path / "run.h5"
    RecordingWriter(path, series.info, series.calibration).close({})
    before = path.stat().st_mtime_ns
    assert repair_recording(path) is None
    assert path.stat().st_mtime_ns == before


def test_earlier_original_is_never_overwritten(tmp_path: Path, series) -> None:
    path = crashed(tmp_path / "run.h5", series)
    (tmp_path / "run.h5.crashed").write_text("precious")
    with pytest.raises(StorageError, match=r"run\.h5\.crashed exists"):
        repair_recording(path)
    assert (tmp_path / "run.h5.crashed").read_text() == "precious"


def test_file_that_is_being_recorded_is_refused(tmp_path: Path, series) -> None:
    with RecordingWriter(tmp_path / "run.h5", series.info, series.calibration) as writer:
        writer.write_raw(series.snapshot(0))
        writer.flush()
        with pytest.raises(StorageError, match="may be in use"):
            repair_recording(writer.path)
        assert writer.displaced() == ""


def test_file_of_a_killed_writer_is_repaired(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    writer = start_writer(path, 4)
    assert writer.stdout is not None
    with writer.stdout:
        while int(writer.stdout.readline()) < 100:
            pass
        writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert inspect_recording(path).figures["state"] == "unfinished"
    with Recording(path) as recording:
        held = recording.raw_seqs
    assert repair_recording(path) is not None
    with h5py.File(path) as file:
        assert all((file["raw"][row] == row).all() for row in held)
    assert inspect_recording(path).figures["state"] == "complete"


def test_repair_on_a_full_disk_leaves_the_original(
    tmp_path: Path, series, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = crashed(tmp_path / "run.h5", series)
    monkeypatch.setattr(segments, "free_bytes", lambda _path: 0)
    with pytest.raises(StorageError, match=r"run\.h5 cannot be written; got 0\.0 MiB free"):
        repair_recording(path)
    assert [file.name for file in tmp_path.iterdir()] == ["run.h5"]


def test_repair_command_handles_every_segment(tmp_path: Path, series) -> None:
    path = crashed(tmp_path / "run.h5", series)
    with RecordingWriter(path, series.info, series.calibration) as after:
        after.write_reconstruction(series.reconstruction(3))
        after.close({"acquired": 7})
    command = [sys.executable, "-m", "sci_stream", "repair", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "run.h5 is clean: 2 reconstructed + 2 raw only" in said
    with RecordedSeries(path) as recording:
        assert np.array_equal(recording.frame_of("video", 3), series.video(3))


def test_segment_left_open_after_its_last_ledger_is_repaired(tmp_path: Path, series) -> None:
    path = tmp_path / "run.h5"
    with RecordingWriter(path, series.info, series.calibration) as writer:
        writer.write_reconstruction(series.reconstruction(0))
        writer.flush()
        writer.write_ledger({"acquired": 1}, continued="run_001.h5")
        killed = path.read_bytes()  # as a kill between the ledger and the end of closing leaves it
    path.write_bytes(killed)
    with Recording(path) as recording:
        assert recording.continued == "run_001.h5"
        assert not recording.finished
    assert repair_recording(path) is not None
    with Recording(path) as recording, h5py.File(path) as plain:
        assert recording.finished
        assert plain["raw"].shape[0] == 1
