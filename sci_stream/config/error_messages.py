"""Validation errors as messages: file, table, key, expected value, given value, suggestion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from sci_stream.config.fields import fields_of, has_mark, model_of
from sci_stream.config.toml_text import value_text
from sci_stream.errors import ConfigError, did_you_mean

M = TypeVar("M", bound=BaseModel)
Location = tuple[int | str, ...]

_EXPECTED = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "string": "a string",
    "path": "a path",
    "list": "a list",
    "tuple": "a list",
    "dict": "a table",
    "model": "a table",
    "finite": "a finite number",
}
_BOUNDS = {"greater_than_equal": "≥", "greater_than": ">", "less_than_equal": "≤", "less_than": "<"}
# A wrong value may be a whole table; the message must stay one line.
_SHOWN = 80


def validate_options(model: type[M], table: Mapping[str, object], where: str) -> M:
    """Validate a table of options.

    Parameters
    ----------
    model
        Model of the options; it forbids unknown keys.
    table
        Keys and values as read from TOML.
    where
        Name of the table in messages: ``"rig.toml: [camera.options]"``.

    Raises
    ------
    ConfigError
        If anything is invalid: one line for each problem.
    """
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        raise config_error(
            error, model, where, lambda location: f"{where} {dotted(location)}".rstrip()
        ) from None


def config_error(
    error: ValidationError, model: type[BaseModel], where: str, name: Callable[[Location], str]
) -> ConfigError:
    """Make the `ConfigError` for a failed validation; ``name`` gives the name of a key, or for
    ``()`` of the file.
    """
    problems = [_problem(details, model, name) for details in _causes(error)]
    if len(problems) == 1:
        return problems[0]
    lines = "\n".join(f"  {problem}" for problem in problems)
    return ConfigError(f"{where}: {len(problems)} problems\n{lines}")


def _causes(error: ValidationError) -> list[ErrorDetails]:
    """Return the errors, except the consequential "too short" of a list whose entries
    are invalid.
    """
    problems = error.errors(include_url=False)
    # Pydantic drops invalid entries first and then finds the list too short: the user made one
    # mistake, not two.
    parents = {details["loc"][:-1] for details in problems if details["loc"]}
    return [
        details
        for details in problems
        if details["type"] != "too_short" or details["loc"] not in parents
    ]


def dotted(location: Location) -> str:
    """Return a key's name within its table: ``faults.drop_probability``, ``devices[1]``."""
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in location
    ).lstrip(".")


def _problem(
    details: ErrorDetails, model: type[BaseModel], name: Callable[[Location], str]
) -> ConfigError:
    kind = details["type"]
    location = details["loc"]
    context = details.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(location, model, name)
    what = name(location)
    if kind == "missing":
        return ConfigError(f"{what} is missing", hint=_description(model, location))
    if kind in {"value_error", "assertion_error"}:
        got = (
            None
            if isinstance(details["input"], Mapping | BaseModel)
            else _shown(details["input"], model, location)
        )
        return ConfigError(f"{what}: {context['error']}", got=got)
    expected = _expected(kind, context, details["msg"])
    hint = None
    if kind in {"literal_error", "enum"} and isinstance(details["input"], str):
        hint = did_you_mean(
            details["input"], expected.replace("'", "").replace(" or ", ", ").split(", ")
        )
    return ConfigError(
        f"{what} is wrong",
        expected=expected,
        got=_shown(details["input"], model, location),
        hint=hint,
    )


def _unknown_key(
    location: Location, model: type[BaseModel], name: Callable[[Location], str]
) -> ConfigError:
    key = str(location[-1])
    owner = _model_at(model, location[:-1])
    fields = owner.model_fields if owner is not None else {}
    # The most common mistake is a right key in a wrong table.
    homes = [section for section, field in model.model_fields.items() if key in fields_of(field)]
    known = f"Known here: {', '.join(fields)}." if fields else None
    hint = f"It belongs in [{homes[0]}]." if homes else did_you_mean(key, fields) or known
    return ConfigError(f"{name(location)} is unknown", hint=hint)


def _expected(kind: str, context: Mapping[str, object], message: str) -> str:
    if kind in _BOUNDS:
        return f"{_BOUNDS[kind]} {next(iter(context.values())):g}"
    if kind in {"literal_error", "enum"}:
        return str(context["expected"])
    if kind == "int_from_float":
        return _EXPECTED["int"]
    base, _, rest = kind.rpartition("_")
    if rest in {"type", "parsing", "number"} and base in _EXPECTED:
        return _EXPECTED[base]
    return message[:1].lower() + message[1:]


def _shown(value: object, model: type[BaseModel], location: Location) -> str:
    field = _field_at(model, location)
    # Messages end up in logs and bug reports.
    if field is not None and has_mark(field, "secret"):
        return "a secret, not shown"
    try:
        text = value_text(value)
    except TypeError:
        text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _model_at(model: type[BaseModel], location: Location) -> type[BaseModel] | None:
    table: type[BaseModel] | None = model
    for part in location:
        field = table.model_fields.get(str(part)) if table is not None else None
        table = model_of(field)
    return table


def _field_at(model: type[BaseModel], location: Location) -> FieldInfo | None:
    names = [part for part in location if isinstance(part, str)]
    owner = _model_at(model, tuple(names[:-1])) if names else None
    return owner.model_fields.get(names[-1]) if owner is not None else None


def _description(model: type[BaseModel], location: Location) -> str | None:
    field = _field_at(model, location)
    return field.description if field is not None else None
