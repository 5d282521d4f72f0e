"""The whole instrument on a GenICam camera: from a GenTL producer to the recording, with a
reconnect.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from drivers.gentl_sim.tests.kit import ramp, sim_options
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import save_calibration
from tests.e2e.kit import RunningRig, assert_accounted_for, camera_of

SIZE = 64


def test_reconnected_gentl_camera_starts_new_epoch(tmp_path: Path, gentl_producer: Path) -> None:
    phi = (np.random.default_rng(1).random((4, SIZE, SIZE)) < 0.5).astype(np.float32)
    save_calibration(
        tmp_path / "calibration.h5", Calibration(phi=phi, full_scale_dn=1000.0, bit_depth=12)
    )
    faults = [["AcquisitionFrameRate", 20.0], ["SimUnplugAfter", 15], ["SimUnplugTime", 300.0]]
    options = sim_options(
        gentl_producer, *faults, form="Mono12p", size=SIZE, chunks=["ExposureTime", "Gain"]
    )
    changes = {
        "camera": camera_of("harvesters", **options),
        "calibration": {"file": "calibration.h5"},
        "policy": {"mode": "record"},
    }
    with RunningRig(tmp_path, changes, "--snapshots", "30") as run:
        ledger = assert_accounted_for(run.finish())
        assert ledger["acquired"] == 30
        assert ledger["reconstructed"] + ledger["raw_only"] == 30
        assert "camera reconnected: epoch 1" in run.output
        with run.recordings() as recordings:
            (recording,) = recordings
            assert recording.raw_seqs == list(range(30))
            ids = [recording.camera_frame_id(seq) for seq in recording.raw_seqs]
            assert ids == [*range(15), *range(15)], "frame ids restart in each epoch"
            assert set(recording.rows["chunk_ExposureTime"]) == {100.0}, "chunk data of each frame"
            assert set(recording.rows["chunk_Gain"]) == {0.0}
            for seq in recording.raw_seqs:
                np.testing.assert_array_equal(recording.raw(seq), ramp(seq % 15, "Mono12p", SIZE))
