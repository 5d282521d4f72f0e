"""A slow sink and a faulty camera: the run continues and the ledger counts the losses."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from sci_stream.errors import StorageError
from sci_stream.nodes.sink.recorder import Recorder
from sci_stream.transport import results_server
from tests import plain_http
from tests.conftest import RigMaker
from tests.e2e.kit import PATIENCE_S, RunningRig, assert_accounted_for, wait_for
from tests.ports import free_ports
from tests.rig_in_process import RunningRigSolvedHere

pytestmark = pytest.mark.rig


def test_stalled_sink_drops_only_what_exceeds_memory(tmp_path: Path) -> None:
    health = dict(
        zip(("acquire_port", "sink_port", "reconstruct_port"), free_ports(3), strict=True)
    )
    changes = {
        "camera": {"options": {"snapshot_rate_hz": 100.0, "truth": False}},
        "health": {"enabled": True, **health},
        "reconstruct": {"solver": "identity", "iterations": 1},
        "policy": {"mode": "record", "ring_mib": 1},
    }
    with RunningRigSolvedHere(tmp_path, changes) as rig:
        rig.wait_for_count("reconstructed", 2)
        sink = rig.nodes()["sink"]
        sink.suspend()
        # 128 of them fill a MiB, and as many again are in flight. The sink that reports them
        # otherwise is stopped.
        before = acquired(health["acquire_port"])
        wait_for(
            lambda: acquired(health["acquire_port"]) > before + 300,
            "more snapshots than there is memory for",
        )
        sink.resume()
        rig.process.terminate()
        ledger = assert_accounted_for(rig.finish(status=StorageError.exit_status))
        assert set(ledger["dropped"]) == {"ring_full"}
        with rig.recordings() as recordings:
            raws = sorted(seq for recording in recordings for seq in recording.raw_seqs)
        assert len(raws) == len(set(raws)) == ledger["acquired"] - ledger["dropped"]["ring_full"], (
            "all that fit into memory"
        )


def test_slow_disk_makes_no_node_lost(
    rig_in_process: RigMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rig_in_process()
    rig.reconstruct()
    with monkeypatch.context() as slow:
        slow.setattr(Recorder, "is_full", True)
        rig.expose()
        time.sleep(5 * rig.rig.network.heartbeat_s)
    rig.wait_for(lambda: rig.counts()["reconstructed"] == 2, "the disk is fast again")
    lost = [record for record in caplog.records if record.name == results_server.__name__]
    assert [record.getMessage() for record in lost if record.levelno >= logging.WARNING] == []


def acquired(port: int) -> float:
    """Return the number of acquired snapshots that the acquire node itself reports."""
    metrics = plain_http.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S).text
    return next(
        float(line.split()[1])
        for line in metrics.splitlines()
        if line.startswith("sci_stream_acquired_total ")
    )


@pytest.mark.slow
def test_faulty_camera_while_nodes_are_killed(tmp_path: Path) -> None:
    faults = {
        "drop_probability": 0.1,
        "duplicate_probability": 0.1,
        "stall_every": 10,
        "stall_s": 0.3,
        "disconnect_after": 12,
        "disconnects": 1,
        "return_after_s": 0.3,
    }
    changes = {
        "camera": {"options": {"snapshot_rate_hz": 20.0, "faults": faults, "truth": False}},
        "policy": {"mode": "record"},
    }
    with RunningRig(tmp_path, changes, "--snapshots", "50") as rig:
        rig.wait_for_count("acquired", 14)
        rig.kill("acquire")
        rig.wait_for_count("acquired", 22)
        rig.kill("reconstruct-0")
        summary = rig.finish()
        ledger = assert_accounted_for(summary)
        assert ledger["acquired"] == ledger["reconstructed"] + ledger["raw_only"] == 50
        with rig.recordings() as (recording,):
            assert recording.raw_seqs == list(range(50))
            assert ledger["camera_missed"] == recording.rows["dropped_before"].sum(), (
                "over both processes of the node"
            )
            assert sorted(set(recording.rows["epoch"].tolist())) == list(
                range(recording.rows["epoch"].max() + 1)
            )
