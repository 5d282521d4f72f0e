"""Iterations for the next snapshot under load: reconstruction gets coarser before any snapshot is
dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from sci_stream.recon.settings import SolverSettings

_NS = 1e9
# Fraction of the period to fill; the rest absorbs transfer and jitter.
_HEADROOM = 0.85
# Weight of the newest measurement in the exponential mean of the slowdown.
_SMOOTHING = 0.3
# Queued snapshots that do not count as load: one arrives while another is solved.
_TOLERATED_BACKLOG = 1


class SolveCosts:
    """Seconds that solves take, by their number of iterations.

    Other work on a device slows all solves down by one factor, which each measured solve corrects:
    so a number of iterations that was too slow once is known to fit again without a try.

    Parameters
    ----------
    seconds
        Of solves on the idle device, by iterations; the first solve gives them if there are none.
    """

    def __init__(self, seconds: Mapping[int, float] | None = None) -> None:
        self._idle = dict(seconds or {})
        self._slowdown = 1.0

    def record(self, iterations: int, seconds: float) -> None:
        """Correct the slowdown by a solve."""
        if iterations < 1 or seconds <= 0:
            return
        if not self._idle:
            self._idle[iterations] = seconds
        self._slowdown += _SMOOTHING * (seconds / self._when_idle(iterations) - self._slowdown)

    def fitting(self, seconds: float, counts: Iterable[int], least: int) -> int:
        """Return the largest of some numbers of iterations that fits into a time; the least if none
        is known to.
        """
        if not self._idle:
            return least
        limit_s = seconds / self._slowdown * (1 + 1e-9)
        return max((count for count in counts if self._when_idle(count) <= limit_s), default=least)

    def _when_idle(self, iterations: int) -> float:
        """Interpolate between known numbers of iterations, proportional beyond them."""
        known = sorted(self._idle)
        if iterations > known[-1]:
            return self._idle[known[-1]] * iterations / known[-1]
        return float(
            np.interp(iterations, [0, *known], [0.0, *(self._idle[count] for count in known)])
        )


class BudgetController:
    """Decide the budget of each snapshot from the cost of earlier ones; it reads no clock.

    Without load (``period_ns`` = 0) a snapshot gets all iterations, otherwise as many as fit into
    the fraction `_HEADROOM` of the period, between ``min_iterations`` and all. While snapshots are
    queued behind it, that share is halved from one snapshot to the next until the backlog is gone;
    then it grows by an eighth of the whole per snapshot.

    Parameters
    ----------
    settings
        Source of ``iterations`` and ``min_iterations``.
    costs
        Of solves, as in `sci_stream.recon.engine.Engine.costs`. Until one is known, a snapshot
        under load gets ``min_iterations``.
    """

    def __init__(self, settings: SolverSettings, costs: SolveCosts) -> None:
        self._settings = settings
        self._costs = costs
        self._share = 1.0

    def next_budget(self, *, period_ns: int, backlog: int) -> int:
        """Return the iterations for a snapshot with this much time and this many waiting
        behind it.
        """
        full = self._settings.iterations
        least = self._settings.min_iterations
        if period_ns <= 0:
            self._share = 1.0
            return full
        # Multiplicative decrease, additive increase, as TCP: it converges to the sustainable rate
        # without oscillating.
        if backlog > _TOLERATED_BACKLOG:
            self._share *= 0.5
        else:
            self._share = min(1.0, self._share + 0.125)
        fitting = self._costs.fitting(_HEADROOM * period_ns / _NS, range(least, full + 1), least)
        return least + int(self._share * (fitting - least))
