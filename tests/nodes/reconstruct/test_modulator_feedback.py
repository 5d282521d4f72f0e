"""The loop from picture to modulator, closed in one thread: delay and displaced masks are corrected
by it.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from sci_stream.config import CalibrationSection
from sci_stream.devices.modulated_camera import ModulatedCamera
from sci_stream.errors import CameraLost
from sci_stream.model import CameraFrame, Snapshot, SnapshotId
from sci_stream.modulation.feedback import CORRECTIONS, DELAY, SHIFT_X
from sci_stream.nodes.reconstruct.calibration_watch import CalibrationWatch
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings
from tests.tools.modulated import masks, modulated

CPU = torch.device("cpu")
SIZE = 128


def film(both: ModulatedCamera, snapshots: int) -> list[CameraFrame]:
    """Reconstruct snapshots and return the evidence of each to the camera; return the frames."""
    both.open()
    calibration = both.calibration()
    assert calibration is not None
    engine = Engine(
        calibration,
        make_denoiser("tv", CPU),
        CPU,
        replace(default_settings(CPU, "tv"), iterations=4),
    )
    watch = CalibrationWatch(CalibrationSection(health_every=1), engine)
    both.start()
    frames = []
    for seq in range(snapshots):
        try:
            frame = both.read(1.0)
        except CameraLost:  # to load other patterns, both are opened again
            both.close()
            both.open()
            both.start()
            frame = both.read(1.0)
        assert frame is not None
        snapshot = Snapshot(
            SnapshotId("s", 0, seq),
            frame.counts,
            calibration.hash,
            8,
            0,
            truth=frame.truth,
            chunks=frame.chunks,
        )
        solved = watch.finish(snapshot, watch.begin(snapshot, 4))
        both.observe(watch.evidence(snapshot, solved.report.health))
        frames.append(frame)
    both.close()
    return frames


def test_late_exposures_are_moved_to_the_light() -> None:
    late = modulated(masks(8, SIZE), delay_us=150.0)
    timing = late.camera.timing
    late.camera.timing = lambda: replace(
        timing(), readout_us=500.0
    )  # hidden in a gap, which costs the late light
    frames = film(late, 40)
    assert frames[0].chunks[DELAY] == 0
    assert -220 < frames[-1].chunks[DELAY] < -80


def test_displaced_masks_are_moved_back_by_mirrors() -> None:
    displaced = {"mask_shift_px": [2.0, 0.0], "mask_drift_limit_px": 4.0}
    both = modulated(masks(8, SIZE), displaced, mirror_px=(1.0, 1.0))
    frames = film(both, 25)
    assert [frames[0].chunks[SHIFT_X], frames[-1].chunks[SHIFT_X]] == [0, -2]
    assert frames[-1].chunks[CORRECTIONS] == 1
