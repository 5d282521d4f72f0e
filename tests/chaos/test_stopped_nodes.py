"""Nodes stopped (SIGSTOP) and continued under backpressure: none may crash."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.e2e.kit import RunningRig, assert_accounted_for

pytestmark = pytest.mark.rig


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_repeatedly_frozen_nodes_under_backpressure_recover(tmp_path: Path) -> None:
    # Each message exceeds the socket buffers and heartbeats are frequent: stopping a node leaves
    # half-written messages, stalled reads and overdue heartbeats. ZeroMQ's own heartbeats aborted
    # the process here.
    changes = {
        "camera": {
            "options": {"width_px": 256, "height_px": 256, "snapshot_rate_hz": 60.0, "truth": False}
        },
        "reconstruct": {"nodes": 2, "solver": "identity", "iterations": 1, "credit": 8},
        "policy": {"mode": "record", "ring_mib": 16},
        "network": {"heartbeat_s": 0.1},
    }
    draw = random.Random(7)
    with RunningRig(tmp_path, changes) as rig:
        rig.wait_for_count("reconstructed", 5)
        processes = rig.nodes()
        for _ in range(40):
            node = draw.choice(["sink", "sink", "acquire", "reconstruct-0", "reconstruct-1"])
            processes[node].suspend()
            time.sleep(draw.uniform(0.2, 1.0))  # no node may crash, whatever this interrupts
            processes[node].resume()
            time.sleep(draw.uniform(0.0, 0.3))
        rig.wait_for_count(
            "reconstructed", rig.wait_until("a report", bool)["ledger.reconstructed"] + 5
        )
        assert {name: process.pid for name, process in rig.nodes().items()} == {
            name: process.pid for name, process in processes.items()
        }, rig.output
        rig.process.terminate()
        summary = rig.finish(timeout_s=180.0)
    ledger = assert_accounted_for(summary)
    assert set(ledger["dropped"]) <= {"ring_full"}
    assert summary["restarts"] == 0
    assert "Assertion failed" not in rig.output
