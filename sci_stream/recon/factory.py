"""The algorithms by name, with a rig's settings bound to them. To add one, write a module and an entry in `SOLVERS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import torch

from sci_stream.errors import ConfigError
from sci_stream.recon.algorithms.admm import admm, admm_step
from sci_stream.recon.algorithms.gap import CorrelatedResidual, Denoise, Observe, Step, gap, gap_step
from sci_stream.recon.algorithms.lambda_rules import AdaptiveRule
from sci_stream.recon.algorithms.schedule import LambdaRule, MonotoneRule, Rule
from sci_stream.recon.settings import SolverSettings


class Solve(Protocol):
    """An algorithm, ready to run: yields the estimate after every iteration, as `gap` does."""

    def __call__(
        self,
        v: torch.Tensor,
        y: torch.Tensor,
        phi: torch.Tensor,
        r_inv: torch.Tensor,
        *,
        denoise: Denoise | Sequence[Denoise],
        sigmas: Iterable[float],
        noise: torch.Tensor | None = None,
        correlated: CorrelatedResidual | None = None,
        relative: torch.Tensor | None = None,
        observe: Observe | None = None,
    ) -> Iterator[torch.Tensor]:
        """Start at ``v`` and iterate as long as there is a σ."""
        ...


def _gap(settings: SolverSettings, step: Step) -> Solve:
    return partial(gap, relaxation=settings.relaxation if settings.accelerate else 0.0, step=step)


def _admm(settings: SolverSettings, step: Step) -> Solve:
    return partial(admm, gamma=settings.gamma, step=step)


SOLVERS: dict[str, tuple[Callable[[SolverSettings, Step], Solve], Step]] = {
    "gap": (_gap, gap_step),
    "admm": (_admm, admm_step),
}
"""What makes each algorithm from settings, and how it does an iteration."""


def solver_step(settings: SolverSettings) -> Step:
    """Return how the algorithm that the settings name does an iteration.

    Raises
    ------
    ConfigError
        If the name is unknown.
    """
    try:
        return SOLVERS[settings.solver][1]
    except KeyError:
        raise ConfigError(
            "Unknown solver", expected=f"one of {', '.join(SOLVERS)}", got=repr(settings.solver)
        ) from None


def make_solver(settings: SolverSettings, step: Step | None = None) -> Solve:
    """Return the algorithm that the settings name, with its parameters; ``step`` does an iteration in its own's place.

    Raises
    ------
    ConfigError
        If the name is unknown.
    """
    own = solver_step(settings)
    return SOLVERS[settings.solver][0](settings, step or own)


def make_rule(settings: SolverSettings) -> tuple[Rule, Observe | None]:
    """Return the λ rule for one solve and its callback after each iteration, if any."""
    if settings.lambda_rule is LambdaRule.MONOTONE:
        return MonotoneRule(), None
    rule = AdaptiveRule(settings.schedule, settings.xi, settings.eta)
    return rule, rule.observe
