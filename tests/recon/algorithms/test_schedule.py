"""The σ schedule: monotone, and at its lowest at the end."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.recon.algorithms.schedule import sigma_levels, step_shares

levels = st.floats(1e-3, 1.0)


@given(a=levels, b=levels, n=st.integers(1, 60))
def test_levels_fall_from_first_to_last(a: float, b: float, n: int) -> None:
    first, last = max(a, b), min(a, b)
    sigmas = sigma_levels(first, last, n)
    assert len(sigmas) == n
    assert sigmas[-1] == last
    assert n == 1 or sigmas[0] == pytest.approx(first)
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(sigmas))


def test_levels_fall_by_constant_factor() -> None:
    assert [b / a for a, b in itertools.pairwise(sigma_levels(0.2, 0.02, 11))] == pytest.approx(
        [0.1 ** (1 / 10)] * 10
    )


def test_levels_on_the_device_are_those_of_numbers() -> None:
    first, last = (torch.tensor(level, dtype=torch.float64) for level in (0.2, 0.02))
    on_device = sigma_levels(first, last, 11)
    assert [float(sigma) for sigma in on_device] == pytest.approx(
        sigma_levels(0.2, 0.02, 11), rel=1e-15
    )


@given(n=st.integers(2, 60), fineness=st.floats(0.1, 1.0))
def test_longer_solves_go_the_same_way_in_smaller_steps(n: int, fineness: float) -> None:
    *before, last_but_one, last = step_shares(n, fineness)
    assert (last_but_one, last) == (1.0, 0.5)
    assert len(before) == n - 2
    assert sum(before) == pytest.approx(min(n, 12 / fineness) * (n - 2) / n)


def test_single_iteration_goes_all_of_the_way() -> None:
    assert step_shares(1, 1.0) == (1.0,)
