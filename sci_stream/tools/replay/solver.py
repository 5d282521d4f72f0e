"""Solver settings of a replay: the recorded ones, with requested changes."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sci_stream.calibration.diagnosis import WITHHELD
from sci_stream.config import ReconstructSection, parse_rig
from sci_stream.devices.solver import (
    describe_solver,
    make_prior,
    solver_id,
    suited,
)
from sci_stream.errors import ConfigError, WeightsError
from sci_stream.model import Array, Flags
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.ports import Solver
from sci_stream.recon.denoisers.plugin_code import runs_code
from sci_stream.recon.guarded import Decision
from sci_stream.recon.settings import SolverSettings
from sci_stream.recording.columns import OUTCOME_CODES
from sci_stream.recording.reader import Settings
from sci_stream.recording.series import RecordedSeries

_SETTINGS = {field.name for field in dataclasses.fields(SolverSettings)}


@dataclass(frozen=True)
class SolverChanges:
    """Changes to the recorded settings; None keeps the recorded value."""

    solver: str | None = None
    weights: Path | None = None
    iterations: int | None = None
    sigma_first: float | None = None
    sigma_last: float | None = None

    @property
    def another_prior(self) -> bool:
        """Whether no recorded setting is kept."""
        return self.solver is not None or self.weights is not None


@dataclass(frozen=True, eq=False)
class SolverSetup:
    """A prior on its device with its settings; ``described`` holds them as plain values, ``id``
    names them.
    """

    solver: Solver
    settings: SolverSettings
    described: Settings
    id: str


class _Decisions(NamedTuple):
    """Decisions by row: the correction of the masks as text, and where the video is withheld."""

    corrections: Array
    withheld: Flags

    def of(self, row: int) -> Decision:
        correction = MaskCorrection.from_text(self.corrections[row].decode())
        return Decision(correction, bool(self.withheld[row]))


@dataclass(frozen=True, eq=False)
class ReplaySolver:
    """How each snapshot of a recording is solved.

    ``setups`` are the different settings of the recorded run, at least one. By row, ``chosen`` is
    the index into them. ``decisions`` are those of the recorded solves; None if there are none, or
    if they were made with another calibration. With ``as_recorded`` each snapshot gets its recorded
    number of iterations; ``unknown`` counts the snapshots whose settings are not in the recording.
    """

    setups: Sequence[SolverSetup]
    chosen: npt.NDArray[np.intp]
    decisions: _Decisions | None
    first_seq: int
    as_recorded: bool
    unknown: int

    @property
    def described(self) -> dict[str, Settings]:
        """All settings as plain values, by id."""
        return {setup.id: setup.described for setup in self.setups}

    def of(self, seq: int) -> SolverSetup:
        """Return the settings of a snapshot."""
        return self.setups[int(self.chosen[seq - self.first_seq])]

    def decision_of(self, seq: int) -> Decision | None:
        """Return the recorded decision on a snapshot; None to decide again."""
        return None if self.decisions is None else self.decisions.of(seq - self.first_seq)


def replay_solver(
    series: RecordedSeries, changes: SolverChanges, calibration: Calibration, device: torch.device
) -> ReplaySolver:
    """Return how a recording's snapshots are solved.

    The recording contains the complete settings reported by the reconstruct nodes, and each row
    names its own, since they may change during a run. A recording without them uses its rig file.

    Raises `ConfigError` or `WeightsError` if the denoiser is unknown, or its checkpoint is missing
    or has changed.
    """
    name = f"The rig in {series.path}"
    section = parse_rig(series.info.rig_toml, overrides={}, name=name).reconstruct
    cells = series.rows["solver"]
    changes = _trusted(series, section, changes)
    recorded = {} if changes.another_prior else _recorded(series)
    named = [name for name in recorded if np.any(cells == name.encode())]
    if changes.another_prior:
        # Settings tuned for the recorded prior do not suit this one.
        section = ReconstructSection(solver=changes.solver or "auto", weights=changes.weights)
    # A recording of raw counts alone names no settings in its rows: all nodes used the same rig.
    used = [recorded[name] for name in named] or list(recorded.values())[:1]
    return ReplaySolver(
        [_setup(section, one, changes, device, calibration) for one in used or (None,)],
        _chosen(cells, named),
        _decisions(series, calibration),
        series.first_seq,
        as_recorded=not changes.another_prior and changes.iterations is None,
        unknown=int(np.sum((cells != b"") & ~np.isin(cells, [name.encode() for name in named])))
        if recorded
        else 0,
    )


def _trusted(
    series: RecordedSeries, section: ReconstructSection, changes: SolverChanges
) -> SolverChanges:
    """Return the changes, without a solver that confirms the recorded one.

    A solver such as ``module:Class`` or a file of a network runs its code: a recording may not
    cause that, only its user.

    Raises `ConfigError` if the recording has one and the user does not name it.
    """
    names = {str(solver["denoiser"]) for solver in _recorded(series).values()} or {section.solver}
    imported = sorted(name for name in names if runs_code(name))
    if not imported or (changes.another_prior and changes.solver not in imported):
        return changes
    if changes.solver is None or set(imported) != {changes.solver}:
        raise ConfigError(
            f"The recording {series.path} was made with solvers that run code of their own",
            got=", ".join(imported),
            hint=f"If you trust it: --solver {imported[0]}. Or choose another.",
        )
    return dataclasses.replace(changes, solver=None)


def _recorded(series: RecordedSeries) -> dict[str, Settings]:
    """Return the settings of the recorded run by id."""
    return {name: solver for name, solver in series.solvers.items() if "denoiser" in solver}


def _chosen(cells: Array, named: Sequence[str]) -> npt.NDArray[np.intp]:
    """Return the settings of each row: its own, or those of the last earlier row with known
    settings.
    """
    indices = np.full(len(cells), -1, np.intp)
    for index, name in enumerate(named):
        indices[cells == name.encode()] = index
    return np.maximum(indices[_last(indices >= 0)], 0)


def _last(known: Flags) -> npt.NDArray[np.intp]:
    """Forward-fill known rows; rows before the first known one get the first."""
    return np.maximum.accumulate(np.where(known, np.arange(len(known)), 0))


def _decisions(series: RecordedSeries, calibration: Calibration) -> _Decisions | None:
    """Return the decisions of the recorded solves, made with this calibration.

    A raw-only snapshot gets the decision on the last reconstructed one before it.
    """
    solved = series.rows["outcome"] == OUTCOME_CODES["reconstructed"]
    if calibration.hash != series.info.calibration_hash or not solved.any():
        return None
    last = _last(solved)
    withheld = series.rows["start_reason"] == WITHHELD.encode()
    return _Decisions(series.rows["masks_at"][last], withheld[last])


def _setup(
    section: ReconstructSection,
    recorded: Settings | None,
    changes: SolverChanges,
    device: torch.device,
    calibration: Calibration,
) -> SolverSetup:
    """Return the settings from a recording, or else from a rig, with the changes applied."""
    if recorded is not None:
        settings = as_settings(recorded)
        # The rig file has the initial settings. A later change of the denoiser discarded the rig's
        # weights.
        update: dict[str, object] = {
            name: getattr(settings, name)
            for name in _SETTINGS
            if name in ReconstructSection.model_fields
        }
        update |= {
            "solver": str(recorded["denoiser"]),
            "weights": section.weights if "weights" in recorded else None,
        }
        section = section.model_copy(update=update)
        _check_weights(section.weights, recorded)
    solver, defaults = make_prior(section, device)
    settings = suited(section, defaults, calibration) if recorded is None else settings
    changed = {
        name: value
        for name in ("iterations", "sigma_first", "sigma_last")
        if (value := getattr(changes, name))
    }
    if "iterations" in changed:
        changed["min_iterations"] = min(settings.min_iterations, changed["iterations"])
    settings = dataclasses.replace(settings, **changed)
    described = describe_solver(section, solver.name, settings)
    return SolverSetup(solver, settings, described, solver_id(described))


def as_settings(described: Settings) -> SolverSettings:
    """Return the settings written by
    `sci_stream.devices.solver.describe_solver`.

    Raises `ConfigError` if this version does not know them.
    """
    known = {name: value for name, value in described.items() if name in _SETTINGS}
    try:
        return SolverSettings(**known)  # type: ignore[arg-type] # checked on construction
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "The recorded solver settings are not usable",
            got=error,
            hint="Choose another --solver.",
        ) from error


def _check_weights(weights: Path | None, recorded: Settings) -> None:
    """Raise unless the checkpoint is that of the recorded run."""
    if weights is None or "weights_sha256" not in recorded:
        return
    if not weights.is_file():
        raise WeightsError(
            f"Weights of the recorded run not found: {weights}",
            hint=f"Name {recorded.get('weights', 'them')} with --weights, or another --solver.",
        )
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    if digest != recorded["weights_sha256"]:
        raise WeightsError(
            f"{weights} has changed since the recording was made",
            expected=f"SHA-256 {recorded['weights_sha256']}",
            got=digest,
            hint="To use it anyway, pass it with --weights.",
        )
