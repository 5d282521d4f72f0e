"""Times of exposures that show a lost pulse."""

from __future__ import annotations

import numpy as np
import pytest

from sci_stream.modulation.rhythm import ExposureRhythm

SLOT_US, B = 1000.0, 8
PERIOD_NS = 8_000_000


def late(times_ns: list[int | None]) -> dict[int, int]:
    """Return by how many patterns which exposures were late, by their number."""
    rhythm = ExposureRhythm(SLOT_US)
    found = [rhythm.add(time_ns) for time_ns in times_ns]
    return {number: patterns for number, patterns in enumerate(found) if patterns}


def exposures(n: int, slips_us: dict[int, float]) -> list[int]:
    """Return times of exposures of which some, and all after them, come late."""
    return [
        n * PERIOD_NS + sum(round(1e3 * us) for at, us in slips_us.items() if n >= at)
        for n in range(n)
    ]


@pytest.mark.parametrize("patterns", [1, -1, 3])
def test_slip_by_whole_patterns_is_noticed_once(patterns: int) -> None:
    assert late(exposures(20, {6: patterns * SLOT_US})) == {6: patterns}


def test_slip_after_missed_exposures_is_noticed() -> None:
    times = exposures(20, {9: SLOT_US})
    del times[7:9]
    assert late(times) == {7: 1}


def test_slip_by_part_of_a_pattern_is_none() -> None:
    assert late(exposures(20, {6: 0.5 * SLOT_US, 12: -0.3 * SLOT_US})) == {}


def test_times_with_jitter_show_no_slip() -> None:
    jitter = np.random.default_rng(1).normal(0, 0.3 * SLOT_US * 1e3, 200)
    assert late([n * PERIOD_NS + round(shift) for n, shift in enumerate(jitter)]) == {}


def test_camera_without_times_shows_no_slip() -> None:
    assert late([None] * 10) == {}
