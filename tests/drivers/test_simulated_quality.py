"""Simulated scenes can be recovered even with the prior that needs no weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sci_stream.model import Snapshot, SnapshotId
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings
from sci_stream_drivers.simulated import SimulatedCamera
from sci_stream_drivers.simulated.options import SimulatedOptions


@pytest.mark.parametrize(("scene", "least_db"), [("fast", 26.0), ("slow", 27.5)])
def test_tv_recovers_a_moving_colour_scene(scene: str, least_db: float) -> None:
    camera = SimulatedCamera(SimulatedOptions(scene=scene, truth=True, snapshot_rate_hz=0))
    capabilities = camera.open()
    try:
        calibration = camera.calibration()
        camera.start()
        frame = camera.read(1.0)
    finally:
        camera.close()
    assert calibration is not None
    assert frame is not None
    assert frame.truth is not None
    cpu = torch.device("cpu")
    engine = Engine(calibration, make_denoiser("tv", cpu), cpu, default_settings(cpu, "tv"))
    snapshot = Snapshot(
        SnapshotId("s", 0, 0),
        frame.counts,
        calibration.hash,
        calibration.n_frames,
        frame.host_time_ns,
        bayer=capabilities.bayer,
        truth=frame.truth,
    )
    video, report = engine.reconstruct(snapshot, 24)
    assert np.isfinite(video).all()
    assert report.psnr_db is not None
    assert report.psnr_db > least_db
