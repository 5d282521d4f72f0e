"""How many iterations the next snapshot may cost, so that none has to be dropped.

Before a snapshot is dropped, reconstruction gets coarser: that is the order in which a rig gives way.
"""

from __future__ import annotations

from sci_stream.recon.algorithms.schedule import Budget
from sci_stream.recon.settings import SolverSettings

_NS = 1e9


class BudgetController:
    """Decide the budget of each snapshot from what the ones before it took. Pure: it reads no clock.

    With no pressure (``period_ns`` = 0) a snapshot is given all iterations. Otherwise as many as fit into a fraction
    ``headroom`` of the period, at most all, at least ``min_iterations``. While snapshots wait behind it, that share is
    halved from one to the next, down to ``min_iterations``, until the backlog is gone; then it grows back by an eighth
    of the whole at a time: quick to give way and slow to return, so that it settles instead of swinging.

    Parameters
    ----------
    settings
        What is asked for: ``iterations`` and ``min_iterations``.
    iteration_s
        Seconds one iteration takes, if known beforehand (`sci_stream.recon.engine.Engine.warm_up`). Until it is known,
        a snapshot under pressure is given ``min_iterations``.
    headroom
        Fraction of the period to fill, 0–1; the rest absorbs transfer and jitter.
    tolerated_backlog
        Snapshots that may wait without being taken for pressure: one arrives while another is solved.
    smoothing
        Weight of the newest measurement in the exponential mean of seconds per iteration, 0–1.
    """

    def __init__(
        self,
        settings: SolverSettings,
        iteration_s: float | None = None,
        *,
        headroom: float = 0.85,
        tolerated_backlog: int = 1,
        smoothing: float = 0.3,
    ) -> None:
        self._settings = settings
        self._iteration_s = iteration_s
        self._headroom = headroom
        self._tolerated_backlog = tolerated_backlog
        self._smoothing = smoothing
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
        if backlog > self._tolerated_backlog:
            self._share *= 0.5
        else:
            self._share = min(1.0, self._share + 0.125)
        period_s = period_ns / _NS
        if self._iteration_s is None:
            return Budget(least, time_s=period_s)
        fitting = min(full, int(self._headroom * period_s / self._iteration_s))
        iterations = least + int(self._share * max(0, fitting - least))
        return Budget(iterations, time_s=period_s)

    def record(self, *, iterations: int, solve_ns: int) -> None:
        """Learn from a solved snapshot what an iteration costs."""
        if iterations < 1 or solve_ns <= 0:
            return
        measured = solve_ns / _NS / iterations
        if self._iteration_s is None:
            self._iteration_s = measured
        else:
            self._iteration_s += self._smoothing * (measured - self._iteration_s)
