"""The recorder accepts items without blocking and reports the outcome of each."""

from __future__ import annotations

import dataclasses
import os
import queue
import resource
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sci_stream.config import RecordSection
from sci_stream.errors import InputError, StorageError
from sci_stream.nodes.sink import series_recording
from sci_stream.nodes.sink.recorder import Recorder
from sci_stream.nodes.sink.series_recording import LedgerNote, Written
from sci_stream.recording.reader import Recording
from sci_stream.recording.segments import free_bytes
from sci_stream.recording.series import RecordedSeries, open_recording
from sci_stream.recording.writer import MAX_EMPTY_ROWS, RecordingWriter
from sci_stream.wire.messages import Dropped
from tests.journals import read_journal
from tests.nodes.sink.record_section import record_section
from tests.series_fixtures import Series

GB = 1 << 30
LEDGER = {"acquired": 3, "closed": True}


def started(section: RecordSection, series: Series, **limits: int) -> Recorder:
    recorder = Recorder(series.info, series.calibration, section, **limits)
    recorder.start(make_folder=False)
    return recorder


@pytest.fixture
def recorder(tmp_path: Path, series):
    options = record_section(tmp_path)
    recorder = started(options, series)
    yield recorder
    recorder.close()


@pytest.fixture
def held(monkeypatch) -> threading.Event:
    """Hold the recorder back at each flush until the event is set."""
    release = threading.Event()
    flush: Callable[[RecordingWriter], None] = RecordingWriter.flush

    def slow(writer: RecordingWriter) -> None:
        release.wait(60)
        flush(writer)

    monkeypatch.setattr(RecordingWriter, "flush", slow)
    return release


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes free on the disk, as its only element."""
    free = [10 * GB]
    for module in ("nodes.sink.recorder", "nodes.sink.series_recording", "recording.segments"):
        monkeypatch.setattr(f"sci_stream.{module}.free_bytes", lambda _path: free[0])
    return free


def wait_for_room(recorder: Recorder) -> None:
    deadline_s = time.monotonic() + 60
    while recorder.is_full:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_series_is_recorded_with_its_ledger(recorder: Recorder, tmp_path: Path, series) -> None:
    recorder.submit(series.snapshot(0))
    recorder.submit(series.snapshot(1))
    recorder.submit(series.reconstruction(1))
    recorder.submit(series.reconstruction(2))
    recorder.close(LEDGER)
    recorder.close()
    assert recorder.status().rows == 3
    assert recorder.status().mb_per_s > 0, "however short it was"
    with Recording(tmp_path / "run-1.h5") as recording:
        assert recording.raw_seqs == [0, 1, 2]
        assert recording.video_seqs == [1, 2]
        assert recording.ledger == LEDGER
        assert recording.clean


def test_callback_comes_once_after_the_row_is_readable(
    recorder: Recorder, tmp_path: Path, series
) -> None:
    seen: list[tuple[int, Written, bool]] = []

    def note(seq: int) -> Callable[[Written], None]:
        def on_durable(result: Written) -> None:
            with Recording(tmp_path / "run-1.h5") as recording:
                seen.append((seq, result, seq in recording.raw_seqs))

        return on_durable

    for seq in (0, 1, 1, 2):
        recorder.submit(series.snapshot(seq), note(seq))
    recorder.close(LEDGER)
    assert seen == [
        (0, Written.WRITTEN, True),
        (1, Written.WRITTEN, True),
        (1, Written.WRITTEN, True),
        (2, Written.WRITTEN, True),
    ]


def test_flush_covers_items_queued_meanwhile(recorder: Recorder, series, held, monkeypatch) -> None:
    flushes: list[int] = []
    write_all = RecordingWriter.flush
    monkeypatch.setattr(
        RecordingWriter, "flush", lambda writer: (flushes.append(1), write_all(writer))[1]
    )
    for seq in range(20):
        recorder.submit(series.snapshot(seq))
    held.set()
    recorder.close(LEDGER)
    assert len(flushes) <= 4  # at most: the first, the other nineteen, and at the end


def test_full_queue_says_so_until_it_has_room(tmp_path: Path, series, held) -> None:
    size = series.counts(0).nbytes
    recorder = started(record_section(tmp_path), series, max_queue_bytes=4 * size, batch_items=1)
    assert not recorder.is_full
    for seq in range(7):
        recorder.submit(series.snapshot(seq))
    assert recorder.is_full
    held.set()
    wait_for_room(recorder)
    recorder.submit(series.snapshot(7))
    recorder.close(LEDGER)
    with Recording(tmp_path / "run-1.h5") as recording:
        assert recording.raw_seqs == list(range(8))


def test_outcomes_are_recorded_and_journalled(recorder: Recorder, tmp_path: Path, series) -> None:
    recorder.submit(Dropped("run-1", 1, 0, "overrun"))
    recorder.submit(Dropped("run-1", 1, 0, "again"))
    recorder.submit(LedgerNote({"acquired": 1}))
    recorder.close(LEDGER)
    with Recording(tmp_path / "run-1.h5") as recording:
        assert recording.outcome(0) == ("dropped", "overrun")
    events = read_journal(tmp_path / "run-1.journal.jsonl")
    assert [event["event"] for event in events] == ["series_started", "outcome", "series_ended"]
    assert (events[1]["seq"], events[1]["reason"]) == (0, "overrun")
    assert events[2]["ledger"] == LEDGER


def test_recording_can_stop_and_restart_in_a_series(tmp_path: Path, series) -> None:
    for seq in range(2):
        recorder = started(record_section(tmp_path), series)
        assert recorder.status().state == "recording"
        recorder.submit(series.snapshot(seq))
        recorder.close(LEDGER)
        assert recorder.status().state == "idle"
        results: list[Written] = []
        recorder.submit(series.snapshot(9), results.append)
        assert results == [Written.LOST]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run-1.h5",
        "run-1.journal.jsonl",
        "run-1_001.h5",
    ]


def test_missing_folder_or_full_disk_is_refused_at_start(
    tmp_path: Path, series, free: list[int]
) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        started(record_section(tmp_path / "nowhere"), series)
    free[0] = 1000
    with pytest.raises(StorageError, match="Not enough disk space"):
        started(record_section(tmp_path, floor_free_bytes=1 * GB), series)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp/x", "a/b", "..", "", ".hidden"])
def test_series_name_outside_the_folder_is_refused(tmp_path: Path, series, name: str) -> None:
    options = record_section(tmp_path)
    with pytest.raises(InputError, match="name"):
        Recorder(dataclasses.replace(series.info, series=name), series.calibration, options).start()
    assert list(tmp_path.iterdir()) == []


def test_recorder_stops_cleanly_at_disk_floor(tmp_path: Path, series, free: list[int]) -> None:
    recorder = started(record_section(tmp_path, floor_free_bytes=1 * GB), series)
    recorder.submit(series.snapshot(0))
    free[0] = GB // 2
    results: list[Written] = []
    done = threading.Event()

    def on_durable(result: Written) -> None:
        results.append(result)
        done.set()

    for seq in range(1, 50):
        recorder.submit(series.snapshot(seq), on_durable)
        assert done.wait(60)
        if recorder.status().state != "recording":
            break
        done.clear()
    else:
        pytest.fail("it went on recording below the floor")
    status = recorder.status()
    assert status.state == "stopped"
    assert "disk full" in status.reason
    recorder.close(LEDGER)
    with Recording(tmp_path / "run-1.h5") as recording:
        assert len(recording.raw_seqs) == 1 + results.count(Written.WRITTEN)
    events = read_journal(tmp_path / "run-1.journal.jsonl")
    assert [event["event"] for event in events if event["event"] != "space_low"] == [
        "series_started",
        "stopped",
        "series_ended",
    ]


def test_low_disk_warning_comes_and_goes(tmp_path: Path, series, free: list[int]) -> None:
    free[0] = 3 * GB
    options = record_section(tmp_path, floor_free_bytes=1 * GB)
    recorder = started(options, series)

    def warning_after(seq: int) -> str:
        written = threading.Event()
        # The second callback comes after the first batch's look at the disk.
        for part in (seq, seq + 1):
            written.clear()
            recorder.submit(series.snapshot(part), lambda _: written.set())
            assert written.wait(60)
        return str(recorder.status().warning)

    assert "3.2 GB" in warning_after(0)
    free[0] = 9 * GB
    assert warning_after(2) == ""
    recorder.close()


@pytest.mark.parametrize(("floor", "free_then"), [(GB, GB // 2), (0, 1000)])
def test_recording_continues_once_a_full_disk_has_room(
    tmp_path: Path, series, free: list[int], floor: int, free_then: int
) -> None:
    recording = started(record_section(tmp_path, floor_free_bytes=floor), series)
    # Under the floor, or too little for a snapshot and the end of the file.
    free[0] = free_then
    seq = 0
    while recording.is_on:
        recording.submit(series.snapshot(seq))
        seq += 1
        time.sleep(0.01)
    assert recording.status().state == ("stopped" if floor else "failed")
    recording.try_again(seq, 100.0)
    assert not recording.is_on, "it has no room yet"
    free[0] = 9 * GB
    recording.try_again(seq, 101.0)
    assert not recording.is_on, "it is tried every few seconds"
    recording.try_again(seq, 110.0)
    assert recording.is_on
    recording.close()
    assert len(list(tmp_path.glob("*.h5"))) == 2


def test_recording_continues_after_its_file_was_deleted(tmp_path: Path, series) -> None:
    recording = started(record_section(tmp_path), series)
    recording.submit(series.snapshot(0))
    while recording.status().rows < 1:
        time.sleep(0.01)
    (tmp_path / "run-1.h5").unlink()
    while recording.is_on:
        recording.submit(series.snapshot(1))
        time.sleep(0.01)
    recording.try_again(1, 100.0)
    recording.submit(series.snapshot(2))
    recording.close(LEDGER)
    with Recording(tmp_path / "run-1.h5") as recorded:
        assert recorded.raw_seqs == [2]


def test_disk_that_is_not_mounted_is_not_replaced_by_its_folder(
    tmp_path: Path, series, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the mount point stays, on the disk of the system."""
    recorder = Recorder(series.info, series.calibration, record_section(tmp_path))
    recorder._device = -1
    with pytest.raises(StorageError, match="not mounted"):
        recorder.start()
    recorder.resume(0)
    assert not recorder.is_on
    assert list(tmp_path.iterdir()) == []


def test_write_error_is_reported_for_each_item(
    recorder: Recorder, tmp_path: Path, series, monkeypatch
) -> None:
    def broken(*_: object) -> bool:
        raise StorageError("the disk is gone")

    results: list[Written] = []
    recorder.submit(series.snapshot(0))
    monkeypatch.setattr(RecordingWriter, "write_reconstruction", broken)
    failed = threading.Event()
    recorder.submit(
        series.reconstruction(1), lambda result: (results.append(result), failed.set())[0]
    )
    assert failed.wait(60)
    recorder.close(LEDGER)
    assert results == [Written.LOST]
    assert recorder.status().state == "failed"
    assert "the disk is gone" in recorder.status().reason
    with Recording(tmp_path / "run-1.h5") as recording:
        assert np.array_equal(recording.raw(0), series.counts(0))


def test_unfit_snapshot_is_refused_alone(recorder: Recorder, tmp_path: Path, series) -> None:
    results: list[Written] = []
    recorder.submit(series.snapshot(0, counts=np.zeros((2, 2), np.uint16)), results.append)
    recorder.submit(series.snapshot(1), results.append)
    recorder.close(LEDGER)
    assert results == [Written.LOST, Written.WRITTEN]
    assert read_journal(tmp_path / "run-1.journal.jsonl")[1]["event"] == "refused"


def test_failing_callback_does_not_end_the_recording(
    recorder: Recorder, tmp_path: Path, series
) -> None:
    def wrong(_: Written) -> None:
        raise ValueError("a caller's mistake")

    recorder.submit(series.snapshot(0), wrong)
    recorder.submit(series.snapshot(1))
    recorder.close(LEDGER)
    with Recording(tmp_path / "run-1.h5") as recording:
        assert recording.raw_seqs == [0, 1]


def test_recording_closed_without_ledger_is_readable_not_clean(tmp_path: Path, series) -> None:
    recorder = started(record_section(tmp_path), series)
    recorder.submit(series.snapshot(0))
    recorder.close()
    recorder.close()
    with Recording(tmp_path / "run-1.h5") as recording:
        assert recording.raw_seqs == [0]
        assert not recording.clean


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system small enough to fill: the one that SCI_STREAM_SMALL_DISK names, or one in
    memory.
    """
    named = os.environ.get("SCI_STREAM_SMALL_DISK")
    if named is not None:
        yield Path(named)
        return
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no small disk: {mounted.stderr.strip()}; SCI_STREAM_SMALL_DISK may name one")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_real_disk_leaves_a_clean_prefix(small_disk: Path, series) -> None:
    recorder = started(record_section(small_disk), series)
    results: list[Written] = []
    seq = 0
    ballast = small_disk / "ballast"
    while recorder.is_on:
        recorder.submit(series.snapshot(seq), results.append)
        with ballast.open("ab") as file:
            file.write(b"\1" * min(100_000, max(0, free_bytes(ballast) - 4096)))
        seq += 1
    assert recorder.status().state == "failed"
    path = Path(recorder.status().file)
    recorder.close(LEDGER)
    with Recording(path) as recording:
        assert len(recording.raw_seqs) >= results.count(Written.WRITTEN)
        assert all(np.array_equal(recording.raw(s), series.counts(s)) for s in recording.raw_seqs)


def test_small_disk_that_was_full_is_used_again(small_disk: Path, series) -> None:
    recorder = started(record_section(small_disk, floor_free_bytes=1 << 20), series)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(free_bytes(ballast) - (1 << 19)))
    seq = 0
    while recorder.is_on:
        recorder.submit(series.snapshot(seq))
        seq += 1
        time.sleep(0.01)
    recorder.try_again(seq, 100.0)
    assert not recorder.is_on
    ballast.unlink()
    recorder.try_again(seq, 110.0)
    assert recorder.is_on
    recorder.submit(series.snapshot(seq))
    recorder.close(LEDGER)
    with RecordedSeries(small_disk / "run-1.h5") as recording:
        assert recording.raw.seqs[-1] == seq


def test_segments_by_size_make_one_recording(tmp_path: Path, series) -> None:
    size = series.counts(0).nbytes
    recorder = started(
        record_section(tmp_path, video=False, segment_bytes=3 * size), series, batch_items=1
    )
    for seq in range(8):
        recorder.submit(series.snapshot(seq))
        recorder.submit(Dropped("run-1", 1, seq, "", "raw_only"))
        recorder.submit(LedgerNote({"acquired": seq + 1}, {"solvers": {"reconstruct-0": {}}}))
    recorder.close(LEDGER)
    status = recorder.status()
    assert (status.segment, status.rows, status.bytes) == (2, 8, 8 * size)
    with Recording(tmp_path / "run-1.h5") as first, Recording(tmp_path / "run-1_001.h5") as second:
        assert first.raw_seqs == [0, 1, 2]
        assert first.continued == "run-1_001.h5"
        assert first.ledger is not None, "the ledger so far, for a first segment that is read alone"
        assert second.raw_seqs == [3, 4, 5]
    with RecordedSeries(tmp_path / "run-1.h5") as whole:
        assert whole.raw.seqs.tolist() == list(range(8))
        assert all(
            np.array_equal(whole.frame_of("raw", seq), series.counts(seq)) for seq in range(8)
        )
        assert whole.ledger == LEDGER
        assert whole.notes == {"solvers": {"reconstruct-0": {}}}
    events = [event["event"] for event in read_journal(tmp_path / "run-1.journal.jsonl")]
    assert events.count("segment_started") == 2


def test_next_segment_has_no_row_for_snapshots_settled_before(tmp_path: Path, series) -> None:
    recorder = started(record_section(tmp_path, segment_bytes=1), series, batch_items=1)
    for item in (
        series.snapshot(0),
        LedgerNote({"acquired": 5}, settled_below=5),
        series.snapshot(5),
    ):
        recorder.submit(item)
    recorder.close(LEDGER)
    with (
        Recording(tmp_path / "run-1_001.h5") as second,
        Recording(tmp_path / "run-1_002.h5") as third,
    ):
        assert (second.first_seq, third.first_seq) == (0, 5)


def test_row_far_ahead_ends_the_recording_with_a_reason(recorder: Recorder, series) -> None:
    recorder.submit(series.snapshot(0))
    recorder.submit(series.snapshot(2 * MAX_EMPTY_ROWS))
    recorder.close(LEDGER)
    assert "too far ahead" in recorder.status().incomplete_reason


def test_segments_by_age_are_never_empty(tmp_path: Path, series) -> None:
    recorder = started(record_section(tmp_path, segment_s=1e-6), series)
    done = threading.Event()
    for seq in range(3):
        done.clear()
        recorder.submit(series.snapshot(seq), lambda _: done.set())
        assert done.wait(60)
    recorder.close(LEDGER)
    paths = sorted(tmp_path.glob("run-1*.h5"), key=lambda path: (len(path.stem), path.stem))
    for path in paths[:-1]:
        with Recording(path) as recording:
            assert recording.raw_seqs


def test_recorder_without_descriptors_continues_and_retries(
    tmp_path: Path, series, monkeypatch
) -> None:
    monkeypatch.setattr(series_recording, "_RETRY_SEGMENT_S", 0.0)
    recorder = started(record_section(tmp_path, segment_bytes=1), series)

    def record(seq: int) -> Written:
        written: queue.SimpleQueue[Written] = queue.SimpleQueue()
        recorder.submit(series.snapshot(seq), written.put)
        return written.get(timeout=60)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        assert [record(seq) for seq in range(3)] == [Written.WRITTEN] * 3
        status = recorder.status()
        assert status.state == "recording"
        assert status.segment == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "next segment cannot begin" in status.warning
    assert [record(seq) for seq in range(3, 5)] == [Written.WRITTEN] * 2
    recorder.close(LEDGER)
    assert recorder.status().state == "idle"
    assert recorder.status().segment > 0
    assert recorder.status().warning == ""
    with open_recording(tmp_path / "run-1.h5") as recording:
        assert list(recording.raw.seqs) == list(range(5))
