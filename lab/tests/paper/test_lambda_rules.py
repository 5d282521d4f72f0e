"""The λ rules: the criterion of the adaptive one, and the lowest λ at the end of any number of
iterations.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sci_stream_lab.paper.lambda_rules import AdaptiveRule, MonotoneRule, equal_ratios

FIRST, LAST = 0.2, 0.0125  # λ falls by 256 = 2⁸


def _adaptive_levels(
    iterations: int, *, eta: float, steps: list[float], xi: float = 0.5
) -> list[float]:
    """Return the σ of every iteration where the k-th one moves the iterates by the
    k-th distance.
    """
    rule = AdaptiveRule(FIRST, LAST, iterations, xi=xi, eta=eta)
    levels, at = [], 0.0
    for sigma, step in zip(rule, [*steps, math.inf], strict=False):
        levels.append(sigma)
        at += step
        rule.observe(torch.full((2, 3, 3), at), torch.full((2, 3, 3), at))
    return levels


def test_lambda_falls_by_xi_while_iterates_do_not_converge() -> None:
    levels = _adaptive_levels(12, eta=0.9, steps=[0.1] * 12)
    ratios = [(after / before) ** 2 for before, after in itertools.pairwise(levels)]
    assert ratios[:8] == pytest.approx([0.5] * 8)
    assert levels[8:] == pytest.approx([LAST] * 4)


def test_lambda_is_held_while_iterates_converge() -> None:
    steps = [0.4, 0.2, 0.1, 0.05, 0.05, 0.05]
    levels = _adaptive_levels(40, eta=0.9, steps=steps)
    # Δ is known from the second move on and compared from the third: 0.1 < 0.9·0.2, 0.05 < 0.9·0.1,
    # but 0.05 is not less than 0.9·0.05.
    falls = [after < before for before, after in itertools.pairwise(levels[:7])]
    assert falls == [True, True, False, False, True, True]


def test_delta_equals_the_papers() -> None:
    x0, v0, *moves = (
        torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(k)) for k in range(6)
    )
    path = [
        (x0, v0),
        (x0 + moves[0], v0 + moves[1]),
        (x0 + moves[0] + 0.3 * moves[2], v0 + moves[1] + 0.6 * moves[3]),
    ]
    delta_1 = (moves[0].norm() + moves[1].norm()) / 24**0.5
    delta_2 = (0.3 * moves[2].norm() + 0.6 * moves[3].norm()) / 24**0.5
    ratio = float(delta_2 / delta_1)
    for eta, holds in ((ratio - 1e-3, False), (ratio + 1e-3, True)):
        rule = AdaptiveRule(FIRST, LAST, 100, xi=0.5, eta=eta)
        levels, sigma = iter(rule), 0.0
        for x, v in path:
            sigma = next(levels)
            rule.observe(x, v)
        assert (next(levels) == sigma) is holds


@given(
    iterations=st.integers(1, 40),
    xi=st.floats(0.05, 0.95),
    eta=st.floats(0.0, 0.99),
    shrinking=st.floats(0.1, 1.5),
)
def test_adaptive_rule_reaches_lowest_sigma_at_any_budget(
    iterations: int, xi: float, eta: float, shrinking: float
) -> None:
    levels = _adaptive_levels(
        iterations, eta=eta, xi=xi, steps=[0.1 * shrinking**k for k in range(iterations)]
    )
    assert len(levels) == iterations
    assert levels[-1] == LAST
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(levels))


@pytest.mark.parametrize(("xi", "eta"), [(0.0, 0.5), (1.0, 0.5), (0.5, 1.0), (0.5, -0.1)])
def test_rule_out_of_range_is_refused(xi: float, eta: float) -> None:
    with pytest.raises(ValueError, match="0 < xi < 1"):
        AdaptiveRule(FIRST, LAST, 10, xi=xi, eta=eta)


def test_monotone_rule_yields_its_levels_whatever_the_iterates() -> None:
    levels = equal_ratios(0.4, 0.1, 3)
    assert levels == pytest.approx((0.4, 0.2, 0.1))
    rule, seen = MonotoneRule(levels), []
    for sigma in rule:
        seen.append(sigma)
        rule.observe(torch.zeros(1), torch.zeros(1))
    assert tuple(seen) == levels
