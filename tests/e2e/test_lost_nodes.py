"""Nodes killed during a run: they restart, no snapshot is lost, none is recorded twice."""

from __future__ import annotations

import re
import signal
from collections import Counter
from pathlib import Path

import pytest

import sci_stream
from sci_stream.recording.calibration_file import save_calibration
from sci_stream.recording.reader import Recording
from sci_stream_drivers.simulated import SimulatedCamera
from sci_stream_drivers.simulated.options import SimulatedOptions
from tests.e2e.kit import PATIENCE_S, RunningRig, assert_accounted_for, small_rig, wait_for
from tests.rig_in_process import RunningRigSolvedHere
from tests.slow_denoiser import SLOW

pytestmark = pytest.mark.rig(seconds=50)

# No series here has a limit: on a busy machine it could end before the test reaches its next step.
# Snapshots cost little, so that the backlog is small, and all of it is delivered at the end.
RUNS_ON = {"reconstruct": {"nodes": 2, "block_snapshots": 3}, "drain": {"timeout_s": 600.0}}
RESUMED = re.compile(r"resuming series \S+ at snapshot (\d+)")


@pytest.mark.parametrize("policy", [pytest.param("live", marks=pytest.mark.slow), "record"])
def test_killed_reconstruct_node_loses_nothing(tmp_path: Path, policy: str) -> None:
    # A heartbeat so slow that no peer times out: only the end of a node's process gets its
    # snapshots redelivered.
    changes = {**RUNS_ON, "policy": {"mode": policy}, "network": {"heartbeat_s": 6.0}}
    with RunningRig(tmp_path, changes) as rig:
        begun = rig.wait_for_count("reconstructed", 4)["ledger.acquired"]
        killed, other = rig.nodes()["reconstruct-0"], rig.nodes()["reconstruct-1"]
        # Both are stopped until they hold all that their credit allows.
        killed.suspend()
        other.suspend()
        section = rig.rig.reconstruct
        rig.wait_for_count("acquired", begun + 2 * (section.credit + section.block_snapshots))
        killed.kill()
        wait_for(lambda: rig.nodes().get("reconstruct-0", killed) != killed, "it is restarted")
        other.resume()
        rig.wait_for_count("redelivered", 1)
        rig.process.send_signal(signal.SIGTERM)
        summary = rig.finish()

        ledger = assert_accounted_for(summary)
        assert ledger["acquired"] == ledger["reconstructed"]
        assert 1 <= ledger["redelivered"] <= section.credit
        assert summary["restarts"] == 1
        assert "reconstruct-0 ended by SIGKILL: restarting" in rig.output
        with rig.recordings() as (recording,):
            assert recording.raw_seqs == recording.video_seqs == list(range(ledger["acquired"]))
            redelivered = sum(recording.report(seq)[2] > 0 for seq in recording.video_seqs)
        assert redelivered == ledger["redelivered"]


def test_frozen_node_snapshots_are_redelivered(tmp_path: Path) -> None:
    # Snapshots waiting in the short queue are dropped for newer ones; dispatched ones are not.
    changes = {
        **RUNS_ON,
        "camera": {"options": {"snapshot_rate_hz": 40.0}},
        "reconstruct": {**RUNS_ON["reconstruct"], **SLOW},
        "policy": {"queue_snapshots": 4},
    }
    with RunningRig(tmp_path, changes) as rig:
        rig.wait_for_count("reconstructed", 4)
        # Its connections stay open and it is silent: only the missing heartbeats show it. Until
        # they do, it receives snapshots up to its credit.
        hung, said = rig.nodes()["reconstruct-1"], len(rig.output)
        hung.suspend()
        # Detected: the snapshots that it held go to the other node first.
        lost = re.compile(r"reconstruct-1@\w+ lost: heartbeat timeout")
        wait_for(lambda: lost.search(rig.output[said:]), "the loss is detected")
        rig.wait_for_count("redelivered", 1)
        before = rig.wait_until("a report", bool)["ledger.duplicates"]
        # On its return it finishes them too and sends results that the ledger already has.
        hung.resume()
        rig.wait_for_count("duplicates", before + 1)
        rig.process.send_signal(signal.SIGTERM)
        summary = rig.finish()
        ledger = assert_accounted_for(summary)
        assert set(ledger["dropped"]) <= {"queue_full"}
        assert ledger["redelivered"] >= 1
        assert ledger["duplicates"] >= 1
        assert summary["restarts"] == 0
        assert summary["by_node"]["reconstruct-1"] > 0
        with rig.recordings() as (recording,):
            assert (
                len(recording.video_seqs)
                == len(set(recording.video_seqs))
                == ledger["reconstructed"]
            )


def test_killed_sink_and_acquire_node_resume_the_series(tmp_path: Path) -> None:
    spool, masks = tmp_path / "spool", tmp_path / "masks.h5"
    save_masks(masks)
    changes = {
        **RUNS_ON,
        # A node of the rig itself: the camera waits for it. Before a node that comes by itself,
        # the policy `record` would keep raw counts alone.
        "reconstruct": {**RUNS_ON["reconstruct"], "nodes": 1},
        "policy": {"mode": "record", "spool": str(spool)},
        "preview": {"enabled": True},
        "calibration": {"file": str(masks)},
    }
    with RunningRig(tmp_path, changes) as rig:
        begun = rig.wait_for_count("reconstructed", 6)
        # A run keeps its rig file and its masks: restarted nodes read the same as before.
        rig.path.write_text("[rig")
        masks.write_bytes(b"")
        running = sci_stream.control(f"http://127.0.0.1:{rig.rig.preview.port}")
        running.set("acquire", exposure=0.5)
        rig.kill("sink")
        rig.wait_for_count("reconstructed", begun["ledger.reconstructed"] + 6)
        kill_acquire_node(rig)
        wait_for(
            lambda: "setting exposure = 0.5 again" in rig.output, "the sink sees the restarted node"
        )

        def is_set() -> bool:
            node = running.nodes().get("acquire")  # the page follows the sink by half a second
            return node is not None and node.parameters["exposure"].value == 0.5

        wait_for(is_set, "the operator's value holds")
        rig.process.send_signal(signal.SIGTERM)
        summary = rig.finish(2 * PATIENCE_S)

        ledger = assert_accounted_for(summary)
        acquired = ledger["acquired"]
        assert summary["series"] == begun["series"]
        assert ledger["reconstructed"] == acquired, ledger
        assert summary["restarts"] == 2
        assert {(change["old"], change["new"]) for change in summary["changes"]} <= {(0.9, 0.5)}
        first, second = rig.segments()
        assert (first.stem, second.stem) == (summary["series"], f"{summary['series']}_001")
        with rig.recordings() as (before, after):
            assert not before.clean
            assert after.clean
            assert len(before.video_seqs) >= 6
            # Nothing is lost or in both segments; raw counts and video of one snapshot may be in
            # different ones.
            assert_each_once([before.raw_seqs, after.raw_seqs], acquired)
            assert_each_once([before.video_seqs, after.video_seqs], acquired)
            assert_readable(before)
            assert_readable(after)
            assert_two_epochs(after)
        # Its figures cover the whole series, not only the second sink.
        assert len(summary["psnr_db"]["per_snapshot"]) == acquired
        assert sum(summary["by_node"].values()) == acquired
        assert list(spool.glob("*")) == [], "the finished series leaves no file"


def save_masks(path: Path) -> None:
    """Save the calibration of the rigs' simulated camera."""
    camera = SimulatedCamera(SimulatedOptions(**small_rig()["camera"]["options"]))
    camera.open()
    save_calibration(path, camera.calibration())
    camera.close()


@pytest.mark.slow
def test_killed_acquire_node_resumes_live_series_from_spool(tmp_path: Path) -> None:
    with RunningRigSolvedHere(tmp_path, {**RUNS_ON, "policy": {"mode": "live"}}) as rig:
        begun = rig.wait_for_count("reconstructed", 4)
        kill_acquire_node(rig)
        rig.process.send_signal(signal.SIGTERM)
        summary = rig.finish()
        ledger = assert_accounted_for(summary)
        assert summary["series"] == begun["series"]
        assert summary["restarts"] == 1
        assert ledger["acquired"] == ledger["reconstructed"]
        with rig.recordings() as (recording,):
            assert recording.raw_seqs == recording.video_seqs == list(range(ledger["acquired"]))
            assert_readable(recording)
            assert_two_epochs(recording)


def kill_acquire_node(rig: RunningRig) -> None:
    """Kill it and wait until the next one has acquired too: its snapshots survive, frames in
    between do not.
    """
    rig.kill("acquire")
    wait_for(lambda: RESUMED.search(rig.output), "it resumes the series")
    resumed = RESUMED.search(rig.output)
    assert resumed is not None
    rig.wait_for_count("acquired", int(resumed[1]) + 4)


def test_series_left_without_sink_is_resumed_from_spool(tmp_path: Path) -> None:
    changes = {
        **RUNS_ON,
        "camera": {"options": {"snapshot_rate_hz": 5.0}},  # a busy machine solves as many
        "policy": {"mode": "live", "queue_snapshots": 1000, "spool": str(tmp_path / "spool")},
        "drain": {"timeout_s": 1.0},
    }
    with RunningRigSolvedHere(tmp_path, changes) as rig:
        rig.wait_for_count("reconstructed", 3)
        rig.process.send_signal(signal.SIGSTOP)  # it would start the sink again
        rig.kill("sink")
        rig.process.kill()
        wait_for(lambda: not rig.nodes(), "the nodes give up")
    assert list((tmp_path / "spool").glob("*.spool"))
    with RunningRigSolvedHere(tmp_path, {**changes, "drain": {"timeout_s": 600.0}}) as rig:
        wait_for(lambda: RESUMED.search(rig.output), "it resumes the series")
        rig.wait_for_count("reconstructed", 1)
        rig.process.send_signal(signal.SIGTERM)
        rig.finish()
        with rig.recordings() as recordings:
            for recording in recordings:
                assert recording.ledger is not None
                assert not recording.ledger["dropped"].get("acquire_lost")


def assert_each_once(parts: list[list[int]], acquired: int) -> None:
    counts = Counter(seq for part in parts for seq in part)
    assert counts == Counter(range(acquired))


def assert_readable(recording: Recording) -> None:
    for seq in recording.raw_seqs:
        assert recording.raw(seq).any()
    for seq in recording.video_seqs:
        assert recording.video(seq).any()


def assert_two_epochs(recording: Recording) -> None:
    epochs = recording.rows["epoch"].tolist()
    assert epochs == sorted(epochs)
    assert set(epochs) == {0, 1}
