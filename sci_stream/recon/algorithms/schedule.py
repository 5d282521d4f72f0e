"""Noise level σ of each iteration: a schedule that is re-planned to the remaining time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class Shape(StrEnum):
    """Course of σ from its first to its last value."""

    GEOMETRIC = "geometric"
    """By a constant factor an iteration, λ_{k+1} = ξ λ_k."""
    STEPWISE = "stepwise"
    """In a few equally long plateaus, as in the published code."""


@dataclass(frozen=True, slots=True)
class SigmaSchedule:
    """Noise levels σ of a solve as a function of its progress.

    Parameters
    ----------
    first, last
        σ of the first and the last iteration on the 0–1 scale, first ≥ last > 0.
    shape
        See `Shape`. Geometric beats plateaus at small budgets.
    plateaus
        Number of levels of a stepwise schedule, spaced geometrically.

    Raises
    ------
    ValueError
        If the levels rise or are not positive.
    """

    first: float
    last: float
    shape: Shape = Shape.GEOMETRIC
    plateaus: int = 4

    def __post_init__(self) -> None:
        if not (math.isfinite(self.first) and self.first >= self.last > 0):
            raise ValueError(f"sigma must fall: expected first >= last > 0, got {self.first} and {self.last}")
        if self.plateaus < 1:
            raise ValueError(f"expected at least one plateau, got {self.plateaus}")

    def sigma(self, progress: float) -> float:
        """Return σ at a point of the solve, ``progress`` from 0 (first iteration) to 1 (last)."""
        return self.last if progress >= 1.0 else float(self.first * (self.last / self.first) ** self.exponent(progress))

    def exponent(self, progress: float) -> float:
        """Return e of σ = first·(last/first)^e at a point of the solve; the same for all first and last levels."""
        if progress >= 1.0 or self.shape is Shape.GEOMETRIC:
            return min(progress, 1.0)
        level = min(int(progress * self.plateaus), self.plateaus - 1)
        return level / (self.plateaus - 1) if self.plateaus > 1 else 1.0

    def ladder(self, iterations: int) -> tuple[float, ...]:
        """Return σ of every iteration of a solve of known length; the last one is `last`.

        >>> SigmaSchedule(0.4, 0.1).ladder(3)
        (0.4, 0.2, 0.1)
        """
        return tuple(self.sigma(advance_at(k, iterations)) for k in range(iterations))


def advance_at(k: int, iterations: int) -> float:
    """Return the progress at iteration k of a solve of known length: 0 at the first, 1 at the last."""
    return k / (iterations - 1) if iterations > 1 else 1.0


LEAST_SIGMA = 1 / 255
"""Lowest level of a solve: one step of 8 bits. Where the start is nearly right, solves end below their last level."""

_LEVELS_TRIED = 64


def levels_by_graph_key(schedule: SigmaSchedule, graph_key: Callable[[float], Hashable]) -> list[float]:
    """Return a level of σ for each graph key of a denoiser on the way down a schedule, from high to low."""
    down = SigmaSchedule(schedule.first, min(schedule.last, LEAST_SIGMA)).ladder(_LEVELS_TRIED)
    return list({graph_key(sigma): sigma for sigma in reversed(down)}.values())[::-1]


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

    def planned(self, iteration_s: float, min_iterations: int) -> Budget:
        """Return as many iterations as fit into the time, given the seconds of each; all of them without a time limit.

        >>> Budget(20, time_s=0.1).planned(0.01, min_iterations=4)
        Budget(iterations=10, time_s=None)
        """
        if self.time_s is None:
            return self
        fitting = max(int(self.time_s / iteration_s + 1e-9), min_iterations, 1)
        return Budget(min(self.iterations, fitting))


class AnytimeSchedule(Iterator[float]):
    r"""Yield σ one iteration at a time, re-planned before each so that a solve always ends at the lowest σ.

    With m iterations left, by count or by time, whichever ends first, progress p grows by (1 − p)/m: with unlimited
    time that is exactly `SigmaSchedule.ladder`; when time runs out faster than planned, the remaining levels are passed
    through in longer strides. If an iteration took so much longer than those before that the time is up with the lowest
    σ not yet reached, one more iteration is spent on it: a budget is overrun by one iteration at most.

    Parameters
    ----------
    schedule, budget
        Levels to pass through, and the number of iterations or the time for it.
    min_iterations
        Spent even if the time is up; ``budget.iterations`` still bounds them.
    iteration_s
        Expected time of an iteration, from earlier snapshots; None to measure the first one.
    clock
        Monotonic seconds. Must wait for the device where the device runs asynchronously.
    started_s
        The clock's reading when the solve began; None for now.
    """

    def __init__(
        self,
        schedule: SigmaSchedule,
        budget: Budget,
        *,
        min_iterations: int = 1,
        iteration_s: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        started_s: float | None = None,
    ) -> None:
        self._schedule = schedule
        self._budget = budget
        self._min_iterations = min(max(min_iterations, 1), budget.iterations)
        self._expected_s = iteration_s
        self._clock = clock
        self._started_s = clock() if started_s is None else started_s
        self._first_iteration_s = self._started_s
        self._progress = 0.0
        self._taken = 0

    @property
    def taken(self) -> int:
        """Number of levels yielded."""
        return self._taken

    def __next__(self) -> float:
        left = self._iterations_left()
        if left <= 0:
            # The lowest σ is always reached: stopping at a high one leaves an over-smoothed video, worse than one
            # overrun.
            if self._progress >= 1.0:
                raise StopIteration
            left = 1
        if self._taken > 0:
            self._progress = min(self._progress + (1.0 - self._progress) / left, 1.0)
        if left == 1:
            self._progress = 1.0
        self._taken += 1
        return self._schedule.sigma(self._progress)

    def _iterations_left(self) -> int:
        """Return the number of iterations that still fit, this one included."""
        by_count = self._budget.iterations - self._taken
        if self._budget.time_s is None or by_count <= 0:
            return by_count
        now = self._clock()
        if self._taken == 0:
            self._first_iteration_s = now
            each_s = self._expected_s
        else:
            # Of this solve alone: the device may be shared, and what earlier snapshots took says little about now.
            each_s = (now - self._first_iteration_s) / self._taken
        remaining_s = self._budget.time_s - (now - self._started_s)
        if remaining_s <= 0:
            by_time = 0
        elif not each_s:
            by_time = by_count
        else:
            by_time = int(min(remaining_s / each_s, by_count))
        return max(min(by_count, by_time), self._min_iterations - self._taken)
