"""How many snapshots each node gets, by its progress."""

from __future__ import annotations

import math

import pytest

from sci_stream.delivery.admission import Admission


def admission_of(*names: str, **limits: float) -> Admission:
    admission = Admission(**limits)
    for name in names:
        admission.join(name, 0.0)
    return admission


def overdue(admission: Admission, name: str, now_s: float) -> float | None:
    return admission.overdue(name, now_s, holds=True, pause_s=0.0)


def test_node_gets_one_snapshot_until_it_returns_one() -> None:
    admission = admission_of("a")
    assert admission.credit("a", 8, 0.0) == 1
    admission.settle("a", 1.0, solved=False)
    assert admission.credit("a", 8, 1.0) == 1
    admission.settle("a", 2.0, solved=True)
    assert admission.credit("a", 8, 2.0) == 8
    admission.join("a", 3.0)
    assert admission.credit("a", 8, 3.0) == 8, "a HELLO after an interruption"
    assert admission.credit("a", 0, 3.0) == 0


def test_node_alone_may_take_any_time() -> None:
    assert overdue(admission_of("a"), "a", 1e6) is None


def test_solve_timeout_ends_a_node_that_settles_nothing() -> None:
    admission = admission_of("a", solve_timeout_s=5.0)
    assert overdue(admission, "a", 5.0) is None
    admission.settle("a", 5.0, solved=False)
    assert overdue(admission, "a", 10.0) is None
    assert overdue(admission, "a", 10.1) == 5.0
    admission.expect_nothing(10.1)
    assert overdue(admission, "a", 15.0) is None


def test_waiting_and_pauses_are_no_time_to_solve() -> None:
    admission = admission_of("a", "b", solve_timeout_s=5.0)
    assert admission.overdue("a", 8.0, holds=False, pause_s=0.0) is None
    assert overdue(admission, "a", 13.0) is None
    assert admission.overdue("b", 8.0, holds=True, pause_s=3.0) is None


@pytest.mark.parametrize(("slowest_s", "patience_s"), [(0.1, 20.0), (3.0, 60.0)])
def test_patience_follows_the_slowest_result(slowest_s: float, patience_s: float) -> None:
    admission = admission_of("good", "hole")
    admission.settle("good", slowest_s, solved=True)
    assert overdue(admission, "hole", patience_s) is None
    assert overdue(admission, "hole", patience_s + 0.1) == patience_s


def test_overdue_node_is_barred_longer_each_time() -> None:
    admission = admission_of("good", "hole")
    admission.settle("good", 0.1, solved=True)
    for begin_s, pause_s in ((100.0, 30.0), (1000.0, 60.0), (2000.0, 120.0)):
        assert overdue(admission, "hole", begin_s) is not None
        admission.leave("hole")
        admission.join("hole", begin_s)
        assert admission.credit("hole", 8, begin_s + pause_s - 0.1) == 0
        assert admission.credit("hole", 8, begin_s + pause_s) == 1
    admission.settle("hole", 2200.0, solved=True)
    admission.leave("hole")
    admission.join("hole", 2200.0)
    assert admission.credit("hole", 8, 2200.0) == 1, "a result has redeemed it"


def test_slow_live_solves_are_not_queued_in_a_node() -> None:
    admission = admission_of("a", max_wait_s=0.0)
    admission.settle("a", 10.0, solved=True)
    assert admission.credit("a", 4, 16.9) == 1
    assert admission.credit("a", 4, 17.0) == 4
    recorded = admission_of("a")
    recorded.settle("a", 10.0, solved=True)
    assert recorded.credit("a", 4, 10.0) == 4


def test_snapshot_is_stale_after_the_time_of_a_solve() -> None:
    assert admission_of("a").stale_after_s == math.inf
    assert admission_of("a", max_wait_s=3.0).stale_after_s == 3.0
    live = admission_of("a", max_wait_s=0.0)
    assert live.stale_after_s == math.inf, "no solve has ended yet"
    live.settle("a", 0.01, solved=True)
    assert live.stale_after_s == 0.2
    live.settle("a", 10.01, solved=True)
    assert live.stale_after_s == pytest.approx(0.8 * 0.01 + 0.2 * 10.0)
