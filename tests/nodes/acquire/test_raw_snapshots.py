"""Snapshots that are only recorded: many in a file of the spool, and many in a message."""

from __future__ import annotations

import dataclasses
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sci_stream.field_types import MAX_CHUNKS, MAX_TEXT
from sci_stream.model import SnapshotId
from sci_stream.nodes.acquire.in_flight import InFlightSnapshots, MemoryBudget
from sci_stream.nodes.acquire.raw_groups import in_groups
from sci_stream.nodes.acquire.spool import Spool
from sci_stream.wire.codec import decode, encode
from sci_stream.wire.header import MAX_PAYLOADS
from sci_stream.wire.messages import RawRow, RawSnapshots
from sci_stream.wire.payload import with_checksum
from tests.e2e.kit import ROOT, environment
from tests.nodes.acquire.test_spool import HEIGHT, WIDTH, info, new, taken_up

# Of a header of a spooled snapshot without chunks.
HEADER_BYTES = 24 + 49 + 1


def raw(seq: int, *, epoch: int = 0, chunks: dict[str, Any] | None = None) -> RawSnapshots:
    counts = np.random.default_rng(seq).integers(0, 4096, (HEIGHT, WIDTH), dtype=np.uint16)
    row = RawRow(1000 + seq, seq or None, 7 * seq if seq % 2 else None, seq % 3, chunks or {})
    return RawSnapshots.one(SnapshotId("s-1", epoch, seq), with_checksum(counts), row, info())


def same(one: RawSnapshots, other: RawSnapshots) -> bool:
    return (one.id, one.rows) == (other.id, other.rows) and all(
        a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in zip(one.counts, other.counts, strict=True)
    )


def seqs(recovered: tuple[RawSnapshots, ...]) -> list[int]:
    return [one.id.seq for one in recovered]


def test_raw_snapshots_of_one_file_are_recovered_bit_for_bit(tmp_path: Path) -> None:
    spool = new(tmp_path / "rig.spool")
    made = [raw(seq, epoch=seq // 20, chunks={"Gain": seq / 3, "Line": "on"}) for seq in range(40)]
    for one in made:
        assert spool.keep_raw(one, missed=one.id.seq)
    assert spool.status() == {"spooled": 40, "unspooled": 0}
    spool.close(over=False)
    files = {path.name for path in (tmp_path / "rig.spool").iterdir()}
    assert files == {"series", "0.raw", "32.raw"}
    left = taken_up(tmp_path / "rig.spool")
    assert (left.next_seq, left.epoch, left.camera_missed, left.corrupt) == (40, 1, 39, 0)
    assert all(same(one, other) for one, other in zip(left.raw, made, strict=True))
    assert list(left.lost) == []


def test_confirmed_raw_snapshots_are_not_recovered(tmp_path: Path) -> None:
    spool = new(tmp_path / "rig.spool")
    for seq in range(40):
        spool.keep_raw(raw(seq), 0)
    for seq in range(35):
        spool.release(seq)
        spool.confirm(seq)
    spool.close(over=False)
    left = taken_up(tmp_path / "rig.spool")
    assert (seqs(left.raw), left.next_seq) == ([35, 36, 37, 38, 39], 40)


def test_file_is_used_again_without_its_earlier_snapshots(tmp_path: Path) -> None:
    spool = new(tmp_path / "rig.spool")
    for seq in range(33):
        spool.keep_raw(raw(seq), 0)
    for seq in range(33):
        spool.release(seq)
    for seq in range(33, 66):
        spool.keep_raw(raw(seq), 0)
    spool.close(over=False)
    assert len(list((tmp_path / "rig.spool").iterdir())) == 3, "two files in turn"
    left = taken_up(tmp_path / "rig.spool")
    assert seqs(left.raw)[-33:] == list(range(33, 66))
    assert all(same(one, raw(one.id.seq)) for one in left.raw)


@pytest.mark.parametrize(("where", "lost"), [(HEADER_BYTES, [1]), (30, [1, 2])])
def test_damaged_raw_snapshot_is_lost_and_reported(
    tmp_path: Path, where: int, lost: list[int]
) -> None:
    spool = new(tmp_path / "rig.spool")
    for seq in range(3):
        spool.keep_raw(raw(seq), 0)
    spool.close(over=False)
    file = tmp_path / "rig.spool" / "0.raw"
    content = bytearray(file.read_bytes())
    content[len(content) // 3 + where] ^= 1
    file.write_bytes(content)
    left = taken_up(tmp_path / "rig.spool")
    assert list(left.lost) == lost
    assert seqs(left.raw) == [seq for seq in range(3) if seq not in lost]
    assert all(same(one, raw(one.id.seq)) for one in left.raw)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=4))
def test_corruption_never_yields_a_wrong_raw_snapshot(
    tmp_path: Path, damage: list[tuple[float, int]]
) -> None:
    spool = new(tmp_path / "rig.spool")
    for seq in range(5):
        spool.keep_raw(raw(seq, chunks={"Gain": 1.5}), 0)
    spool.close(over=False)
    file = tmp_path / "rig.spool" / "0.raw"
    content = bytearray(file.read_bytes())
    for where, change in damage:
        content[int(where * (len(content) - 1))] ^= change
    file.write_bytes(content)
    left = taken_up(tmp_path / "rig.spool")
    assert sorted([*seqs(left.raw), *left.lost]) == list(range(5))
    assert all(same(one, raw(one.id.seq, chunks={"Gain": 1.5})) for one in left.raw)


def test_full_file_system_loses_no_raw_snapshot_that_it_has(tmp_path: Path) -> None:
    spool = new(tmp_path / "rig.spool")
    assert spool.keep_raw(raw(0), 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (250, hard))
        assert not spool.keep_raw(raw(1), 0), "it is written in part"
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        assert not spool.keep_raw(raw(2), 0), "nor in a file of its own"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert spool.unspooled == 2
    assert spool.keep_raw(raw(3), 0)
    spool.close(over=False)
    left = taken_up(tmp_path / "rig.spool")
    assert (seqs(left.raw), left.corrupt, list(left.lost)) == ([0, 3], 0, [1, 2])


def test_kill_during_write_loses_no_numbered_raw_snapshot(tmp_path: Path) -> None:
    script = f"""
        from pathlib import Path
        from tests.nodes.acquire.test_raw_snapshots import raw
        from tests.nodes.acquire.test_spool import new
        spool = new(Path({str(tmp_path / "rig.spool")!r}))
        made = [raw(seq) for seq in range(20000)]
        print("ready", flush=True)
        for one in made:
            spool.keep_raw(one, 0)
            if one.id.seq >= 40:
                spool.release(one.id.seq - 40)
                spool.confirm(one.id.seq - 40)
            if one.id.seq == 200:
                print("on its way", flush=True)
        """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment(PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == ["ready\n", "on its way\n"]
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    left = taken_up(tmp_path / "rig.spool")
    assert left.next_seq > 200
    assert list(left.lost) == []
    assert seqs(left.raw) == list(range(left.confirmed, left.next_seq))
    assert all(same(one, raw(one.id.seq)) for one in left.raw)


@pytest.mark.parametrize(
    "wrong",
    [{"camera_frame_id": -1}, {"camera_time_ns": 2**63}, {"chunks": {"Gain": None}}],
)
def test_raw_snapshot_that_cannot_be_sent_is_refused_at_once(wrong: dict[str, Any]) -> None:
    """In the camera's thread, as that of another rig: a message of many cannot be sent later."""
    one = raw(0)
    bad = dataclasses.replace(one, rows=[dataclasses.replace(one.rows[0], **wrong)])
    with pytest.raises(ValueError, match="cannot be sent"):
        Spool(None, "rig").keep_raw(bad, 0)


# --- messages


def test_consecutive_snapshots_of_an_epoch_are_one_message() -> None:
    parts = [raw(3), raw(4), raw(5), raw(7), raw(8, epoch=1), raw(9, epoch=1)]
    groups = list(in_groups(parts))
    assert [list(group.seqs) for group in groups] == [[3, 4, 5], [7], [8, 9]]
    received = decode([bytes(frame) for frame in encode(groups[0])])
    assert isinstance(received, RawSnapshots)
    assert same(received, groups[0])


def test_message_has_bounds() -> None:
    assert [len(group.rows) for group in in_groups(map(raw, range(70)))] == [
        MAX_PAYLOADS,
        MAX_PAYLOADS,
        6,
    ]
    large = with_checksum(np.zeros((1024, 1024), np.uint16))
    parts = [dataclasses.replace(raw(seq), counts=[large]) for seq in range(5)]
    assert [len(group.rows) for group in in_groups(parts)] == [2, 2, 1]


def test_chunks_of_any_size_fit_a_message() -> None:
    most = {"n" * 60 + f"{index:04}": "é" * MAX_TEXT for index in range(MAX_CHUNKS)}
    groups = list(in_groups(raw(seq, chunks=most) for seq in range(8)))
    assert sum(len(encode(group)) - 2 for group in groups) == 8


def test_group_is_held_and_released_as_one(tmp_path: Path) -> None:
    spool = new(tmp_path / "rig.spool")
    budget = MemoryBudget(1000)
    in_flight = InFlightSnapshots(budget, spool)
    for seq in range(5):
        spool.keep_raw(raw(seq), 0)
        budget.take(10)
    in_flight.hold(0, 0, 30, raw_pending=True, raw_only=True, count=3)
    in_flight.hold(3, 0, 20, raw_pending=True, raw_only=True, count=2)
    assert (len(in_flight), in_flight.delivering(())) == (5, False)
    assert list(in_flight.confirm_raw(0)) == [0, 1, 2]
    assert list(in_flight.confirm_raw(0)) == [], "confirmed before"
    assert (len(in_flight), in_flight.released, budget.used_bytes) == (2, 3, 20)
    assert spool.status()["spooled"] == 2
