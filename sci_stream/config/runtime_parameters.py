"""Fields of the rig file that can also be set at run time."""

from __future__ import annotations

from typing import get_args

import annotated_types
from pydantic import BaseModel

from sci_stream.parameters import Kind, Parameter, Value


def declare(
    model: type[BaseModel], field: str, value: Value, *, choices: tuple[str, ...] = ()
) -> Parameter:
    """Declare a field of a model as a parameter, with its range and description.

    Parameters
    ----------
    value
        Current value; for a field that is unset in the rig, the value in use.
    choices
        Valid values of a choice; by default those of the field's type.
    """
    info = model.model_fields[field]
    options = choices or tuple(
        str(option) for option in get_args(info.annotation) if isinstance(option, str)
    )
    ends: dict[str, float] = {}
    for bound in info.metadata:
        if isinstance(bound, annotated_types.Ge):
            ends["low"] = float(bound.ge)  # type: ignore[arg-type] # the bound of a number is a number
        elif isinstance(bound, annotated_types.Le):
            ends["high"] = float(bound.le)  # type: ignore[arg-type]
    kind: Kind = "number"
    if isinstance(value, bool):
        kind = "flag"
        ends = {}
    elif isinstance(value, str):
        kind = "choice"
        ends = {}
    elif isinstance(value, int):
        kind = "integer"
    return Parameter(
        field, kind, value, ends.get("low"), ends.get("high"), options, info.description or ""
    )
