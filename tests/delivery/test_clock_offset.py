"""The estimated offset of another host's clock is correct to within half the round trip."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sci_stream.delivery.clock_offset import ClockOffset, significant_ns

WAY = st.integers(0, 50_000_000)
OFFSET = st.integers(-(10**15), 10**15)
T0 = 1_780_000_000_000_000_000


def exchange(
    clock: ClockOffset, offset_ns: int, there_ns: int, back_ns: int, sent_ns: int = T0
) -> None:
    """Exchange a ping with these travel times and an answer after 1 ms."""
    received_ns = sent_ns + there_ns + offset_ns
    answered_ns = received_ns + 1_000_000
    clock.add(sent_ns, received_ns, answered_ns, answered_ns - offset_ns + back_ns)


@given(OFFSET, st.lists(st.tuples(WAY, WAY), min_size=1, max_size=40))
def test_offset_error_is_within_reported_uncertainty(
    offset_ns: int, ways: list[tuple[int, int]]
) -> None:
    clock = ClockOffset()
    for there_ns, back_ns in ways:
        exchange(clock, offset_ns, there_ns, back_ns)
    assert clock.offset_ns is not None
    assert abs(clock.offset_ns - offset_ns) <= clock.uncertainty_ns + 1


def test_offset_is_taken_from_fastest_recent_exchange() -> None:
    clock = ClockOffset(window=4)
    exchange(clock, 5_000_000, 30_000_000, 0)
    exchange(clock, 5_000_000, 100_000, 100_000)
    exchange(clock, 5_000_000, 0, 40_000_000)
    assert clock.offset_ns == 5_000_000
    assert clock.uncertainty_ns == 100_000
    for _ in range(4):
        exchange(clock, 5_000_000, 8_000_000, 8_000_000)
    assert clock.uncertainty_ns == 8_000_000, "old exchanges are discarded, since clocks drift"


def test_offset_follows_clock_step_at_once() -> None:
    clock = ClockOffset()
    for _ in range(10):
        exchange(clock, 0, 200_000, 100_000)
    exchange(clock, -3_600_000_000_000, 300_000, 300_000)
    assert clock.offset_ns == -3_600_000_000_000


def test_exchange_with_negative_travel_time_is_ignored() -> None:
    clock = ClockOffset()
    clock.add(T0, T0, T0 + 5, T0 + 1)
    assert clock.offset_ns is None
    assert clock.status() == {}


def test_offset_within_its_uncertainty_corrects_nothing() -> None:
    assert significant_ns(0.2, 0.3) == 0
    assert significant_ns(-2.5, 0.3) == -2_500_000
