"""Parameters that can be set at run time: name, type, range, current value."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeGuard, get_args

import annotated_types
from pydantic import BaseModel, JsonValue, TypeAdapter

from sci_stream.errors import InputError, did_you_mean

Value = bool | int | float | str
"""Value of a parameter. It is sent and recorded unchanged."""

Changes = Mapping[str, object]
"""Requested values by parameter name, not yet checked: `checked_changes` returns them as
`Value`."""

Kind = Literal["flag", "integer", "number", "choice"]

# Prefix of the keys under which a reconstruct node's status lists its solver settings, which the
# sink records.
SOLVER_KEY = "solver."
# Prefix of the keys under which a node's status declares its parameters, each as
# `Parameter.to_text`.
SET_KEY = "set."
# Key under which a node's status lists its actions, separated by blanks.
ACTIONS_KEY = "actions"

# Parameters per request. A request is validated and applied as a whole, so this bounds the work of
# one message.
MAX_CHANGES = 16

_WORDS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
DEMO = "the demo"
"""Who paces the camera of a demo. Its changes are recorded without a warning or a notice."""
# Longest text value of a status entry on the wire.
_MAX_TEXT = 1024
# Sums and squares of accepted numbers must be finite.
_LARGEST = 1e300


@dataclass(frozen=True)
class SettingChange:
    """A change by an operator: a parameter from ``old`` to ``new`` or, with neither, an action."""

    time_ns: int
    who: str
    node: str
    name: str
    old: Value | None = None
    new: Value | None = None

    def __str__(self) -> str:
        values = "" if self.new is None else f" from {self.old} to {self.new}"
        return f"{self.node} {self.name}{values}"

    def to_json(self) -> dict[str, Value | None]:
        """Return the change for journal, recording and summary."""
        return asdict(self)


@dataclass(frozen=True)
class ControlAnswer:
    """Answer to a request of an operator: the current values by node, and a text."""

    values: Mapping[str, Mapping[str, Value]]
    text: str


@dataclass(frozen=True)
class Parameter:
    """A parameter that can be set, with its current value.

    Parameters
    ----------
    name
        Name in the rig file or the driver, with its unit (``iterations``, ``snapshot_rate_hz``).
    kind
        ``flag``, ``integer``, ``number`` or ``choice``.
    value
        Current value.
    low, high
        Inclusive range of a number; None where it is unbounded.
    choices
        Valid values of a choice.
    description
        One sentence that describes the parameter.
    """

    name: str
    kind: Kind
    value: Value
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    description: str = ""

    @property
    def range(self) -> str:
        """Description of the valid values."""
        if self.kind == "flag":
            return "true or false"
        if self.kind == "choice":
            if len(self.choices) < 3:
                return " or ".join(self.choices)
            return "one of " + ", ".join(self.choices)
        noun = "an integer" if self.kind == "integer" else "a number"
        if self.low is not None and self.high is not None:
            return f"{noun} from {self.low:.10g} to {self.high:.10g}"
        if self.low is not None:
            return f"{noun} from {self.low:.10g} up"
        return noun if self.high is None else f"{noun} up to {self.high:.10g}"

    def checked(self, value: object) -> Value:
        """Return a valid value in the parameter's own type.

        Raises
        ------
        InputError
            If the value is invalid; names the range.
        """
        match self.kind:
            case "flag" if isinstance(value, bool):
                return value
            case "choice" if isinstance(value, str) and value in self.choices:
                return value
            case "integer" | "number" if _is_number(value) and self._holds(value):
                if self.kind == "number":
                    return float(value)
                if value == int(value):
                    return int(value)
        hint = did_you_mean(value, self.choices) if isinstance(value, str) else None
        raise InputError(
            f"{self.name} cannot be set to that", expected=self.range, got=_shown(value), hint=hint
        )

    def _holds(self, value: float) -> bool:
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)

    def parsed(self, text: str) -> Value:
        """Parse a value of the command line: ``12``, ``0.5``, ``on``, ``tv``.

        Raises as `checked`.
        """
        value: object = text
        if self.kind == "flag":
            value = _WORDS.get(text.lower(), text)
        elif self.kind != "choice":
            with contextlib.suppress(ValueError):
                value = float(text)
            with contextlib.suppress(ValueError):
                value = int(text)
        return self.checked(value)

    def as_dict(self) -> dict[str, JsonValue]:
        """Return the parameter as plain values."""
        return {**asdict(self), "choices": list(self.choices), "range": self.range}

    def to_text(self) -> str:
        """Return the parameter as JSON for a status entry, without its description if that would
        not fit.
        """
        plain = {key: value for key, value in asdict(self).items() if value not in (None, (), "")}
        text = json.dumps(plain, separators=(",", ":"))
        if len(text) > _MAX_TEXT:
            text = json.dumps(
                {key: plain[key] for key in plain if key != "description"}, separators=(",", ":")
            )
        return text


def declare(
    model: type[BaseModel], field: str, value: Value, *, choices: tuple[str, ...] = ()
) -> Parameter:
    """Declare a field of a model as a parameter, with its range and description.

    Parameters
    ----------
    value
        Current value; for a field that is unset, the value in use.
    choices
        Valid values of a choice; by default those of the field's type.
    """
    info = model.model_fields[field]
    options = (option for option in get_args(info.annotation) if isinstance(option, str))
    ends: dict[str, float] = {}
    for bound in info.metadata:
        if isinstance(bound, annotated_types.Ge):
            ends["low"] = float(bound.ge)  # type: ignore[arg-type] # the bound of a number is one
        elif isinstance(bound, annotated_types.Le):
            ends["high"] = float(bound.le)  # type: ignore[arg-type] # likewise
    kind: Kind = "number"
    if isinstance(value, bool):
        kind = "flag"
    elif isinstance(value, str):
        kind = "choice"
    elif isinstance(value, int):
        kind = "integer"
    choices = choices or tuple(options)
    return Parameter(
        field, kind, value, **ends, choices=choices, description=info.description or ""
    )


_PARAMETER = TypeAdapter(Parameter)


def parameter_of(values: object) -> Parameter | None:
    """Parse a parameter of another node, the text of `to_text` or the values of `as_dict`; None if
    it is invalid.
    """
    try:
        parse = _PARAMETER.validate_json if isinstance(values, str) else _PARAMETER.validate_python
        parameter = parse(values)  # type: ignore[arg-type] # both take the values that come to them
        ends = [end for end in (parameter.low, parameter.high) if end is not None]
        fits = all(map(_is_number, ends)) and parameter.checked(parameter.value) == parameter.value
    except (ValueError, InputError):
        return None
    return parameter if fits else None


def declared(parameters: Iterable[Parameter], actions: Iterable[str] = ()) -> dict[str, str]:
    """Return the status entries that declare a node's parameters and actions."""
    entries = {f"{SET_KEY}{parameter.name}": parameter.to_text() for parameter in parameters}
    words = " ".join(actions)
    return {**entries, ACTIONS_KEY: words} if words else entries


def is_declaration(key: str) -> bool:
    """Return whether an entry of a node's status declares a parameter or its actions."""
    return key == ACTIONS_KEY or key.startswith(SET_KEY)


def declarations(status: Mapping[str, Value]) -> tuple[list[Parameter], list[str]]:
    """Return the parameters and actions that a node's status declares, skipping invalid entries."""
    texts = [
        value for key, value in status.items() if key.startswith(SET_KEY) and isinstance(value, str)
    ]
    parameters = [parameter for text in texts if (parameter := parameter_of(text)) is not None]
    actions = status.get(ACTIONS_KEY, "")
    return parameters, actions.split() if isinstance(actions, str) else []


def checked_changes(
    parameters: Iterable[Parameter], changes: Changes, whose: str
) -> dict[str, Value]:
    """Return changes with known names and valid values.

    Raises
    ------
    InputError
        For the first invalid change.
    """
    known = {parameter.name: parameter for parameter in parameters}
    if not changes:
        raise InputError("No parameter given", expected="at least one parameter with its value")
    out = {}
    for name, value in changes.items():
        if name not in known:
            expected = (
                f"one of {', '.join(known)}"
                if known
                else "no parameter: nothing can be set on it now"
            )
            raise InputError(
                f"{whose} has no parameter {_shown(name)}",
                expected=expected,
                hint=did_you_mean(name, known),
            )
        out[name] = known[name].checked(value)
    return out


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
