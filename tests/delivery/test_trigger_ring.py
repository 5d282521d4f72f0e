"""Events, conditions and the decisions of the ring."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.delivery.trigger_ring import Condition, EventRing, TriggerState

MS = 1_000_000
SECOND = 1000 * MS
BEFORE, AFTER = 30 * MS, 20 * MS


def ring(
    *conditions: str, state: TriggerState | None = None, max_bytes: int = 1 << 30
) -> EventRing:
    parsed = [Condition.parse(text) for text in conditions]
    return EventRing(BEFORE, AFTER, parsed, max_bytes, state or TriggerState())


def kept(decisions: list[tuple[int, bool]]) -> list[int]:
    return sorted(seq for seq, is_kept in decisions if is_kept)


def test_event_keeps_snapshots_from_before_to_after_it() -> None:
    one = ring()
    for seq in range(20):
        one.add(seq, seq * 10 * MS, 1, {})
        if seq == 10:
            event = one.trigger(0, "kept", "Ann")
            assert (event.number, event.time_ns) == (1, 100 * MS), (
                "not earlier than the newest snapshot"
            )
    one.end()
    decisions = one.decisions()
    assert kept(decisions) == [7, 8, 9, 10, 11, 12]
    assert sorted(seq for seq, _ in decisions) == list(range(20))
    assert one.n_bytes == 0
    assert not one.n_bytes


def test_event_shortly_after_another_keeps_longer() -> None:
    one = ring()
    for seq in range(5):
        one.add(seq, seq * 10 * MS, 1, {})
    one.trigger(40 * MS, "kept")
    assert one.trigger(41 * MS, "kept").number == 2
    for seq in range(5, 9):
        one.add(seq, seq * 10 * MS + MS, 1, {})
    assert kept(one.decisions()) == [1, 2, 3, 4, 5, 6], "61 ms is 20 ms after the second"


def test_memory_is_bounded_and_says_so() -> None:
    one = ring(max_bytes=2)
    for seq in range(4):
        one.add(seq, seq, 1, {})
    assert one.decisions() == [(0, False), (1, False)]
    assert one.n_bytes == 2
    assert one.is_short


def test_condition_triggers_as_it_begins_and_while_it_lasts() -> None:
    one = ring("motion > 0.1")
    values = [0.0, 0.2, 0.2, 0.0, 0.2, 0.2, 0.2, 0.2, 0.2]
    events = [one.add(seq, seq * 10 * MS, 1, {"motion": value}) for seq, value in enumerate(values)]
    assert [seq for seq, event in enumerate(events) if event] == [1, 4, 7]
    assert events[1] is not None
    assert events[1].cause == "motion 0.2"


def test_condition_is_held_off_and_counted() -> None:
    one = ring("brightness < 0.5, hold-off 0.05 s, at most 2")
    events = [one.add(seq, seq * 10 * MS, 1, {"brightness": seq % 2}) for seq in range(40)]
    assert [seq for seq, event in enumerate(events) if event] == [0, 6]


@pytest.mark.parametrize("step_ns", [-5 * SECOND, -3600 * SECOND, -86400 * SECOND, SECOND])
@pytest.mark.parametrize("dies", [False, True])
def test_step_of_the_clock_delays_no_event(step_ns: int, *, dies: bool) -> None:
    """The acquire node is restarted with another time, and perhaps the sink, too."""
    one = ring("motion > 0.1, hold-off 0.05 s, at most 4")
    decisions = []
    for seq in range(40):
        if seq == 20 and dies:
            one = ring("motion > 0.1, hold-off 0.05 s, at most 4", state=one.state)
        time_ns = seq * 10 * MS + (step_ns if seq >= 20 else 0)
        one.add(seq, 10**18 + time_ns, 1, {"motion": float(seq % 10 == 5)})
        decisions += one.decisions()
    one.end()
    decisions += one.decisions()
    assert [event.number for event in one.state.events] == [1, 2, 3, 4]
    assert {5, 15, 25, 35} <= set(kept(decisions))
    assert not {0, 10, 20, 30} & set(kept(decisions)), "an event ends in its time"
    last = one.state.events[-1]
    assert last.time_ns == 10**18 + 350 * MS + step_ns, "by the clock of its snapshot"


@pytest.mark.parametrize(
    "text", ["motion", "motion = 1", "colour > 1", "motion > 1, at most", "chunk_ > 1"]
)
def test_text_that_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no condition"):
        Condition.parse(text)


@given(
    steps=st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from(["", "", "trigger", "motion", "die"])),
        max_size=60,
    ),
)
def test_any_events_and_deaths_keep_each_covered_snapshot_once(
    steps: list[tuple[int, str]],
) -> None:
    """A process that dies is followed by one with its last saved state, which gets all undecided
    snapshots again.
    """
    times: dict[int, int] = {}
    decided: dict[int, bool] = {}
    one = ring("motion > 0.5")
    now = 0

    def take() -> None:
        for seq, is_kept in one.decisions():
            assert decided.setdefault(seq, is_kept) == is_kept, "decided twice"

    for seq, (step, what) in enumerate(steps):
        now += step * MS
        times[seq] = now
        one.add(seq, now, 1, {"motion": float(what == "motion")})
        if what == "trigger":
            one.trigger(now + step * MS // 2, "kept")
        if what == "die":
            one.decisions()  # died before it could acknowledge them
            one = ring("motion > 0.5", state=one.state)
            for again in sorted(times.keys() - decided.keys()):
                one.add(again, times[again], 1, {"motion": 0.0})
        take()
    one.end()
    take()
    covered = {
        seq for seq, at in times.items() if any(event.covers(at) for event in one.state.events)
    }
    assert {seq for seq, is_kept in decided.items() if is_kept} == covered
    assert decided.keys() == times.keys()
    numbers = [event.number for event in one.state.events]
    assert numbers == list(range(1, len(numbers) + 1))
