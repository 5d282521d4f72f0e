"""The throughput meter: frequent and rare steps, and zero once no step comes."""

from __future__ import annotations

import pytest

from sci_stream.delivery.throughput import ThroughputMeter


def test_rate_covers_last_seconds_and_falls_to_zero() -> None:
    rate = ThroughputMeter()
    for second in range(11):
        rate.update(float(second), 3 * second)
    assert rate.per_s(10.0) == pytest.approx(3.0)
    assert rate.per_s(100.0) == 0.0


def test_rare_steps_have_rate_between_two_of_them() -> None:
    rate = ThroughputMeter()
    rate.update(0.0, 0)
    for second in range(8, 81, 8):
        rate.update(float(second), second * 1e6)
        for later_s in range(8):
            assert rate.per_s(second + later_s) == pytest.approx(1e6)
    assert rate.per_s(80 + 23) == pytest.approx(1e6)
    assert rate.per_s(80 + 25) == 0.0, "no step for three times the usual interval"


def test_first_step_has_a_rate() -> None:
    rate = ThroughputMeter()
    assert rate.per_s(0.0) == 0.0
    rate.update(0.0, 0)
    assert rate.per_s(0.5) == 0.0
    rate.update(0.5, 100)
    assert rate.per_s(0.5) == pytest.approx(200.0)
