"""How to solve a recording again: as it was solved when it was made, as far as nobody asks for something else."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sci_stream.config import ReconstructSection, parse_rig
from sci_stream.errors import ConfigError, WeightsError
from sci_stream.files.recording_series import RecordedSeries
from sci_stream.nodes.solver_thread import describe_solver, make_prior
from sci_stream.ports import Denoiser
from sci_stream.recon.schedule import LambdaRule, Shape
from sci_stream.recon.settings import SolverSettings
from sci_stream.recon.warm_start import Effort

_SETTINGS = {field.name for field in dataclasses.fields(SolverSettings)}


@dataclass(frozen=True, slots=True)
class SolverChanges:
    """What to do otherwise than in the run that was recorded; None for what is to stay as it was."""

    denoiser: str | None = None
    weights: Path | None = None
    iterations: int | None = None
    sigma_first: float | None = None
    sigma_last: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ReplaySolver:
    """A prior on its device with the settings for a whole recording.

    ``as_recorded`` says whether each snapshot gets as many iterations as when it was recorded; ``told`` is all of it
    in plain values, for the file that is made.
    """

    denoiser: Denoiser
    settings: SolverSettings
    as_recorded: bool
    told: dict[str, Any]


def replay_solver(series: RecordedSeries, changes: SolverChanges, device: torch.device) -> ReplaySolver:
    """Return how to solve a recording's snapshots.

    The settings in full that the reconstruct nodes reported are in the recording. One without them, of a run that
    ended before they were, is solved by its rig file.

    Raises
    ------
    ConfigError, WeightsError
        If the denoiser is unknown, or its checkpoint is missing or another one.
    """
    section = parse_rig(series.info.rig_toml, overrides={}, name=f"The rig in {series.path}").reconstruct
    another_prior = changes.denoiser is not None or changes.weights is not None
    recorded = _recorded(series)
    if another_prior:
        # What suited the recorded prior would not suit this one.
        section = ReconstructSection(denoiser=changes.denoiser or "auto", weights=changes.weights)
    elif recorded is not None:
        section = section.model_copy(
            # Whoever changed the denoiser while the rig ran left the rig's weights behind.
            update={
                "denoiser": str(recorded["denoiser"]),
                "weights": section.weights if "weights" in recorded else None,
            }
        )
        _check_weights(section.weights, recorded)
    denoiser, settings = make_prior(section, device)
    if recorded is not None and not another_prior:
        settings = as_settings(recorded)
    given = {name: value for name in ("iterations", "sigma_first", "sigma_last") if (value := getattr(changes, name))}
    if "iterations" in given:
        given["min_iterations"] = min(settings.min_iterations, given["iterations"])
    settings = dataclasses.replace(settings, **given)
    return ReplaySolver(
        denoiser,
        settings,
        as_recorded=not another_prior and changes.iterations is None,
        told=describe_solver(section, denoiser.name, settings),
    )


def _recorded(series: RecordedSeries) -> dict[str, Any] | None:
    """Return how the recorded run solved: all its nodes do by the same rig."""
    solvers = series.notes.get("solvers") or {}
    return next((told for told in solvers.values() if "denoiser" in told), None)


def as_settings(told: dict[str, Any]) -> SolverSettings:
    """Return the settings that `sci_stream.nodes.solver_thread.describe_solver` told.

    Raises
    ------
    ConfigError
        If they are none that this version knows.
    """
    known = {name: value for name, value in told.items() if name in _SETTINGS}
    try:
        shape, rule = known.get("sigma_shape", Shape.GEOMETRIC), known.get("lambda_rule", LambdaRule.MONOTONE)
        known |= {"sigma_shape": Shape(shape), "lambda_rule": LambdaRule(rule)}
        return SolverSettings(**{**known, "effort": Effort(known.get("effort", Effort.FULL))})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "The recorded settings of the solver cannot be used", got=error, hint="Name a --denoiser to choose anew."
        ) from error


def _check_weights(weights: Path | None, recorded: dict[str, Any]) -> None:
    """Raise unless the checkpoint is the very one of the recorded run."""
    if weights is None or "weights_sha256" not in recorded:
        return
    if not weights.is_file():
        raise WeightsError(
            f"The weights of the recorded run are not at {weights}",
            hint=f"Name {recorded.get('weights', 'them')} with --weights, or another --denoiser.",
        )
    found = hashlib.sha256(weights.read_bytes()).hexdigest()
    if found != recorded["weights_sha256"]:
        raise WeightsError(
            f"{weights} is not what it was when the recording was made",
            expected=f"SHA-256 {recorded['weights_sha256']}",
            got=found,
            hint="To use it all the same, name it with --weights.",
        )
