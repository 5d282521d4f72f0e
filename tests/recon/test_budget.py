"""The budget controller: fewer iterations under load, all of them again afterwards."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.recon.budget import BudgetController, ImageLooks, SolveCosts
from sci_stream.recon.settings import SolverSettings

SETTINGS = SolverSettings(iterations=40, min_iterations=4)
MS = 1_000_000


def make_controller(iteration_s: float | None = None) -> tuple[BudgetController, SolveCosts]:
    costs = SolveCosts(None if iteration_s is None else {40: 40 * iteration_s})
    return BudgetController(SETTINGS, costs), costs


def test_snapshot_without_load_gets_all_iterations() -> None:
    controller, costs = make_controller()
    costs.record(40, 1.0)
    assert controller.next_budget(period_ns=0, backlog=50) == 40


def test_iterations_fit_into_the_period_with_headroom() -> None:
    controller, _ = make_controller(0.010)
    assert controller.next_budget(period_ns=200 * MS, backlog=0) == 17


def test_long_period_gives_no_more_than_configured() -> None:
    assert make_controller(0.001)[0].next_budget(period_ns=1000 * MS, backlog=0) == 40


def test_short_period_gives_the_minimum() -> None:
    assert make_controller(1.0)[0].next_budget(period_ns=10 * MS, backlog=0) == 4


def test_load_before_first_measurement_gives_the_minimum() -> None:
    controller, costs = make_controller()
    assert controller.next_budget(period_ns=100 * MS, backlog=0) == 4
    costs.record(4, 0.004)
    assert controller.next_budget(period_ns=100 * MS, backlog=0) == 40


def test_backlog_reduces_budget_to_the_minimum() -> None:
    controller, _ = make_controller(0.001)
    spent = [controller.next_budget(period_ns=100 * MS, backlog=9) for _ in range(8)]
    assert spent == sorted(spent, reverse=True)
    assert spent[0] < 40
    assert spent[-1] == 4


def test_single_queued_snapshot_is_no_load() -> None:
    controller, _ = make_controller(0.001)
    assert controller.next_budget(period_ns=100 * MS, backlog=1) == 40


def test_budget_recovers_smoothly_after_backlog() -> None:
    controller, _ = make_controller(0.001)
    for _ in range(8):
        controller.next_budget(period_ns=100 * MS, backlog=9)
    spent = [controller.next_budget(period_ns=100 * MS, backlog=0) for _ in range(9)]
    assert spent == sorted(spent)
    assert max(b - a for a, b in itertools.pairwise(spent)) <= 5
    assert spent[-1] == 40


def test_measurements_are_smoothed() -> None:
    costs = SolveCosts({10: 0.1})
    costs.record(10, 0.2)
    assert costs.fitting(0.129, range(41), 0) == 9
    assert costs.fitting(0.131, range(41), 0) == 10


def test_solve_without_iterations_is_not_measured() -> None:
    costs = SolveCosts()
    costs.record(0, 0.005)
    costs.record(5, 0.0)
    assert costs.fitting(10.0, range(41), 4) == 4


@pytest.mark.parametrize("start_ms", [0.0, 2.0, 20.0])
@pytest.mark.parametrize("slow_ms", [30.0, 300.0])
def test_one_slow_solve_costs_twenty_snapshots_at_most(start_ms: float, slow_ms: float) -> None:
    """Where a start costs as much as many iterations, short solves are dear for each; all of them
    fit nevertheless.
    """
    rungs = (4, 8, 12, 20, 30, 40)
    costs = SolveCosts({rung: (start_ms + rung) / 1e3 for rung in rungs})
    controller = BudgetController(SETTINGS, costs)
    period_ms, waiting_ms, spent = (start_ms + 40) / 0.84, 0.0, []
    for snapshot in range(60):
        budget = controller.next_budget(
            period_ns=int(period_ms * MS), backlog=int(waiting_ms // period_ms)
        )
        iterations = max(rung for rung in rungs if rung <= budget)
        took_ms = start_ms + iterations + (slow_ms if snapshot == 10 else 0.0)
        costs.record(iterations, took_ms / 1e3)
        waiting_ms = max(0.0, waiting_ms + took_ms - period_ms)
        spent.append(iterations)
    assert spent[9] == 40
    assert min(spent) < 40
    assert set(spent[31:]) == {40}


@given(
    events=st.lists(
        st.tuples(
            st.integers(0, 10**10), st.integers(0, 100), st.integers(1, 50), st.integers(1, 10**10)
        ),
        max_size=30,
    )
)
def test_budgets_stay_between_minimum_and_full(events: list[tuple[int, int, int, int]]) -> None:
    controller, costs = make_controller()
    for period_ns, backlog, iterations, solve_ns in events:
        assert 4 <= controller.next_budget(period_ns=period_ns, backlog=backlog) <= 40
        costs.record(iterations, solve_ns / 1e9)


@given(iteration_ms=st.floats(1.0, 20.0), fixed_ms=st.floats(0.0, 20.0))
def test_queue_drains_if_minimum_iterations_suffice(iteration_ms: float, fixed_ms: float) -> None:
    # A camera every 120 ms, and 20 snapshots waiting to begin with.
    controller, costs = make_controller()
    waiting_ms = 20 * 120.0
    for _ in range(400):
        budget = controller.next_budget(period_ns=120 * MS, backlog=int(waiting_ms // 120))
        took_ms = fixed_ms + iteration_ms * budget
        costs.record(budget, took_ms / 1e3)
        waiting_ms = max(0.0, waiting_ms + took_ms - 120.0)
    assert waiting_ms <= 2 * 120.0


LOOKING = SolverSettings(iterations=10, min_iterations=4, moving_image=True)


def looking(look_s: float | None, share: float = 0.0) -> BudgetController:
    """Return a controller of solves of 10 ms an iteration, and looks of this time."""
    costs = SolveCosts({10: 0.1})
    if look_s is not None:
        costs.looks.note(look_s, share)
        while not costs.looks.is_due():
            pass
    return BudgetController(LOOKING, costs)


def budget(controller: BudgetController, period_ms: int, backlog: int = 0) -> tuple[int, int]:
    """Return the iterations of a snapshot without a look for an image, and with one."""
    period_ns = period_ms * MS
    iterations = controller.next_budget(period_ns=period_ns, backlog=backlog)
    return iterations, controller.with_image(iterations, period_ns=period_ns)


@pytest.mark.parametrize("look_s", [None, 0.01, 0.5])
def test_look_without_load_takes_no_iterations(look_s: float | None) -> None:
    assert budget(looking(look_s), 0) == (10, 10)
    assert budget(looking(look_s), 1000) == (10, 10)


def test_short_look_takes_time_left_for_jitter() -> None:
    assert budget(looking(None), 118) == (10, 10)
    assert budget(looking(0.012), 118) == (10, 10)


def test_look_at_a_moving_scene_takes_iterations() -> None:
    assert budget(looking(0.012, share=0.5), 118) == (10, 8)


def test_long_look_takes_only_time_that_is_left() -> None:
    assert budget(looking(0.05, share=0.5), 118) == (10, 0)


def test_rig_under_load_does_not_look() -> None:
    assert budget(looking(0.001, share=0.5), 1000, backlog=2)[1] == 0
    assert budget(looking(0.001, share=0.5), 30)[1] == 0


def test_settings_without_an_image_do_not_look() -> None:
    settings = SolverSettings(iterations=10)
    assert budget(BudgetController(settings, SolveCosts({10: 0.1})), 0)[1] == 0


def test_scene_that_does_not_move_as_one_is_seldom_looked_at() -> None:
    looks = ImageLooks()
    looked = []
    for _ in range(40):
        looked.append(looks.is_due())
        if looked[-1]:
            looks.note(0.01, 0.0)
    assert [at for at, look in enumerate(looked) if look] == [0, 2, 6, 14, 22, 30, 38]
    looks.note(0.01, 0.3)
    assert [looks.is_due() for _ in range(5)] == [True] * 5


def test_long_look_on_a_busy_machine_is_forgotten() -> None:
    looks = ImageLooks()
    looks.note(10.0, 0.0)
    for _ in range(1000):
        looks.is_due()
    assert looks.seconds is not None
    assert looks.seconds < 0.1


@given(
    iteration_ms=st.floats(1.0, 25.0),
    look_share=st.floats(0.01, 1.0),
    found=st.lists(st.booleans(), min_size=200, max_size=200),
)
def test_looks_queue_nothing_and_cost_iterations_while_it_moves(
    iteration_ms: float, look_share: float, found: list[bool]
) -> None:
    # A camera every 120 ms. A look that finds nothing is short.
    costs = SolveCosts({10: iteration_ms / 100})
    controller = BudgetController(LOOKING, costs)
    look_ms = 10 * iteration_ms * look_share
    waiting_ms = 0.0
    for finds in found:
        moved = costs.looks.moves
        usual, with_image = budget(controller, 120, int(waiting_ms // 120))
        solved = with_image or usual
        took_ms = iteration_ms * solved
        costs.record(solved, took_ms / 1e3)
        assert moved or solved == usual
        if with_image:
            took_ms += look_ms if finds else 0.3 * look_ms
            costs.looks.note((took_ms - iteration_ms * solved) / 1e3, 0.3 if finds else 0.0)
        waiting_ms = max(0.0, waiting_ms + took_ms - 120.0)
        assert waiting_ms <= 2 * 120.0
