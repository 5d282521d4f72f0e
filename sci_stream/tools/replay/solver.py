"""How to solve a recording again: as it was solved when it was made, as far as nobody asks for something else."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sci_stream.config import ReconstructSection, parse_rig
from sci_stream.errors import ConfigError, WeightsError
from sci_stream.model import Array
from sci_stream.nodes.reconstruct.solver_thread import describe_solver, make_prior, solver_id
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_shift import Displacement
from sci_stream.ports import Denoiser
from sci_stream.recon.algorithms.schedule import LambdaRule, Shape
from sci_stream.recon.settings import SolverSettings
from sci_stream.storage.recording.columns import OUTCOME_CODES
from sci_stream.storage.recording.series import RecordedSeries

_SETTINGS = {field.name for field in dataclasses.fields(SolverSettings)}


@dataclass(frozen=True, slots=True)
class SolverChanges:
    """What to do otherwise than in the run that was recorded; None for what is to stay as it was."""

    denoiser: str | None = None
    weights: Path | None = None
    iterations: int | None = None
    sigma_first: float | None = None
    sigma_last: float | None = None

    @property
    def another_prior(self) -> bool:
        """Whether nothing of how the recorded run solved is to be kept."""
        return self.denoiser is not None or self.weights is not None


@dataclass(frozen=True, slots=True, eq=False)
class Solving:
    """A prior on its device with its settings; ``told`` is all of it in plain values, ``name`` names that."""

    denoiser: Denoiser
    settings: SolverSettings
    told: dict[str, Any]
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class ReplaySolver:
    """How each snapshot of a recording is solved.

    ``solvings`` are the settings that the recorded run went through, at least one; ``chosen`` says by row which of them
    goes for it. ``as_recorded`` says whether each snapshot gets as many iterations as when it was recorded, ``unknown``
    how many snapshots name settings that are not in the recording.
    """

    solvings: Sequence[Solving]
    chosen: npt.NDArray[np.intp]
    first_seq: int
    as_recorded: bool
    unknown: int

    @property
    def told(self) -> dict[str, dict[str, Any]]:
        """All that is solved with, in plain values, by name."""
        return {solving.name: solving.told for solving in self.solvings}

    def of(self, seq: int) -> Solving:
        """Return how to solve a snapshot."""
        return self.solvings[int(self.chosen[seq - self.first_seq])]


def replay_solver(series: RecordedSeries, changes: SolverChanges, device: torch.device) -> ReplaySolver:
    """Return how to solve a recording's snapshots.

    The settings in full that the reconstruct nodes reported are in the recording, and each row names its own: they may
    have been changed while it was made. One without them, of a run that ended before they were told, is solved by its
    rig file.

    Raises
    ------
    ConfigError, WeightsError
        If the denoiser is unknown, or its checkpoint is missing or another one.
    """
    section = parse_rig(series.info.rig_toml, overrides={}, name=f"The rig in {series.path}").reconstruct
    cells = series.rows["solver"]
    recorded = {} if changes.another_prior else _recorded(series)
    named = [name for name in recorded if np.any(cells == name.encode())]
    if changes.another_prior:
        # What suited the recorded prior would not suit this one.
        section = ReconstructSection(denoiser=changes.denoiser or "auto", weights=changes.weights)
    # Recordings of before name no settings in their rows: all their nodes solved by the same rig.
    told = [recorded[name] for name in named] or list(recorded.values())[:1]
    return ReplaySolver(
        [_solving(section, one, changes, device) for one in told or (None,)],
        _chosen(cells, named),
        series.first_seq,
        as_recorded=not changes.another_prior and changes.iterations is None,
        unknown=int(np.sum((cells != b"") & ~np.isin(cells, [name.encode() for name in named]))) if recorded else 0,
    )


def _recorded(series: RecordedSeries) -> dict[str, Mapping[str, Any]]:
    """Return how the recorded run solved, by name."""
    return {name: told for name, told in (series.notes.get("solvers") or {}).items() if "denoiser" in told}


def _chosen(cells: Array, named: Sequence[str]) -> npt.NDArray[np.intp]:
    """Return for each row which settings go for it: its own, or those of the last one before whose are known."""
    own = np.full(len(cells), -1, np.intp)
    for index, name in enumerate(named):
        own[cells == name.encode()] = index
    return np.maximum(own[_last(own >= 0)], 0)


def _last(known: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Return for each row the last one up to it that is known, the first where there is none."""
    return np.maximum.accumulate(np.where(known, np.arange(len(known)), 0))


@dataclass(frozen=True, slots=True, eq=False)
class ReplayMasks:
    """Where the masks of each snapshot of a recording are taken to be, as `Displacement.told` says it, by row."""

    told: Array
    first_seq: int

    def of(self, seq: int) -> Displacement:
        """Return by how much the masks of a snapshot are displaced."""
        return Displacement.from_told(self.told[seq - self.first_seq].decode())


def replay_masks(series: RecordedSeries, calibration: Calibration) -> ReplayMasks:
    """Return where the masks were taken to be; for another calibration than the recorded one, where that has them.

    A snapshot that was left raw is taken as the last before it that was not.
    """
    told = series.rows["masks_at"]
    if calibration.hash != series.info.calibration_hash:
        return ReplayMasks(np.zeros_like(told), series.first_seq)
    reconstructed = series.rows["outcome"] == OUTCOME_CODES["reconstructed"]
    return ReplayMasks(told[_last(reconstructed)], series.first_seq)


def _solving(
    section: ReconstructSection, recorded: Mapping[str, Any] | None, changes: SolverChanges, device: torch.device
) -> Solving:
    """Return how to solve: as was told in a recording, or else as a rig says, but for the changes."""
    if recorded is not None:
        settings = as_settings(dict(recorded))
        # The rig file has what the run began with. Whoever changed the denoiser then left the rig's weights behind.
        update: dict[str, Any] = {
            name: getattr(settings, name) for name in _SETTINGS if name in ReconstructSection.model_fields
        }
        update |= {"denoiser": str(recorded["denoiser"]), "weights": section.weights if "weights" in recorded else None}
        section = section.model_copy(update=update)
        _check_weights(section.weights, recorded)
    denoiser, made = make_prior(section, device)
    settings = made if recorded is None else settings
    given = {name: value for name in ("iterations", "sigma_first", "sigma_last") if (value := getattr(changes, name))}
    if "iterations" in given:
        given["min_iterations"] = min(settings.min_iterations, given["iterations"])
    settings = dataclasses.replace(settings, **given)
    told = describe_solver(section, denoiser.name, settings)
    return Solving(denoiser, settings, told, solver_id(told))


def as_settings(told: dict[str, Any]) -> SolverSettings:
    """Return the settings that `sci_stream.nodes.reconstruct.solver_thread.describe_solver` told.

    Raises
    ------
    ConfigError
        If they are none that this version knows.
    """
    known = {name: value for name, value in told.items() if name in _SETTINGS}
    try:
        shape, rule = known.get("sigma_shape", Shape.GEOMETRIC), known.get("lambda_rule", LambdaRule.MONOTONE)
        known |= {"sigma_shape": Shape(shape), "lambda_rule": LambdaRule(rule)}
        return SolverSettings(**known)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "The recorded settings of the solver cannot be used", got=error, hint="Name a --denoiser to choose anew."
        ) from error


def _check_weights(weights: Path | None, recorded: Mapping[str, Any]) -> None:
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
