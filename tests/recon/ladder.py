"""The levels of a solve without a time limit."""

from __future__ import annotations

from sci_stream.recon.algorithms.noise_level import Sigma
from sci_stream.recon.algorithms.schedule import Budget, SigmaSchedule, anytime_progress


def ladder(schedule: SigmaSchedule, iterations: int) -> list[Sigma]:
    """Return σ of every iteration."""
    return list(map(schedule.sigma, anytime_progress(Budget(iterations))))
