"""Iterations for the next snapshot under load: reconstruction gets coarser before any snapshot is
dropped.
"""

from __future__ import annotations

import math
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
# A look for a moving image may take so much of the time of a solve where no time is left over. In
# series of six pans and six belts it takes 0.13 of a default solve.
_MAX_LOOK = 0.15
# Share of the pixels from which on a moving image is worth iterations. Clips that do not move as
# one have less; 12 pans have 0.06 to 0.6.
_MOVES = 0.05
# Most snapshots without a look between two that find nothing.
_MAX_PAUSE = 7
# The longest look so far is expected again, and forgotten by this factor a snapshot.
_LASTING = 0.995


class ImageLooks:
    """When to look for a moving image (`sci_stream.recon.moving_image`), and how long that takes.

    Where an image was found, the next snapshot has one as well. Where none was, 1, 3 and then 7
    snapshots go without a look.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        """Of a look, as far as is known."""
        self.moves = False
        """Whether the last look found an image."""
        self._pause = 0
        self._wait = 0

    def note(self, seconds: float, share: float) -> None:
        """Add a look that found an image in this share of the pixels."""
        # A look that finds something is up to five times as long as one that is given up.
        self.seconds = max(seconds, self.seconds or 0.0)
        self.moves = share >= _MOVES
        self._pause = 0 if self.moves else min(2 * self._pause + 1, _MAX_PAUSE)
        self._wait = self._pause

    def is_due(self) -> bool:
        """Return whether the next snapshot is worth a look; call it once for each."""
        if self.seconds is not None:
            self.seconds *= _LASTING
        if not self._wait:
            return True
        self._wait -= 1
        return False


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
        self.looks = ImageLooks()
        """Looks for a moving image, which the seconds of solves do not contain."""

    def seconds(self, iterations: int) -> float:
        """Return the expected time of a solve; infinite if none is known."""
        return self._slowdown * self._when_idle(iterations) if self._idle else math.inf

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

    def with_image(self, iterations: int, *, period_ns: int) -> int:
        """Return the iterations of a solve of at most so many that ends with a look for a moving
        image; 0 if no look is due, or there is no time for one.

        Call it once for each snapshot, after `next_budget`. A look takes the time that is left. A
        short one also takes time that was left for jitter, or, where the scene moves as one,
        iterations, which are worth less.
        """
        looks = self._costs.looks
        if not self._settings.moving_image or not looks.is_due():
            return 0
        if period_ns <= 0:
            return iterations
        limit_s = _HEADROOM * period_ns / _NS
        solve_s = self._costs.seconds(iterations)
        if self._share < 1.0 or solve_s > limit_s:
            return 0
        look_s = _MAX_LOOK * solve_s if looks.seconds is None else looks.seconds
        is_short = look_s <= _MAX_LOOK * solve_s
        if solve_s + look_s <= limit_s or (is_short and not looks.moves):
            return iterations
        fewer = range(self._settings.min_iterations, iterations) if is_short else ()
        return self._costs.fitting(limit_s - look_s, fewer, 0)
