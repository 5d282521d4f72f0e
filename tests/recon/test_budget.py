"""The budget controller: fewer iterations under load, all of them again afterwards."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.recon.budget import BudgetController
from sci_stream.recon.settings import SolverSettings

SETTINGS = SolverSettings(iterations=40, min_iterations=4)
MS = 1_000_000


def test_snapshot_without_load_gets_all_iterations() -> None:
    controller = BudgetController(SETTINGS)
    controller.record(iterations=40, solve_ns=1000 * MS)
    assert controller.next_budget(period_ns=0, backlog=50).iterations == 40
    assert controller.next_budget(period_ns=0, backlog=0).time_s is None


def test_iterations_fit_into_the_period_with_headroom() -> None:
    controller = BudgetController(SETTINGS, iteration_s=0.010)
    budget = controller.next_budget(period_ns=200 * MS, backlog=0)
    assert budget.iterations == 17
    assert budget.time_s == pytest.approx(0.2)


def test_long_period_gives_no_more_than_configured() -> None:
    assert BudgetController(SETTINGS, 0.001).next_budget(period_ns=1000 * MS, backlog=0).iterations == 40


def test_short_period_gives_the_minimum() -> None:
    assert BudgetController(SETTINGS, 1.0).next_budget(period_ns=10 * MS, backlog=0).iterations == 4


def test_load_before_first_measurement_gives_the_minimum() -> None:
    controller = BudgetController(SETTINGS)
    assert controller.next_budget(period_ns=100 * MS, backlog=0).iterations == 4
    controller.record(iterations=4, solve_ns=4 * MS)
    assert controller.next_budget(period_ns=100 * MS, backlog=0).iterations == 40


def test_backlog_reduces_budget_to_the_minimum() -> None:
    controller = BudgetController(SETTINGS, iteration_s=0.001)
    spent = [controller.next_budget(period_ns=100 * MS, backlog=9).iterations for _ in range(8)]
    assert spent == sorted(spent, reverse=True)
    assert spent[0] < 40
    assert spent[-1] == 4


def test_single_queued_snapshot_is_no_load() -> None:
    controller = BudgetController(SETTINGS, iteration_s=0.001)
    assert controller.next_budget(period_ns=100 * MS, backlog=1).iterations == 40


def test_budget_recovers_smoothly_after_backlog() -> None:
    controller = BudgetController(SETTINGS, iteration_s=0.001)
    for _ in range(8):
        controller.next_budget(period_ns=100 * MS, backlog=9)
    spent = [controller.next_budget(period_ns=100 * MS, backlog=0).iterations for _ in range(9)]
    assert spent == sorted(spent)
    assert max(b - a for a, b in itertools.pairwise(spent)) <= 5
    assert spent[-1] == 40


def test_measurements_are_smoothed() -> None:
    controller = BudgetController(SETTINGS, iteration_s=0.010)
    controller.record(iterations=10, solve_ns=200 * MS)
    assert controller.iteration_s == pytest.approx(0.013)


def test_solve_without_iterations_is_not_measured() -> None:
    controller = BudgetController(SETTINGS)
    controller.record(iterations=0, solve_ns=5 * MS)
    assert controller.iteration_s is None


@given(
    events=st.lists(
        st.tuples(st.integers(0, 10**10), st.integers(0, 100), st.integers(1, 50), st.integers(1, 10**10)),
        max_size=30,
    )
)
def test_budgets_stay_between_minimum_and_full(events: list[tuple[int, int, int, int]]) -> None:
    controller = BudgetController(SETTINGS)
    for period_ns, backlog, iterations, solve_ns in events:
        assert 4 <= controller.next_budget(period_ns=period_ns, backlog=backlog).iterations <= 40
        controller.record(iterations=iterations, solve_ns=solve_ns)


@given(iteration_ms=st.floats(1.0, 20.0), fixed_ms=st.floats(0.0, 20.0))
def test_queue_drains_if_minimum_iterations_suffice(iteration_ms: float, fixed_ms: float) -> None:
    # A camera every 120 ms, and 20 snapshots waiting to begin with.
    controller = BudgetController(SETTINGS)
    waiting_ms = 20 * 120.0
    for _ in range(400):
        budget = controller.next_budget(period_ns=120 * MS, backlog=int(waiting_ms // 120))
        took_ms = fixed_ms + iteration_ms * budget.iterations
        controller.record(iterations=budget.iterations, solve_ns=int(took_ms * MS))
        waiting_ms = max(0.0, waiting_ms + took_ms - 120.0)
    assert waiting_ms <= 2 * 120.0
