"""Crashes of the acquire node at any time: its series still ends, complete."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.kit import RunningRig, assert_accounted_for
from tests.e2e.test_lost_nodes import save_masks

pytestmark = [pytest.mark.rig, pytest.mark.slow]

RECORD = {"policy": {"mode": "record"}}


@pytest.mark.parametrize("nodes", [1, 0])
def test_acquire_and_sink_survive_repeated_kills(tmp_path: Path, nodes: int) -> None:
    # Enough that both restart before the series ends, even on a busy machine: camera and acquire
    # node do not wait for the sink, and a node that has ended by itself cannot be killed.
    n = 200
    changes = {**RECORD, "reconstruct": {"nodes": nodes}}
    with RunningRig(tmp_path, changes, "--snapshots", str(n)) as rig:
        series = rig.wait_for_count("reconstructed" if nodes else "raw_only", 2)["series"]
        for least in (8, 14):
            rig.wait_for_count("acquired", least)
            rig.kill("sink")
            rig.kill("acquire")
        summary = rig.finish()
        ledger = assert_accounted_for(summary)
        assert summary["series"] == series
        assert ledger["acquired"] == ledger["reconstructed"] + ledger["raw_only"] == n
        assert rig.output.count("acquire ended by SIGKILL") == 2
        with rig.recordings() as recordings:
            raws = sorted(seq for recording in recordings for seq in recording.raw_seqs)
            videos = sorted(seq for recording in recordings for seq in recording.video_seqs)
        assert raws == list(range(n)), "each snapshot once"
        assert len(videos) == len(set(videos)) == ledger["reconstructed"]


def test_broken_calibration_on_restart_ends_run_and_keeps_data(tmp_path: Path) -> None:
    masks = tmp_path / "masks.h5"
    save_masks(masks)
    policy = {"mode": "record", "spool": str(tmp_path / "spool")}
    changes = {"policy": policy, "calibration": {"file": str(masks)}}
    with RunningRig(tmp_path, changes) as rig:
        rig.wait_for_count("reconstructed", 2)
        content = masks.read_bytes()
        masks.write_bytes(content[: len(content) // 2])
        rig.kill("acquire")
        assert rig.wait() == 2
        assert "masks.h5" in rig.output
        assert "Traceback" not in rig.output
        assert sorted(path.name for path in (tmp_path / "spool").iterdir()) == [
            "test.ledger",
            "test.spool",
        ]
    # Once repaired, the same series resumes: no snapshot acquired before is lost.
    masks.write_bytes(content)
    with RunningRig(tmp_path, changes) as again:
        again.wait_for_count("reconstructed", 5)
        again.process.send_signal(signal.SIGTERM)
        summary = again.finish()
        ledger = assert_accounted_for(summary)
        assert "resuming series" in again.output
        with again.recordings() as recordings:
            assert {recording.info.series for recording in recordings} == {summary["series"]}
            raws = sorted(seq for recording in recordings for seq in recording.raw_seqs)
        assert raws == list(range(ledger["acquired"]))
