"""A camera that drops frames, repeats them and reconnects: every fault is detected and counted."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.conftest import RigMaker
from tests.e2e.kit import assert_accounted_for

SNAPSHOTS = 40


def test_camera_faults_appear_in_ledger(
    rig_in_process: RigMaker, caplog: pytest.LogCaptureFixture
) -> None:
    faults = {
        "drop_probability": 0.2,
        "duplicate_probability": 0.2,
        "id_last": 15,
        "disconnect_after": 15,
        "disconnects": 2,
        "return_after_s": 0.05,
    }
    rig = rig_in_process(
        {"camera": {"options": {"trigger": "free", "faults": faults}}}, snapshots=SNAPSHOTS
    )
    summary = rig.finish()
    ledger = assert_accounted_for(summary)
    assert ledger["acquired"] == ledger["reconstructed"] == SNAPSHOTS
    assert ledger["camera_missed"] > 0
    assert caplog.text.count("camera lost") == 2
    assert "camera reconnected: epoch 1" in caplog.text
    assert "camera reconnected: epoch 2" in caplog.text

    with rig.recordings() as (recording,):
        assert recording.raw_seqs == recording.video_seqs == list(range(SNAPSHOTS))
        epochs = recording.rows["epoch"]
        ids = recording.rows["camera_frame_id"]
        missed = recording.rows["dropped_before"]
        assert sorted(set(epochs.tolist())) == [0, 1, 2]
        assert (np.diff(epochs) >= 0).all()
        # The missed count equals the gaps between the frame ids, which wrap after 15.
        for epoch in range(3):
            own = ids[epochs == epoch]
            gaps = [(later - earlier - 1) % 16 for earlier, later in pairwise(own.tolist())]
            assert missed[epochs == epoch].tolist() == [0, *gaps]
        assert ledger["camera_missed"] == missed.sum()
        # No frame appears twice: duplicates are recognised by their ids and get no seq.
        for epoch in range(3):
            own = ids[epochs == epoch]
            assert (np.diff(own) != 0).all()
