"""Faults of frames, injected into a whole rig: in log, summary, row, last line and status."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sci_stream.errors import DataError
from sci_stream.model import CameraFrame
from sci_stream.nodes.launcher.run import complete_summary
from sci_stream_drivers.simulated import SimulatedCamera
from tests.conftest import RigMaker

pytestmark = pytest.mark.rig

ONSET, SNAPSHOTS = 8, 20
RATE_HZ = 40.0
FREE = {"camera": {"options": {"trigger": "free", "snapshot_rate_hz": RATE_HZ}}}

Fault = Callable[[CameraFrame, CameraFrame], CameraFrame | None]
"""A frame as it arrives in place of one, with the frame that arrived before."""


class FaultyCamera(SimulatedCamera):
    """The simulated camera; from frame `ONSET` on, its frames have a fault."""

    fault: Fault
    number = 0
    before: CameraFrame | None = None

    def read(self, timeout_s: float) -> CameraFrame | None:
        frame = super().read(timeout_s)
        if frame is None:
            return None
        self.number += 1
        if self.number > ONSET:
            assert self.before is not None
            frame = type(self).fault(frame, self.before)
        self.before = frame or self.before
        return frame


def repeated(frame: CameraFrame, before: CameraFrame) -> CameraFrame:
    return replace(frame, counts=before.counts.copy())


def lower_half(frame: CameraFrame, counts: np.ndarray) -> CameraFrame:
    rows = len(frame.counts) // 2
    return replace(frame, counts=np.concatenate([frame.counts[:rows], counts[rows:]]))


def torn(frame: CameraFrame, before: CameraFrame) -> CameraFrame:
    return lower_half(frame, before.counts)


def halved(frame: CameraFrame, _: CameraFrame) -> CameraFrame:
    return lower_half(frame, np.zeros_like(frame.counts))


def every_second_missed(frame: CameraFrame, _: CameraFrame) -> CameraFrame | None:
    """Miss a trigger: the camera counts exposures, not triggers."""
    assert frame.frame_id is not None
    late = frame.frame_id - ONSET
    return None if late % 2 else replace(frame, frame_id=ONSET + late // 2)


def stopped_clock(frame: CameraFrame, before: CameraFrame) -> CameraFrame:
    return replace(frame, camera_time_ns=before.camera_time_ns)


FAULTS: dict[str, tuple[Fault, int, str]] = {
    "identical": (repeated, 1, "frames repeat the frame before"),
    "torn": (torn, 2, "frames contain rows of a frame before"),
    "rows_missing": (halved, 4, "frames lack rows"),
    "trigger_missed": (every_second_missed, 8, "frames come after a missed trigger"),
    "clock": (stopped_clock, 32, "frames have a time that does not increase"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_of_frames_is_named_within_ten_snapshots(
    rig_in_process: RigMaker, name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    fault, bit, words = FAULTS[name]
    kind = type("Faulty", (FaultyCamera,), {"fault": staticmethod(fault)})
    rig = rig_in_process(FREE, snapshots=SNAPSHOTS, camera=kind)
    summary = rig.finish()
    assert words in caplog.text
    assert not summary["calibration"]["defects"], "such frames say nothing of the masks"
    assert summary["frame_faults"][name] >= SNAPSHOTS - ONSET - 2
    account = tmp_path / "summary.json"
    account.write_text(json.dumps(summary))
    lines, status = complete_summary(account, restarts=0)
    assert status == DataError.exit_status
    assert any(words in line for line in lines)
    with rig.recordings() as (recording,):
        marks = recording.rows["chunk_FrameFault"]
        assert np.isnan(marks[:ONSET]).all()
        assert (marks[ONSET : ONSET + 10] == bit).any()
        missed = int(recording.rows["dropped_before"].sum())
    assert summary["ledger"]["camera_missed"] == missed
    if name == "trigger_missed":
        assert missed >= SNAPSHOTS - ONSET - 2
        assert f", {missed} missed by the camera = " in lines[0]


def test_undisturbed_frames_have_no_fault(
    rig_in_process: RigMaker, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rig_in_process(FREE, snapshots=SNAPSHOTS)
    summary = rig.finish()
    assert sum(summary["frame_faults"].values()) == summary["ledger"]["camera_missed"] == 0
    assert "frames" not in caplog.text
