"""Memory use of a long recording stays flat."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from sci_stream.model import Policy, SeriesInfo, Snapshot, SnapshotId
from sci_stream.nodes.sink.recorder import Recorder
from sci_stream.nodes.sink.series_recording import LedgerNote
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.series import RecordedSeries
from sci_stream.wire.messages import Dropped
from tests.nodes.sink.record_section import record_section

SIZE = 128
MIB = 1 << 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_is_flat_over_ten_thousand_snapshots(tmp_path: Path) -> None:
    calibration = Calibration(np.full((2, SIZE, SIZE), 0.5, np.float32))
    info = SeriesInfo(
        "run", 0, "rig", Policy.LIVE, "m", "1", SIZE, SIZE, "Mono16", 16, 2, calibration.hash
    )
    frame_bytes = 2 * SIZE**2
    section = record_section(tmp_path, video=False, segment_bytes=2500 * frame_bytes)
    recorder = Recorder(info, calibration, section, max_queue_bytes=64 * frame_bytes)
    recorder.start()
    process, levels = psutil.Process(), []
    for seq in range(12_000):
        if seq % 100 == 50:
            # Some drops: snapshots that were never stored must not take memory one by one.
            recorder.submit(Dropped("run", 0, seq, "queue_full"))
            continue
        counts = np.full((SIZE, SIZE), seq, np.uint16)
        snapshot = Snapshot(SnapshotId("run", 0, seq), counts, calibration.hash, 2, seq + 1)
        while recorder.is_full:
            time.sleep(0.001)
        recorder.submit(snapshot)
        recorder.submit(LedgerNote({"acquired": seq + 1}))
        if seq % 1000 == 999:
            gc.collect()
            levels.append(process.memory_info().rss / MIB)
    recorder.close({"acquired": 12_000, "closed": True})
    # 10 000 snapshots of 32 KiB are 312 MiB: anything kept of them would show.
    assert max(levels[2:]) - levels[1] < 16, [round(level, 1) for level in levels]
    with RecordedSeries(tmp_path / "run.h5") as series:
        assert len(series.segments) == 5
        assert len(series.raw) == 12_000 - 120
