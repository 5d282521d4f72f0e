"""The algorithms by name. To add one, write a module and an entry in `SOLVERS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

from sci_stream.errors import ConfigError
from sci_stream.recon.algorithms.admm import admm, admm_step
from sci_stream.recon.algorithms.gap import Problem, Step, gap, gap_step
from sci_stream.recon.settings import SolverSettings

Solve = Callable[[torch.Tensor, Problem, Iterable[float]], Iterator[torch.Tensor]]
"""An algorithm, ready to run from a start: yields the estimate after every iteration, as `gap` does."""

SOLVERS: dict[str, tuple[Callable[..., Iterator[torch.Tensor]], Step]] = {
    "gap": (gap, gap_step),
    "admm": (admm, admm_step),
}
"""Each algorithm with its iteration."""


def solver_step(settings: SolverSettings) -> Step:
    """Return the iteration of the algorithm that the settings name.

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
    """Return the algorithm that the settings name; with ``step`` in place of its own iteration.

    Raises
    ------
    ConfigError
        If the name is unknown.
    """
    own = solver_step(settings)
    return partial(SOLVERS[settings.solver][0], step=step or own)
