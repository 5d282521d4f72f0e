"""A camera many times faster than reconstruction: the promises of each policy."""

from __future__ import annotations

import contextlib
import itertools
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sci_stream
from sci_stream.errors import StorageError, TransportError
from tests.conftest import RigMaker
from tests.e2e.kit import RunningRig, assert_accounted_for, merged
from tests.rig_in_process import RunningRigSolvedHere
from tests.slow_denoiser import SLOW

pytestmark = pytest.mark.rig

RATE_HZ = 50.0
QUEUE = 4
OVERLOAD: dict[str, dict[str, Any]] = {
    "camera": {
        "options": {
            "width_px": 128,
            "height_px": 128,
            "n_frames": 8,
            "bayer": "none",
            "snapshot_rate_hz": RATE_HZ,
            "loop_snapshots": 4,
            "truth": False,
        },
    },
    "policy": {"queue_snapshots": QUEUE},
    # An adaptive budget would follow the load; these tests need the overload.
    "reconstruct": SLOW,
}

SNAPSHOTS = 40
SMALL = {"width_px": 64, "height_px": 64, "n_frames": 4}
BURST = merged(
    OVERLOAD, {"camera": {"options": {**SMALL, "trigger": "free", "snapshot_rate_hz": 0.0}}}
)
"""All snapshots at once, as fast as the camera simulates them."""


def test_live_policy_drops_oldest_and_counts(rig_in_process: RigMaker) -> None:
    rig = rig_in_process(BURST, snapshots=SNAPSHOTS)
    ledger = assert_accounted_for(rig.finish())
    assert ledger["acquired"] == SNAPSHOTS > 2 * ledger["reconstructed"]
    assert ledger["raw_only"] == 0
    assert set(ledger["dropped"]) == {"queue_full"}
    with rig.recordings() as (recording,):
        outcomes = [recording.outcome(seq) for seq in range(SNAPSHOTS)]
        assert outcomes.count(("reconstructed", "")) == ledger["reconstructed"] >= QUEUE
        assert outcomes.count(("dropped", "queue_full")) == ledger["dropped"]["queue_full"]
        # The newest snapshot is dropped last: the series ends with it displayed.
        assert recording.video_seqs[-1] == SNAPSHOTS - 1


def test_live_policy_keeps_results_recent(rig_in_process: RigMaker) -> None:
    """While the camera runs, results are no older than the snapshots that node and queue hold."""
    acquired = round(3 * RATE_HZ)
    rig = rig_in_process(
        merged(OVERLOAD, {"camera": {"options": {"trigger": "free"}}}), snapshots=acquired
    )
    seen: list[int] = []
    while rig.nodes["acquire"].running:
        with contextlib.suppress(TransportError):  # none within a second
            seen.extend(
                each.id.seq for each in sci_stream.subscribe(rig.rig.network.taps, timeout_s=1.0)
            )
    assert len(seen) > 1
    assert seen == sorted(set(seen))
    ledger = assert_accounted_for(rig.finish())
    assert ledger["acquired"] == acquired > 2 * ledger["reconstructed"]
    with rig.recordings() as (recording,):
        rows, shown = recording.rows, recording.video_seqs
        finished_ns, acquired_ns = rows["finished_ns"][shown], rows["host_time_ns"][shown]
        ages_s = (finished_ns - acquired_ns)[finished_ns < acquired_ns[-1]] / 1e9
        holds = rig.rig.reconstruct.credit + 1
        assert (
            max(ages_s, default=0)
            < holds * np.diff(finished_ns).max() / 1e9 + QUEUE / RATE_HZ + 1.0
        )


def test_record_policy_keeps_every_raw_snapshot(rig_in_process: RigMaker) -> None:
    rig = rig_in_process(merged(BURST, {"policy": {"mode": "record"}}), snapshots=SNAPSHOTS)
    ledger = assert_accounted_for(rig.finish())
    assert ledger["dropped"] == {}
    assert ledger["raw_only"] > ledger["reconstructed"] > 0
    with rig.recordings() as (recording,):
        assert recording.raw_seqs == list(range(SNAPSHOTS))
        assert len(recording.video_seqs) == ledger["reconstructed"]
        # A loop of four snapshots: each is recorded as itself, not as its neighbour.
        for seq, later in itertools.pairwise(range(0, SNAPSHOTS, 4)):
            assert (recording.raw(seq) == recording.raw(later)).all()


def test_overload_reduces_iterations_before_dropping(rig_in_process: RigMaker) -> None:
    # All fit: on a busy machine the first solve, before its duration is known, takes seconds.
    changes = {
        "camera": {"options": {"snapshot_rate_hz": 20.0}},
        "policy": {"queue_snapshots": SNAPSHOTS},
        "reconstruct": {
            "solver": "tv",
            "iterations": 400,
            "min_iterations": 2,
            "adapt_budget": True,
        },
    }
    rig = rig_in_process(merged(BURST, changes), snapshots=SNAPSHOTS)
    summary = rig.finish()
    assert assert_accounted_for(summary)["dropped"] == {}
    assert summary["iterations"]["budget_limited"] > 0
    assert 2 <= summary["iterations"]["min"] < 400
    with rig.recordings() as (recording,):
        assert recording.rows["iterations"][-1] < 400


def test_time_beyond_the_least_iterations_is_spent(rig_in_process: RigMaker) -> None:
    changes = {
        "camera": {"options": {"snapshot_rate_hz": 1.0}},
        "reconstruct": {
            "solver": "tv",
            "iterations": 6,  # few, so that a busy machine has time for them
            "min_iterations": 2,
            "adapt_budget": True,
        },
    }
    rig = rig_in_process(merged(BURST, changes), snapshots=4)
    assert rig.finish()["iterations"]["max"] == 6


@pytest.mark.slow
def test_memory_budget_overflow_is_counted(tmp_path: Path) -> None:
    # 1 MiB for snapshots of 128 KiB, with an unlimited queue.
    changes = {
        **OVERLOAD,
        "camera": {"options": {**OVERLOAD["camera"]["options"], "width_px": 256, "height_px": 256}},
        "policy": {"queue_snapshots": 1000, "ring_mib": 1},
        "reconstruct": {"iterations": 20, "adapt_budget": False},
    }
    with RunningRig(tmp_path, changes, "--snapshots", "60") as rig:
        ledger = assert_accounted_for(rig.finish())
        assert ledger["acquired"] == 60
        assert set(ledger["dropped"]) == {"ring_full"}
        # Seven fit, with the notes of the node on each.
        assert ledger["reconstructed"] >= 7


@pytest.mark.parametrize("policy", ["live", "record"])
def test_overload_keeps_memory_flat_and_ends_soon(tmp_path: Path, policy: str) -> None:
    """Thousands of snapshots a second: the bookkeeping of each shows, not its pixels."""
    tiny = {
        "camera": {"options": {"width_px": 16, "height_px": 16}},
        "policy": {"mode": policy, "ring_mib": 4},
    }
    with RunningRigSolvedHere(tmp_path, merged(BURST, tiny)) as rig:
        sizes = [
            resident_mib(rig)
            for n in range(10_000, 50_001, 10_000)
            if rig.wait_for_count("acquired", n)
        ]
        stopped_s = time.monotonic()
        rig.process.send_signal(signal.SIGINT)
        status = rig.wait(120)
        ledger = assert_accounted_for(rig.summary())
        # The status shows that the recording lacks snapshots, also those of a sink that is behind.
        is_incomplete = policy == "record" or ledger["dropped"].get("ring_full", 0) > 0
        assert status == (StorageError.exit_status if is_incomplete else 0), rig.output
        assert policy == "record" or time.monotonic() - stopped_s < 15
        assert ledger["raw_only"] + sum(ledger["dropped"].values()) > 10 * ledger["reconstructed"]
    for node in ("acquire", "sink"):  # a reconstruct node has few of them
        growth = np.diff([size[node] for size in sizes])
        # A sink that was behind fills its buffers, once or twice; a leak of 0.4 KiB a snapshot
        # shows every time.
        assert np.sort(growth)[1] < 4, (
            f"{node} grew by {growth.round(1)} MiB, every 10,000 snapshots"
        )


def resident_mib(rig: RunningRig) -> dict[str, float]:
    return {name: process.memory_info().rss / 2**20 for name, process in rig.nodes().items()}


def test_rig_without_nodes_records_raw_and_waits_for_none(tmp_path: Path) -> None:
    changes = {
        "policy": {"mode": "record"},
        "reconstruct": {"nodes": 0},
        # Longer than the test has patience.
        "drain": {"timeout_s": 3000.0},
        "record": {"video": False},
    }
    with RunningRig(tmp_path, merged(BURST, changes), "--snapshots", str(SNAPSHOTS)) as rig:
        ledger = assert_accounted_for(rig.finish())
        assert ledger["raw_only"] == ledger["acquired"] == SNAPSHOTS
        with rig.recordings() as (recording,):
            assert recording.raw_seqs == list(range(SNAPSHOTS))
            assert recording.seqs_with_outcome("raw_only") == list(range(SNAPSHOTS))
