"""Noise level σ of each iteration: a schedule that is re-planned to the remaining time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sci_stream.recon.algorithms.noise_level import Sigma


@dataclass(frozen=True, slots=True)
class SigmaSchedule:
    """Noise levels σ of a solve, falling by a constant factor: the paper's λ_{k+1} = ξ λ_k with λ = σ².

    Parameters
    ----------
    first, last
        σ of the first and the last iteration on the 0–1 scale, first ≥ last > 0; numbers, or () on the device.
    """

    first: Sigma
    last: Sigma

    def sigma(self, progress: float) -> Sigma:
        """Return σ at a point of the solve, ``progress`` from 0 (first iteration) to 1 (last)."""
        if progress >= 1.0:
            return self.last
        level: Sigma = self.first * (self.last / self.first) ** progress
        return level


MIN_SIGMA = 1 / 255
"""Lowest level of a solve: one step of 8 bits. Where the start is nearly right, solves end below their last level."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of the solve of one snapshot.

    Parameters
    ----------
    iterations
        Most iterations to spend, ≥ 1.
    time_s
        Seconds after which to stop the solve; None for no limit. The minimum number of iterations, and the one at the
        lowest σ, are spent regardless.
    """

    iterations: int
    time_s: float | None = None

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"a budget needs at least one iteration, got {self.iterations}")
        if self.time_s is not None and not self.time_s >= 0:
            raise ValueError(f"time_s must be None or not negative, got {self.time_s}")


def anytime_progress(
    budget: Budget,
    *,
    min_iterations: int = 1,
    iteration_s: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
    started_s: float | None = None,
) -> Iterator[float]:
    r"""Yield the progress p of each iteration, 0 to 1, re-planned before each so that a solve always ends at 1.

    With m iterations left, by count or by time, whichever ends first, p grows by (1 − p)/m: with unlimited time, in
    equal steps; when time runs out faster than planned, the remaining levels are passed through in longer strides. If
    an iteration took so much longer than those before that the time is up with the lowest σ not yet reached, one more
    iteration is spent on it: a budget is overrun by one iteration at most.

    Parameters
    ----------
    budget
        The number of iterations or the time.
    min_iterations
        Spent even if the time is up; ``budget.iterations`` still bounds them.
    iteration_s
        Expected time of an iteration, from earlier snapshots; None to measure the first one.
    clock
        Monotonic seconds. Without a time limit it is not read: a recorded solve cannot.
    started_s
        The clock's reading when the solve began; None for now.
    """
    least = min(max(min_iterations, 1), budget.iterations)
    progress = first_s = 0.0
    for taken in itertools.count():
        remaining = budget.iterations - taken
        if budget.time_s is not None and remaining > 0:
            now = clock()
            if taken == 0:
                first_s, started_s = now, now if started_s is None else started_s
            # Of this solve alone: the device may be shared, and what earlier snapshots took says little about now.
            each_s = (now - first_s) / taken if taken else iteration_s
            fitting: float = remaining
            if (left_s := budget.time_s - (now - (started_s or 0.0))) <= 0:
                fitting = 0
            elif each_s:
                fitting = min(left_s / each_s, remaining)
            remaining = max(int(fitting), least - taken)
        if remaining <= 0:
            if progress >= 1.0:
                return
            remaining = 1  # stopping at a high σ leaves an over-smoothed video, worse than one overrun
        if taken > 0:
            progress = min(progress + (1.0 - progress) / remaining, 1.0)
        if remaining == 1:
            progress = 1.0
        yield progress
