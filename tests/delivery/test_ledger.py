"""Interval sets, the ledger, the outbox and the reorder buffer."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.delivery.interval_set import IntervalSet
from sci_stream.delivery.ledger import DropReason, Ledger, Outcome
from sci_stream.delivery.outbox import Outbox
from sci_stream.delivery.reorder_buffer import ReorderBuffer
from sci_stream.errors import LedgerError


@given(st.lists(st.integers(0, 40)))
def test_interval_set_equals_set(seqs: list[int]) -> None:
    ours, reference = IntervalSet(), set[int]()
    for seq in seqs:
        assert ours.add(seq) == (seq not in reference)
        reference.add(seq)
    assert len(ours) == len(reference)
    assert ours.missing(41, limit=99) == [seq for seq in range(41) if seq not in reference]


def test_ledger_closes_when_every_snapshot_has_an_outcome() -> None:
    ledger = Ledger()
    ledger.settle(1, Outcome.DROPPED, "queue_full")
    ledger.settle(0, Outcome.RECONSTRUCTED)
    ledger.announce(3)
    assert ledger.in_flight == 1
    ledger.settle(2, Outcome.RAW_ONLY)
    assert not ledger.closed
    ledger.end(3)
    assert ledger.closed
    ledger.check()
    counts = ledger.counts()
    assert counts["acquired"] == counts["reconstructed"] + counts["raw_only"] + sum(
        counts["dropped"].values()
    )


def test_second_outcome_counts_as_duplicate_only() -> None:
    ledger = Ledger()
    assert ledger.settle(0, Outcome.RECONSTRUCTED)
    assert not ledger.settle(0, Outcome.DROPPED, "queue_full")
    assert ledger.counts()["dropped"] == {}
    assert ledger.duplicates == 1


@pytest.mark.parametrize("total", [None, 1, 4])
def test_open_ledger_error_names_missing_snapshots(total: int | None) -> None:
    ledger = Ledger()
    for seq in (0, 2):
        ledger.settle(seq, Outcome.RECONSTRUCTED)
    if total is not None:
        ledger.end(total)
    with pytest.raises(LedgerError, match=r"\[1, 3\]" if total == 4 else "expected"):
        ledger.check()


def test_drop_without_reason_raises_value_error() -> None:
    with pytest.raises(ValueError, match="reason"):
        Ledger().settle(0, Outcome.DROPPED)


def test_outbox_keeps_and_resends_until_acknowledged() -> None:
    outbox: Outbox[int] = Outbox(patience_s=5.0)
    for key in range(3):
        outbox.put(key, [b"frame"], now_s=0.0)
    assert outbox.has_unsent
    assert [key for key, _ in outbox.due()] == [0, 1, 2]
    assert not outbox.has_unsent
    assert list(outbox.due()) == []
    assert outbox.confirm(1, now_s=1.0)
    assert not outbox.confirm(1, now_s=1.0)
    outbox.mark_for_resend(now_s=2.0)
    assert [key for key, _ in outbox.due()] == [0, 2]
    assert outbox.resent == 2


def test_outbox_stalls_only_with_unacknowledged_messages() -> None:
    outbox: Outbox[int] = Outbox(patience_s=5.0)
    assert not outbox.stalled(100.0)
    outbox.put(0, [b"x"], now_s=100.0)
    assert not outbox.stalled(200.0)
    list(outbox.due())
    assert not outbox.stalled(104.0)
    assert outbox.stalled(106.0)


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_reorder_buffer_with_sufficient_window_restores_order(
    order: list[int], skip: set[int]
) -> None:
    buffer: ReorderBuffer[int] = ReorderBuffer(window=12, patience_s=1e9)
    out: list[int] = []
    for seq in order:
        out += buffer.skip(seq, 0.0) if seq in skip else buffer.push(seq, seq, 0.0)
    assert out == [seq for seq in range(12) if seq not in skip]


@given(st.permutations(range(20)), st.integers(1, 6))
def test_reorder_buffer_is_bounded_and_monotone(order: list[int], window: int) -> None:
    buffer: ReorderBuffer[int] = ReorderBuffer(window=window, patience_s=1e9)
    out: list[int] = []
    late = 0
    for pushed, seq in enumerate(order, 1):
        late += seq < max(out, default=0)
        out += buffer.push(seq, seq, 0.0)
        assert pushed - len(out) - late <= window
    out += buffer.flush()
    assert out == sorted(out)
    assert len(out) + late == 20


def test_reorder_buffer_releases_after_its_patience() -> None:
    buffer: ReorderBuffer[str] = ReorderBuffer(window=10, patience_s=1.0)
    assert buffer.push(1, "b", now_s=0.0) == []
    assert buffer.expire(0.9) == []
    assert buffer.expire(1.0) == ["b"]
    assert buffer.push(0, "a", 1.1) == []


def test_outcomes_beyond_the_end_of_a_series_are_named() -> None:
    ledger = Ledger()
    for seq in range(5):
        ledger.settle(seq, Outcome.RECONSTRUCTED)
    ledger.end(3)
    with pytest.raises(LedgerError, match=r"beyond the end of the series: \[3, 4\]"):
        ledger.check()


def test_every_reason_of_a_drop_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    assert [reason for reason in DropReason if f"\n| `{reason}` | " not in text] == []
