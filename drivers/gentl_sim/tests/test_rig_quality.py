"""The whole instrument behind the simulated GenTL producer, as in a laboratory."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sci_stream.devices.solver import make_prior
from sci_stream.recon.engine import Engine
from sci_stream_drivers.simulated import SimulatedCamera, SimulatedOptions
from sci_stream_gentl_sim.accuracy import score
from sci_stream_gentl_sim.render import Rendered, render
from tests.drivers.camera_kit import frames
from tests.e2e.kit import RunningRig, assert_accounted_for, camera_of

CPU = torch.device("cpu")
SNAPSHOTS = 12
SCENE = {
    "width_px": 64,
    "height_px": 64,
    "n_frames": 4,
    "bayer": "RGGB",
    "snapshot_rate_hz": 10.0,
    "seed": 3,
}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    return render(SCENE, tmp_path_factory.mktemp("scene"), snapshots=SNAPSHOTS)


@pytest.fixture(scope="module")
def gentl_rig(gentl_producer: Path, rendered: Rendered) -> dict[str, Any]:
    """Return the changes to the small rig: the camera and its calibration."""
    if "harvesters" not in entry_points(group="sci_stream.cameras").names:
        pytest.skip("the driver of GenICam cameras is not registered: install the project again")
    options = {
        "cti": [str(gentl_producer)],
        "selector": {"serial": "SIM0001"},
        "features": [["SimFramesFile", str(rendered.frames)], ["PixelFormat", "BayerRG12p"]],
    }
    return {
        "camera": camera_of("harvesters", **options),
        "calibration": {"file": str(rendered.calibration), "health_every": 0},
        "policy": {"mode": "record"},
    }


def test_gentl_sim_quality_equals_simulated_camera(
    gentl_rig: dict[str, Any], rendered: Rendered, tmp_path: Path
) -> None:
    with RunningRig(tmp_path, gentl_rig, "--snapshots", str(SNAPSHOTS)) as rig:
        summary = rig.finish()
        (path,) = rig.segments()
    assert assert_accounted_for(summary)["reconstructed"] == SNAPSHOTS
    assert summary["ledger"]["camera_missed"] == 0
    report = score(path, rendered.truth)

    options = {
        **SCENE,
        "snapshot_rate_hz": 0.0,
        "loop_snapshots": SNAPSHOTS,
        "snapshots": SNAPSHOTS,
        "truth": True,
    }
    camera = SimulatedCamera(SimulatedOptions.model_validate(options))
    camera.open()
    calibration = camera.calibration()
    prior, settings = make_prior(rig.rig.reconstruct, CPU)
    engine = Engine(calibration, prior, CPU, settings)
    expected = []
    for seq, frame in enumerate(frames(camera, SNAPSHOTS)):
        snapshot = calibration.snapshot("simulated", seq, frame.counts, frame.truth)
        expected.append(engine.reconstruct(snapshot)[1].psnr_db)
    camera.close()
    assert len(report) == SNAPSHOTS
    assert np.mean(list(report.values())) == pytest.approx(np.mean(expected), abs=0.1)
