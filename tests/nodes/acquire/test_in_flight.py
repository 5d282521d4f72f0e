"""In-flight snapshots of the acquire node: held until delivered and, if recorded raw, safe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.model import CameraFrame
from sci_stream.nodes.acquire.in_flight import InFlightSnapshots, MemoryBudget, frame_bytes
from sci_stream.nodes.acquire.spool import Spool
from tests.nodes.acquire.test_spool import info, snapshot, taken_up


def test_ground_truth_counts_as_memory() -> None:
    frame = CameraFrame(
        np.zeros((4, 4), np.uint16), 0, None, 1, truth=np.zeros((2, 4, 4), np.uint8)
    )
    assert frame_bytes(frame) == frame_bytes(replace(frame, truth=None)) + 32


def test_small_frames_take_no_more_than_the_budget() -> None:
    """Each costs kilobytes besides its pixels: with 8 MiB, frames of 512 bytes took 105."""
    frame = CameraFrame(np.zeros((16, 16), np.uint16), 0, None, 1)
    budget = MemoryBudget(8 << 20)
    assert sum(budget.take(frame_bytes(frame)) for _ in range(5000)) < 2000


def test_memory_beyond_limit_is_refused_until_released() -> None:
    budget = MemoryBudget(100)
    assert budget.take(60)
    assert not budget.take(60)
    budget.free(60)
    assert budget.take(60)


def test_first_frame_is_always_admitted() -> None:
    assert MemoryBudget(10).take(1000)


def test_delivered_snapshot_is_released() -> None:
    budget = MemoryBudget(1000)
    in_flight = InFlightSnapshots(budget, Spool(None, "rig"))
    budget.take(100)
    in_flight.hold(0, 3, 100, raw_pending=False)
    assert in_flight.delivering
    assert in_flight.settle(0) == 3
    assert (len(in_flight), in_flight.released, budget.used_bytes) == (0, 1, 0)


def test_recorded_snapshot_is_held_until_delivered_and_safe() -> None:
    budget = MemoryBudget(1000)
    in_flight = InFlightSnapshots(budget, Spool(None, "rig"))
    for seq in (0, 1):
        budget.take(100)
        in_flight.hold(seq, 0, 100, raw_pending=True)
    in_flight.settle(0)
    in_flight.confirm_raw(1)
    assert len(in_flight) == 2
    in_flight.confirm_raw(0)
    in_flight.settle(1)
    assert (len(in_flight), budget.used_bytes) == (0, 0)


def test_repeated_confirmation_counts_once() -> None:
    in_flight = InFlightSnapshots(MemoryBudget(1000), Spool(None, "rig"))
    in_flight.hold(0, 0, 0, raw_pending=True)
    assert in_flight.settle(0) == 0
    assert in_flight.settle(0) is None
    in_flight.confirm_raw(0)
    in_flight.confirm_raw(0)
    assert in_flight.released == 1


@given(st.lists(st.tuples(st.sampled_from(["settle", "safe"]), st.integers(0, 4)), max_size=40))
def test_memory_is_released_exactly_once(events: list[tuple[str, int]]) -> None:
    budget = MemoryBudget(10_000)
    in_flight = InFlightSnapshots(budget, Spool(None, "rig"))
    for seq in range(5):
        budget.take(10 + seq)
        in_flight.hold(seq, 0, 10 + seq, raw_pending=seq % 2 == 0)
    for what, seq in events:
        if what == "settle":
            in_flight.settle(seq)
        else:
            in_flight.confirm_raw(seq)
    gone = {
        seq
        for seq in range(5)
        if ("settle", seq) in events and (seq % 2 == 1 or ("safe", seq) in events)
    }
    assert in_flight.released == len(gone)
    assert budget.used_bytes == sum(10 + seq for seq in range(5) if seq not in gone)


def test_spool_holds_snapshots_as_long_as_memory(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "rig")
    spool.begin(info(), limit_bytes=1 << 12)
    in_flight = InFlightSnapshots(MemoryBudget(1000), spool)
    for seq in range(3):
        spool.keep(snapshot(seq), 0)
        in_flight.hold(seq, 0, 0, raw_pending=seq != 2)
    in_flight.settle(0)
    in_flight.confirm_raw(1)
    in_flight.settle(2)
    spool.close(over=False)
    left = taken_up(tmp_path / "rig.spool")
    assert ([each.id.seq for each in left.snapshots], left.delivered) == ([0, 1], {0})


def test_recovered_snapshots_are_admitted_unconditionally() -> None:
    budget = MemoryBudget(100)
    budget.hold(150)
    assert not budget.take(1)
    budget.free(150)
    assert budget.take(1)
