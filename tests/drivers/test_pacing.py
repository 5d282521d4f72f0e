from __future__ import annotations

import pytest

from sci_stream_drivers.pacing import Pacer
from tests.drivers.camera_kit import Clock


def started(rate_hz: float) -> Pacer:
    pacer = Pacer(rate_hz)
    pacer.start()
    return pacer


def test_schedule_does_not_drift_with_inexact_sleep(clock: Clock) -> None:
    pacer = started(100.0)
    for k in range(1000):
        assert pacer.wait(k, timeout_s=1.0)
    assert clock.now_s == pytest.approx(1010.0, abs=0.001)


def test_wait_ends_at_the_timeout(clock: Clock) -> None:
    pacer = started(1.0)
    assert not pacer.wait(0, timeout_s=0.25)
    assert clock.now_s == pytest.approx(1000.25, abs=0.001)
    assert pacer.wait(0, timeout_s=0.8)


def test_overdue_frames_are_delivered_at_once(clock: Clock) -> None:
    pacer = started(10.0)
    clock.now_s += 1.0
    before_s = clock.now_s
    assert all(pacer.wait(k, timeout_s=0.0) for k in range(9))
    assert clock.now_s == before_s


def test_stamps_are_exact_multiples_of_the_period(clock: Clock) -> None:
    pacer = started(250.0)
    clock.now_s += 0.0123
    assert [pacer.stamp_ns(k) for k in range(3)] == [4_000_000, 8_000_000, 12_000_000]


def test_frames_without_a_rate_are_due_immediately(clock: Clock) -> None:
    pacer = started(0.0)
    assert pacer.period_ns is None
    assert pacer.wait(0, timeout_s=0.0)
    clock.now_s += 0.5
    assert pacer.stamp_ns(7) == 500_000_000


@pytest.mark.parametrize("rate_hz", [0.0, 10.0])
def test_pause_delays_all_later_frames(clock: Clock, rate_hz: float) -> None:
    pacer = started(rate_hz)
    assert pacer.wait(0, timeout_s=1.0)
    at_s = clock.now_s
    pacer.pause(2.0)
    assert not pacer.wait(1, timeout_s=1.0)
    assert pacer.wait(1, timeout_s=5.0)
    assert clock.now_s - at_s == pytest.approx(2.0 + (1 / rate_hz if rate_hz else 0), abs=0.01)


def test_retime_continues_a_new_period_after_the_last_frame(clock: Clock) -> None:
    pacer = Pacer(100.0)
    pacer.start()
    assert pacer.wait(1, 5.0)
    stamped_ns = pacer.stamp_ns(1)
    pacer.retime(50.0, 2)
    assert pacer.period_ns == 20_000_000
    assert pacer.stamp_ns(2) - stamped_ns == pytest.approx(20_000_000, abs=1_000_000)
    assert pacer.stamp_ns(3) - pacer.stamp_ns(2) == 20_000_000
    before_s = clock.now_s
    assert pacer.wait(2, 5.0)
    assert clock.now_s - before_s == pytest.approx(0.02, abs=0.001)


def test_retime_to_a_faster_rate_does_not_catch_up(clock: Clock) -> None:
    pacer = Pacer(0.05)
    pacer.start()
    clock.now_s += 90.0  # the reader was away for four periods
    pacer.retime(10.0, 1)
    assert pacer.late_s(1) == pytest.approx(0.0)
    assert pacer.late_s(2) == pytest.approx(-0.1)


def test_retime_within_a_period_does_not_delay_the_next_frame(clock: Clock) -> None:
    pacer = started(0.1)
    for second in range(5, 15):
        clock.now_s += 1.0
        pacer.retime(0.1 + second / 1000, 0)
    assert pacer.late_s(0) == pytest.approx(0.0)


def test_timestamps_never_go_back_between_rate_and_no_rate(clock: Clock) -> None:
    pacer = Pacer(0.0)
    pacer.start()
    stamps = []
    for k, rate_hz in enumerate((0.0, 10.0, 0.0, 20.0)):
        clock.now_s += 0.5
        pacer.retime(rate_hz, k)
        assert pacer.wait(k, 5.0)
        stamps.append(pacer.stamp_ns(k))
    assert stamps == sorted(stamps)
