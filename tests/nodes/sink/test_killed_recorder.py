"""A recorder under load is killed at random moments: everything confirmed is readable and nothing
is corrupt.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from sci_stream.recording.columns import OUTCOME_CODES
from sci_stream.recording.inspection import inspect_recording
from sci_stream.recording.layout import RowState
from sci_stream.recording.reader import Recording
from sci_stream.recording.repair import repair_recording
from sci_stream.recording.segments import existing_segments

pytestmark = pytest.mark.rig

SIZE = 96
BATCH = 16
QUEUE = 24
"""Snapshots that fit the recorder's queue."""

# Raw snapshots and videos as fast as the recorder takes them, in segments of a few dozen; every
# confirmation that a snapshot is safe goes to standard output at once.
RECORD_FOR_EVER = f"""
    import os, sys
    from pathlib import Path
    import numpy as np
    from sci_stream.model import Policy, Reconstruction, SeriesInfo, Snapshot, SnapshotId, StageTimes
    from sci_stream.reports import SolveReport, Start
    from sci_stream.optics.calibration import Calibration
    from sci_stream.nodes.sink.recorder import Recorder
    from tests.nodes.sink.record_section import record_section
    from sci_stream.wire.messages import Dropped

    SIZE, frame = {SIZE}, 2 * {SIZE} ** 2
    calibration = Calibration(phi=np.full((2, SIZE, SIZE), 0.5, np.float32))
    info = SeriesInfo("run", 0, "rig", Policy.RECORD, "m", "1", SIZE, SIZE, "Mono16", 16, 2, calibration.hash)
    section = record_section(Path(sys.argv[1]), segment_bytes=150 * frame)
    recorder = Recorder(info, calibration, section, max_queue_bytes={QUEUE} * frame, batch_items={BATCH})
    recorder.start()
    report = SolveReport(
        iterations=1, start=Start.COLD, start_reason="first", budget_limited=False, solve_ns=1, residual=0.0)

    def say(word, seq):
        return lambda result: os.write(1, f"{{word}} {{seq}} {{result}}\\n".encode())

    for seq in range(1 << 16):
        os.write(1, f"sent {{seq}} -\\n".encode())
        counts = np.full((SIZE, SIZE), seq, np.uint16)
        snapshot = Snapshot(SnapshotId("run", 0, seq), counts, calibration.hash, 2, seq + 1)
        while recorder.is_full:
            pass
        recorder.submit(snapshot, say("raw", seq))
        if seq % 3 == 0:
            video = np.full((2, SIZE, SIZE), seq % 2048, np.float16)
            made = Reconstruction(
                snapshot.id, video, calibration.hash, report, StageTimes(acquired_ns=seq + 1), "n", "cpu")
            recorder.submit(made, say("video", seq))
        else:
            dropped = Dropped("run", 0, seq, "", "raw_only")
            recorder.submit(dropped, say("outcome", seq))
"""


def record_and_kill(folder: Path, after_s: float) -> dict[str, list[int]]:
    """Let a recorder run for a while after its first output, kill it, and return its output by
    keyword.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(RECORD_FOR_EVER), str(folder)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.readline()
        fd = process.stdout.fileno()
        deadline_s = time.monotonic() + after_s
        while time.monotonic() < deadline_s:
            said += os.read(fd, 1 << 16)
        process.kill()
        said += process.stdout.read()
    process.wait()
    words: dict[str, list[int]] = {"sent": [], "raw": [], "video": [], "outcome": []}
    for line in said.decode().splitlines():
        word, seq, result = line.split()
        assert result in {"-", "written"}
        words[word].append(int(seq))
    return words


def assert_whole(folder: Path, said: dict[str, list[int]]) -> None:
    """Assert with h5py alone that everything confirmed is stored unchanged and nothing is
    incomplete.
    """
    raw, video = set[int](), set[int]()
    for path in existing_segments(folder / "run.h5"):
        with h5py.File(path, "r", swmr=True) as file:
            first_seq = int(file.attrs["first_seq"])
            outcomes = file["rows/outcome"][:].tolist()
            for row, state in enumerate(file["rows/state"][:].tolist()):
                seq = row + first_seq
                # a sink that resumes the series accepts the outcome and does not request that
                # snapshot again.
                if row < len(outcomes) and outcomes[row] == OUTCOME_CODES["reconstructed"]:
                    assert state & RowState.VIDEO
                if state & RowState.RAW:
                    assert (file["raw"][row] == seq).all()
                    assert file["rows/host_time_ns"][row] == seq + 1
                    raw.add(seq)
                if state & RowState.VIDEO:
                    assert (file["video"][row] == seq % 2048).all()
                    video.add(seq)
    assert raw >= set(said["raw"])
    assert video >= set(said["video"])
    # The bound: what waited in the queue, and the batch in hand.
    assert len(said["sent"]) - len(raw) <= QUEUE + BATCH + 1


def assert_repaired(folder: Path, said: dict[str, list[int]]) -> None:
    """Assert that `inspect` reports it as unfinished and `repair` makes clean files of equal
    content.
    """
    first = folder / "run.h5"
    assert inspect_recording(first).figures["state"] == "unfinished"
    repaired = [
        done for path in existing_segments(first) if (done := repair_recording(path)) is not None
    ]
    assert 1 <= len(repaired) <= 2, (
        "the last segment, and the one before if the kill came between the two"
    )
    found = inspect_recording(first).figures
    assert found["state"] == "complete"
    assert found["stored"]["raw"] >= len(said["raw"])
    assert found["rows"]["open"] == 0
    for path in existing_segments(first):
        with h5py.File(path) as file, Recording(path) as recording:
            for seq in recording.raw_seqs:
                assert np.all(file["raw"][seq - recording.first_seq] == seq)


def kill_at_random(tmp_path: Path, seed: int) -> None:
    said = record_and_kill(tmp_path, random.Random(seed).uniform(0.0, 0.5))
    assert_whole(tmp_path, said)
    assert_repaired(tmp_path, said)


@pytest.mark.parametrize("seed", range(3))
def test_recorder_killed_under_load_keeps_confirmed_data(tmp_path: Path, seed: int) -> None:
    kill_at_random(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3, 53))
def test_recorder_killed_fifty_times_keeps_confirmed_data(tmp_path: Path, seed: int) -> None:
    kill_at_random(tmp_path, seed)
