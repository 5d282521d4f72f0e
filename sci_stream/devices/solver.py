"""The solver of a rig: its denoiser and settings, their record, and those that can be changed while
a node runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch

from sci_stream.config import ReconstructSection
from sci_stream.config.error_messages import validate_options
from sci_stream.errors import ConfigError
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Parameter, Value, declare
from sci_stream.ports import Solver
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.plugin_code import solver_sha256, source_of
from sci_stream.recon.denoisers.registry import DENOISERS, chosen_denoiser, named_prior
from sci_stream.recon.denoisers.variants import has_weights
from sci_stream.recon.settings import SolverSettings, default_settings, suited_to_masks

_ID_DIGITS = 12
# The identity denoiser, for tests.
_NO_PRIOR = "identity"
# Keys of a rig that are solver settings and whose default depends on the denoiser.
_LEFT_OPEN = tuple(
    field.name
    for field in dataclasses.fields(SolverSettings)
    if (key := ReconstructSection.model_fields.get(field.name)) is not None and key.default is None
)


def make_prior(section: ReconstructSection, device: torch.device) -> tuple[Solver, SolverSettings]:
    """Return the denoiser on its device and the settings: the rig's, with device-dependent
    defaults.

    A subclass of the section may have further fields of `SolverSettings`, as in experiments.

    Raises `ConfigError`, `WeightsError` if the denoiser is unknown or its checkpoint missing or
    unusable.
    """
    weights = _weights(section)
    name = chosen_denoiser(section.solver, device, weights)
    settings = default_settings(device, name, linear_start=getattr(section, "linear_start", None))
    names = (field.name for field in dataclasses.fields(SolverSettings))
    from_rig = {
        name: value for name in names if (value := getattr(section, name, None)) is not None
    }
    if "iterations" in from_rig and "min_iterations" not in from_rig:
        from_rig["min_iterations"] = min(settings.min_iterations, from_rig["iterations"])
    settings = dataclasses.replace(settings, **from_rig)
    if weights is not None and weights.suffix == ".mat":
        raise ConfigError(
            f"The weights {weights} are of MatConvNet",
            hint="Convert them, with sci-stream-lab: sci-stream weights import FILE.mat "
            "FILE.safetensors",
        )
    prior = named_prior(name, device, weights, Precision(section.precision))
    return prior, settings


def _weights(section: ReconstructSection) -> Path | None:
    """Return the checkpoint, or the copy that the run has of it."""
    return None if section.weights is None else source_of(section.weights)


def suited(
    section: ReconstructSection, settings: SolverSettings, calibration: Calibration
) -> SolverSettings:
    """Return settings that suit the masks where the rig leaves the number of iterations open."""
    return (
        settings
        if section.iterations is not None
        else suited_to_masks(settings, calibration.fineness)
    )


def describe_solver(
    section: ReconstructSection, prior: str, settings: SolverSettings
) -> dict[str, int | float | str]:
    """Return the complete solver settings for the recording, with all defaults resolved."""
    output: dict[str, int | float | str] = {"denoiser": prior, **dataclasses.asdict(settings)}
    output["precision"] = section.precision
    if (weights := _weights(section)) is not None:
        output["weights"] = weights.name
        output["weights_sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    if code := solver_sha256(prior):
        output["code_sha256"] = code
    return output


def solver_id(output: Mapping[str, int | float | str]) -> str:
    """Return the id of solver settings: equal settings have equal ids."""
    return hashlib.sha256(json.dumps(dict(output), sort_keys=True).encode()).hexdigest()[
        :_ID_DIGITS
    ]


# --- changes while the node runs


def offered_priors(rig: ReconstructSection, prior: str) -> tuple[str, ...]:
    """Return the available denoisers: the rig's own and those shipped with the product."""
    own_prior = _own_prior(rig, prior)
    free = [
        n
        for n, spec in DENOISERS.items()
        if n != _NO_PRIOR and (not spec.takes_weights or has_weights(n))
    ]
    return tuple(sorted({own_prior, prior, *free}))


def _own_prior(rig: ReconstructSection, prior: str) -> str:
    if rig.solver == "auto" and rig.weights is None:
        return prior
    return chosen_denoiser(rig.solver, torch.device("cpu"), _weights(rig))


def solver_parameters(
    rig: ReconstructSection, now: ReconstructSection, prior: str, settings: SolverSettings
) -> list[Parameter]:
    """Declare the adjustable parameters; ``now`` is ``[reconstruct]`` of the rig file with the
    changes since.
    """
    return [
        declare(ReconstructSection, "solver", prior, choices=offered_priors(rig, prior)),
        declare(ReconstructSection, "iterations", settings.iterations),
        declare(ReconstructSection, "min_iterations", settings.min_iterations),
        declare(ReconstructSection, "adapt_budget", now.adapt_budget),
    ]


def changed_section(
    rig: ReconstructSection, now: ReconstructSection, prior: str, changes: Mapping[str, Value]
) -> ReconstructSection:
    """Return ``[reconstruct]`` with changes applied and checked for consistency.

    A new denoiser gets its default iterations unless iterations are set too; the rig's weights
    belong to the rig's denoiser. Setting ``iterations`` below ``min_iterations`` lowers both.

    Raises `ConfigError` if the changes are inconsistent.
    """
    new = dict[str, object](changes)
    if "solver" in changes and changes["solver"] != prior:
        is_own = changes["solver"] == _own_prior(rig, prior)
        new["weights"] = rig.weights if is_own else None
        for name in _LEFT_OPEN:
            new.setdefault(name, getattr(rig, name) if is_own else None)
    iterations = changes.get("iterations")
    if (
        iterations is not None
        and "min_iterations" not in changes
        and now.min_iterations is not None
    ):
        new["min_iterations"] = min(now.min_iterations, int(iterations))
    return validate_options(ReconstructSection, {**now.model_dump(), **new}, "[reconstruct]")
