"""Parameters of a reconstruct node that can be changed while it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from sci_stream.config import ReconstructSection
from sci_stream.config.runtime_parameters import changed, declare
from sci_stream.parameters import Parameter, Value
from sci_stream.recon.denoisers.registry import DENOISERS
from sci_stream.recon.settings import SolverSettings

# The identity denoiser, for tests.
_NO_PRIOR = "identity"


# Keys whose default depends on the denoiser.
_LEFT_OPEN = tuple(
    field.name
    for field in dataclasses.fields(SolverSettings)
    if (known := ReconstructSection.model_fields.get(field.name)) is not None and known.default is None
)


def offered_priors(given: ReconstructSection, prior: str) -> tuple[str, ...]:
    """Return the available denoisers: the rig's own and those shipped with the product."""
    own = _own_prior(given, prior)
    free = [name for name, spec in DENOISERS.items() if name != _NO_PRIOR and not spec.offline]
    return tuple(sorted({own, prior, *free}))


def _own_prior(given: ReconstructSection, prior: str) -> str:
    if given.denoiser != "auto":
        return given.denoiser
    return "ffdnet" if given.weights is not None else prior


def solver_parameters(
    given: ReconstructSection, now: ReconstructSection, prior: str, settings: SolverSettings
) -> list[Parameter]:
    """Declare the adjustable parameters.

    Parameters
    ----------
    given, now
        ``[reconstruct]`` of the rig file, and with the changes since.
    prior, settings
        Current prior and settings.
    """
    return [
        declare(ReconstructSection, "denoiser", prior, choices=offered_priors(given, prior)),
        declare(ReconstructSection, "iterations", settings.iterations),
        declare(ReconstructSection, "min_iterations", settings.min_iterations),
        declare(ReconstructSection, "adapt_budget", now.adapt_budget),
    ]


def changed_section(
    given: ReconstructSection, now: ReconstructSection, prior: str, changes: Mapping[str, Value]
) -> ReconstructSection:
    """Return ``[reconstruct]`` with changes applied and checked for consistency.

    A new denoiser gets its default iterations unless iterations are set too; the rig's weights belong to the rig's
    denoiser. Setting ``iterations`` below ``min_iterations`` lowers both.

    Raises
    ------
    ConfigError
        If the changes are inconsistent.
    """
    new: dict[str, object] = dict(changes)
    if "denoiser" in changes and changes["denoiser"] != prior:
        own = changes["denoiser"] == _own_prior(given, prior)
        new["weights"] = given.weights if own else None
        for name in _LEFT_OPEN:
            new.setdefault(name, getattr(given, name) if own else None)
    iterations = changes.get("iterations")
    if iterations is not None and "min_iterations" not in changes and now.min_iterations is not None:
        new["min_iterations"] = min(now.min_iterations, int(iterations))
    return changed(now, new, "[reconstruct]")
