"""After a kill and on a full disk a recording contains everything that was flushed."""

from __future__ import annotations

import gc
import resource
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest

from sci_stream.errors import StorageError
from sci_stream.recording import segments
from sci_stream.recording.layout import Compression
from sci_stream.recording.reader import Recording
from sci_stream.recording.writer import RecordingWriter
from tests.recording.writing import start_writer

pytestmark = pytest.mark.rig


@pytest.mark.parametrize("every", [1, 16])
def test_h5py_reads_all_flushed_rows_after_a_kill(tmp_path: Path, every: int) -> None:
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


def test_all_readers_follow_a_writer_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    writer = start_writer(path, 16)
    assert writer.stdout is not None
    with writer.stdout:
        writer.stdout.readline()
        with Recording(path) as first, Recording(path) as second:
            seen = 0
            for lap in (1, 2, 3):
                while int(writer.stdout.readline()) < 200 * lap:
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


def test_full_disk_is_refused_in_advance(tmp_path: Path, series, monkeypatch) -> None:
    writer = RecordingWriter(tmp_path / "run.h5", series.info, series.calibration)
    writer.write_raw(series.snapshot(0))
    writer.flush()
    monkeypatch.setattr(segments, "free_bytes", lambda _: 1000)
    with pytest.raises(StorageError, match=r"run\.h5.*full.*MiB"):
        writer.write_reconstruction(series.reconstruction(1))
    writer.close({"acquired": 2})
    with Recording(writer.path) as recording:
        assert recording.raw_seqs == [0]
        assert recording.clean


@pytest.mark.parametrize("compression", list(Compression))
def test_flushed_data_stays_readable_after_a_write_error(
    tmp_path: Path, series, compression: Compression, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.h5"
    writer = RecordingWriter(path, series.info, series.calibration, compression=compression)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    flushed = 0

    def write_on(writer: RecordingWriter) -> None:
        nonlocal flushed
        for seq in range(1000):
            writer.write_raw(series.snapshot(seq))
            writer.flush()
            flushed += 1

    def assert_readable(recording: Recording) -> None:
        assert set(range(flushed)) <= set(recording.raw_seqs)
        for seq in range(flushed):
            assert np.array_equal(recording.raw(seq), series.counts(seq))
        assert not recording.clean

    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 400_000, hard))
        with pytest.raises(StorageError, match=r"run\.h5.*MiB free"):
            write_on(writer)
        with pytest.raises(StorageError, match="has failed"):
            writer.write_raw(series.snapshot(2000))
        with Recording(path) as recording:
            assert_readable(recording)
            writer.close({"acquired": flushed})
            recording.refresh()
            assert_readable(recording)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert flushed > 10
    del writer
    gc.collect()
    assert capfd.readouterr().err == "", "HDF5 and h5py print no traceback"
