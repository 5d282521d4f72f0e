"""Iterations for the next snapshot under load: reconstruction gets coarser before any snapshot is dropped."""

from __future__ import annotations

from sci_stream.recon.algorithms.schedule import Budget
from sci_stream.recon.settings import SolverSettings

_NS = 1e9
# Fraction of the period to fill; the rest absorbs transfer and jitter.
_HEADROOM = 0.85
# Weight of the newest measurement in the exponential mean of seconds per iteration.
_SMOOTHING = 0.3
# Queued snapshots that do not count as load: one arrives while another is solved.
_TOLERATED_BACKLOG = 1


class BudgetController:
    """Decide the budget of each snapshot from the cost of earlier ones; it reads no clock.

    Without load (``period_ns`` = 0) a snapshot gets all iterations, otherwise as many as fit into the fraction
    `_HEADROOM` of the period, between ``min_iterations`` and all. While snapshots are queued behind it, that share is
    halved from one snapshot to the next until the backlog is gone; then it grows by an eighth of the whole per
    snapshot.

    Parameters
    ----------
    settings
        Source of ``iterations`` and ``min_iterations``.
    iteration_s
        Seconds one iteration takes, if known beforehand (`sci_stream.recon.engine.Engine.warm_up`). Until it is known,
        a snapshot under load gets ``min_iterations``.
    """

    def __init__(self, settings: SolverSettings, iteration_s: float | None = None) -> None:
        self._settings = settings
        self._iteration_s = iteration_s
        self._share = 1.0

    @property
    def iteration_s(self) -> float | None:
        """Seconds one iteration takes, all costs of a snapshot included; None before the first measurement."""
        return self._iteration_s

    def next_budget(self, *, period_ns: int, backlog: int) -> Budget:
        """Return the budget for a snapshot with this much time and this many waiting behind it."""
        full, least = self._settings.iterations, self._settings.min_iterations
        if period_ns <= 0:
            self._share = 1.0
            return Budget(full)
        # Multiplicative decrease, additive increase, as TCP: it converges to the sustainable rate without oscillating.
        if backlog > _TOLERATED_BACKLOG:
            self._share *= 0.5
        else:
            self._share = min(1.0, self._share + 0.125)
        period_s = period_ns / _NS
        if self._iteration_s is None:
            return Budget(least, time_s=period_s)
        fitting = min(full, int(_HEADROOM * period_s / self._iteration_s))
        iterations = least + int(self._share * max(0, fitting - least))
        return Budget(iterations, time_s=period_s)

    def record(self, *, iterations: int, solve_ns: int) -> None:
        """Update the cost of an iteration from a solved snapshot."""
        if iterations < 1 or solve_ns <= 0:
            return
        measured = solve_ns / _NS / iterations
        if self._iteration_s is None:
            self._iteration_s = measured
        else:
            self._iteration_s += _SMOOTHING * (measured - self._iteration_s)
