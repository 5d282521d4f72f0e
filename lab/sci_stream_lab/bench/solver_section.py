"""The solver of a benchmark: ``[reconstruct]`` of a rig file, with the settings that no rig file
has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from sci_stream.config import ReconstructSection, validate_options
from sci_stream.config.loader import parse_value
from sci_stream.errors import ConfigError


class SolverSection(ReconstructSection):
    """``[reconstruct]`` with every field of `sci_stream.recon.settings.SolverSettings`; None: as
    suits the denoiser.
    """

    relaxation: float | None = Field(default=None, ge=0, lt=2)
    weigh_noise: bool = True
    along_time: bool | None = None
    linear_start: bool | None = None
    correlated: int = Field(default=4, ge=0)
    local_sigma: bool = True


def solver_section(
    denoiser: str,
    weights: Path | None,
    assignments: Sequence[str] | None,
    *,
    warm_start: bool = False,
    **others: str | int | None,
) -> SolverSection:
    """Return the section with these options, validated as a rig file is.

    ``assignments`` (``key=value``, as TOML or a string without quotes) take precedence. Without
    ``warm_start`` each shot is solved separately, as in the paper.

    Raises
    ------
    ConfigError
        If an option is unknown or invalid.
    """
    options: dict[str, object] = {
        "solver": denoiser,
        "weights": weights and str(weights),
        **others,
    }
    options = {key: value for key, value in options.items() if value is not None} | {
        "warm_start": warm_start
    }
    for assignment in assignments or ():
        key, is_one, text = assignment.partition("=")
        if not is_one:
            raise ConfigError(
                "Invalid --set", expected="KEY=VALUE, such as relaxation=1.0", got=repr(assignment)
            )
        options[key.strip()] = parse_value(text.strip())
    return validate_options(SolverSection, options, "[reconstruct]")
