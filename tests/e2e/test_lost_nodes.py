"""Nodes that are killed in mid-run: they come back, nothing is lost, nothing is there twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sci_stream.files.recording import Recording
from tests.e2e.kit import RunningRig, assert_accounted_for

SNAPSHOTS = 32
# A camera a little faster than the solvers, so that every node has its hands full when it is killed.
BUSY = {
    "camera": {"options": {"snapshot_rate_hz": 40.0}},
    "reconstruct": {"nodes": 2, "iterations": 12, "block_snapshots": 3},
}


@pytest.mark.parametrize("policy", ["live", "record"])
def test_a_reconstruct_node_killed_in_mid_run_costs_nothing(tmp_path: Path, policy: str) -> None:
    changes = {**BUSY, "policy": {"mode": policy}}
    with RunningRig(tmp_path, changes, "--snapshots", str(SNAPSHOTS)) as rig:
        rig.wait_for_count("reconstructed", 4)
        rig.kill("reconstruct-0")
        summary = rig.finish()

        ledger = assert_accounted_for(summary)
        assert ledger["acquired"] == ledger["reconstructed"] == SNAPSHOTS
        assert 1 <= ledger["redelivered"] <= rig.rig.reconstruct.credit
        assert summary["restarts"] == 1
        assert "reconstruct-0 ended by SIGKILL: starting it again" in rig.output
        with rig.recordings() as (recording,):
            assert recording.raw_seqs == recording.video_seqs == list(range(SNAPSHOTS))
            redelivered = sum(recording.report(seq)[2] > 0 for seq in recording.video_seqs)
        assert redelivered == ledger["redelivered"]


def test_a_node_that_hangs_loses_its_snapshots_to_the_other_until_it_is_back(tmp_path: Path) -> None:
    changes = {**BUSY, "network": {"heartbeat_s": 0.2}, "reconstruct": {"nodes": 2, "iterations": 30}}
    with RunningRig(tmp_path, changes, "--snapshots", str(SNAPSHOTS)) as rig:
        rig.wait_for_count("reconstructed", 4)
        # Its connections stay open, and it says nothing any more: only the missing heartbeats tell.
        hung = rig.nodes()["reconstruct-1"]
        hung.suspend()
        # The other node gets what it held, before anything else; then it may come back.
        rig.wait_for_count("redelivered", 1)
        assert "is gone: it was silent for too long" in rig.output
        hung.resume()
        summary = rig.finish()
        ledger = assert_accounted_for(summary)
        assert ledger["acquired"] == ledger["reconstructed"] == SNAPSHOTS
        assert 1 <= ledger["redelivered"] <= rig.rig.reconstruct.credit
        assert summary["restarts"] == 0
        with rig.recordings() as (recording,):
            assert recording.video_seqs == list(range(SNAPSHOTS))


def test_a_sink_killed_in_mid_run_takes_the_series_up_where_its_recording_ends(tmp_path: Path) -> None:
    changes = {
        **BUSY,
        "policy": {"mode": "record"},
        "reconstruct": {"nodes": 1, "iterations": 12},
    }
    with RunningRig(tmp_path, changes, "--snapshots", str(SNAPSHOTS)) as rig:
        rig.wait_for_count("reconstructed", 6)
        rig.kill("sink")
        summary = rig.finish()

        ledger = assert_accounted_for(summary)
        assert ledger["acquired"] == ledger["reconstructed"] == SNAPSHOTS
        assert summary["restarts"] == 1
        first, second = rig.segments()
        assert (first.stem, second.stem) == (summary["series"], f"{summary['series']}_001")
        with rig.recordings() as (before, after):
            assert not before.clean
            assert after.clean
            assert len(before.video_seqs) >= 6
            # Nothing is lost and nothing is in both; of one snapshot, raw counts may be in one and video in the other.
            assert_each_once([before.raw_seqs, after.raw_seqs])
            assert_each_once([before.video_seqs, after.video_seqs])
            assert_readable(before)
            assert_readable(after)
        # Its figures are of the whole series, not of what the second process saw.
        assert len(summary["psnr_db"]["per_snapshot"]) == SNAPSHOTS
        assert sum(summary["by_node"].values()) == SNAPSHOTS


def test_an_acquire_node_that_is_killed_ends_its_series_unclosed_and_the_run_says_so(tmp_path: Path) -> None:
    # Slow enough that the series is not over by the time it is known to have begun.
    slowly = {**BUSY, "camera": {"options": {"snapshot_rate_hz": 8.0}}}
    with RunningRig(tmp_path, slowly, "--snapshots", str(SNAPSHOTS)) as rig:
        rig.wait_for_count("reconstructed", 4)
        first_series = rig.wait_until("a series", lambda report: "series" in report)["series"]
        rig.kill("acquire")
        # The camera's frames of the meantime are gone: the new process begins a new series, complete in itself.
        status = rig.wait()
        summary = rig.summary()
        assert status == 4, rig.output
        assert "Traceback" not in rig.output
        assert summary["series"] != first_series
        assert assert_accounted_for(summary)["reconstructed"] == SNAPSHOTS
        with Recording(Path(rig.rig.record.folder) / f"{first_series}.h5") as left:
            assert len(left.video_seqs) >= 4
            assert_readable(left)
            assert left.ledger is not None
            assert not left.ledger["closed"]


def assert_each_once(parts: list[list[int]]) -> None:
    counts = Counter(seq for part in parts for seq in part)
    assert counts == Counter(range(SNAPSHOTS))


def assert_readable(recording: Recording) -> None:
    for seq in recording.raw_seqs:
        assert recording.raw(seq).any()
    for seq in recording.video_seqs:
        assert recording.video(seq).any()
