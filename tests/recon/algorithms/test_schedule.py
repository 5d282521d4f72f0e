"""The σ schedule: monotone, and at its lowest when the budget ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.recon.algorithms.schedule import Budget, SigmaSchedule, anytime_progress
from tests.recon.ladder import ladder

SCHEDULE = SigmaSchedule(0.2, 0.02)
levels = st.floats(1e-3, 1.0)


class FakeClock:
    """A clock that iterations move on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _run(progress_of_each: Iterator[float], clock: FakeClock, costs_s: list[float]) -> list[float]:
    """Return the levels handed out when iteration k takes costs_s[k], the last cost repeated."""
    sigmas = []
    for progress in progress_of_each:
        sigmas.append(SCHEDULE.sigma(progress))
        clock.now += costs_s[min(len(sigmas), len(costs_s)) - 1]
    return sigmas


@given(a=levels, b=levels, n=st.integers(1, 60))
def test_ladder_falls_from_first_to_last(a: float, b: float, n: int) -> None:
    first, last = max(a, b), min(a, b)
    sigmas = ladder(SigmaSchedule(first, last), n)
    assert len(sigmas) == n
    assert sigmas[-1] == last
    assert n == 1 or sigmas[0] == first
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(sigmas))


def test_geometric_ladder_falls_by_constant_factor() -> None:
    assert [b / a for a, b in itertools.pairwise(ladder(SCHEDULE, 11))] == pytest.approx([0.1 ** (1 / 10)] * 10)


def test_levels_on_the_device_are_those_of_numbers() -> None:
    first, last = (torch.tensor(level, dtype=torch.float64) for level in (0.2, 0.02))
    on_device = ladder(SigmaSchedule(first, last), 11)
    assert [float(sigma) for sigma in on_device] == pytest.approx(ladder(SCHEDULE, 11), rel=1e-15)


def test_empty_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one iteration"):
        Budget(0)
    with pytest.raises(ValueError, match="time_s"):
        Budget(1, time_s=-1.0)


@given(
    costs=st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=8),
    time_s=st.floats(0.0, 3.0),
    n=st.integers(1, 30),
    least=st.integers(1, 6),
    expected=st.one_of(st.none(), st.floats(1e-4, 1.0)),
)
def test_ladder_ends_at_lowest_sigma_at_any_pace(
    costs: list[float], time_s: float, n: int, least: int, expected: float | None
) -> None:
    clock = FakeClock()
    progress = anytime_progress(Budget(n, time_s), min_iterations=least, iteration_s=expected, clock=clock)
    sigmas = _run(progress, clock, costs)
    assert sigmas[-1] == SCHEDULE.last
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(sigmas))
    assert min(least, n) <= len(sigmas) <= n


def test_short_time_ends_the_ladder_in_time() -> None:
    clock = FakeClock()
    progress = anytime_progress(Budget(100, time_s=1.0), clock=clock)
    sigmas = _run(progress, clock, [0.1])
    assert 9 <= len(sigmas) <= 10
    assert clock.now - 100.0 <= 1.0 + 1e-9


def test_known_iteration_time_spreads_the_ladder_from_the_start() -> None:
    clock = FakeClock()
    progress = anytime_progress(Budget(100, time_s=1.01), iteration_s=0.1, clock=clock)
    assert _run(progress, clock, [0.1]) == pytest.approx(ladder(SCHEDULE, 10))


def test_slow_iteration_costs_at_most_one_more() -> None:
    clock = FakeClock()
    progress = anytime_progress(Budget(100, time_s=1.0), iteration_s=0.01, clock=clock)
    sigmas = _run(progress, clock, [5.0, 0.01])
    assert sigmas == [SCHEDULE.first, SCHEDULE.last]


def test_minimum_is_spent_at_any_time_limit() -> None:
    clock = FakeClock()
    sigmas = _run(anytime_progress(Budget(20, time_s=0.0), min_iterations=4, clock=clock), clock, [1.0])
    assert sigmas == pytest.approx(ladder(SCHEDULE, 4))


def test_budget_below_minimum_limits_it() -> None:
    assert len(list(anytime_progress(Budget(2), min_iterations=4))) == 2
