"""A rig without reconstruct nodes sends many snapshots a message: faults in the middle of one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sci_stream.errors import StorageError
from tests.e2e.kit import RunningRig, assert_accounted_for

pytestmark = pytest.mark.rig

RATE_HZ = 200.0
RAW = {
    "camera": {"options": {"snapshot_rate_hz": RATE_HZ, "truth": False}},
    "policy": {"mode": "record"},
    "reconstruct": {"nodes": 0},
    "record": {"video": False},
}


def recorded(rig: RunningRig) -> dict[int, tuple[int, ...]]:
    """Return epoch, frame id and frames missed before of each recorded snapshot, read with its
    checksum.
    """
    rows: dict[int, tuple[int, ...]] = {}
    with rig.recordings() as recordings:
        for recording in recordings:
            for seq in recording.raw_seqs:
                assert seq not in rows, "each snapshot once"
                recording.raw(seq)
                index = seq - recording.first_seq
                rows[seq] = tuple(
                    int(recording.rows[name][index])
                    for name in ("epoch", "camera_frame_id", "dropped_before")
                )
    return rows


@pytest.mark.parametrize("victims", [("acquire",), ("sink",), ("acquire", "sink")])
def test_kill_in_the_middle_of_a_group_loses_nothing(
    tmp_path: Path, victims: tuple[str, ...]
) -> None:
    with RunningRig(tmp_path, RAW) as rig:
        rig.wait_for_count("raw_only", 5)
        for least in (100, 300):
            rig.wait_for_count("acquired", least)
            for victim in victims:
                rig.kill(victim)
        rig.wait_for_count("raw_only", 500)
        rig.process.terminate()
        ledger = assert_accounted_for(rig.finish())
        assert ledger["raw_only"] == ledger["acquired"], "nothing was dropped"
        rows = recorded(rig)
        assert sorted(rows) == list(range(ledger["acquired"]))
        assert len({row[0] for row in rows.values()}) == 1 + 2 * ("acquire" in victims)
    # A number that is issued is that of one frame: none is skipped or repeated in an epoch.
    for seq in range(1, len(rows)):
        before, now = rows[seq - 1], rows[seq]
        assert now[0] != before[0] or now[1] == before[1] + 1 + now[2]


def test_stalled_sink_drops_raw_snapshots_beyond_memory_alone(tmp_path: Path) -> None:
    changes = {**RAW, "policy": {"mode": "record", "ring_mib": 1}}
    with RunningRig(tmp_path, changes) as rig:
        rig.wait_for_count("raw_only", 5)
        sink = rig.nodes()["sink"]
        sink.suspend()
        # 128 of them fill a MiB, and as many again are in the sockets.
        time.sleep(800 / RATE_HZ)
        sink.resume()
        rig.process.terminate()
        ledger = assert_accounted_for(rig.finish(status=StorageError.exit_status))
        assert set(ledger["dropped"]) == {"ring_full"}
        rows = recorded(rig)
    assert len(rows) == ledger["raw_only"] == ledger["acquired"] - ledger["dropped"]["ring_full"]
