"""Settings from the environment: ``SCI_STREAM_RIG__POLICY__MODE=record``."""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from sci_stream.config.error_messages import did_you_mean
from sci_stream.config.rig import Rig
from sci_stream.errors import ConfigError

PREFIX: Final = "SCI_STREAM_RIG__"


@dataclass(frozen=True, slots=True)
class Override:
    """One setting from the environment: the variable, the key it stands for, the value as TOML would give it."""

    variable: str
    location: tuple[str, ...]
    value: Any


def read_overrides(environment: Mapping[str, str]) -> list[Override]:
    """Return the settings among environment variables, by name in order.

    Raises
    ------
    ConfigError
        If a variable of the prefix names no setting.
    """
    return [_read(name, environment[name]) for name in sorted(environment) if name.startswith(PREFIX)]


def _read(variable: str, text: str) -> Override:
    location = tuple(variable.removeprefix(PREFIX).lower().split("__"))
    if location[:2] == ("camera", "options") and len(location) > 2 and all(location):
        return Override(variable, location, _parsed(text))
    field = _field(location)
    if field is None:
        raise ConfigError(
            f"The environment variable {variable} names no setting of a rig",
            expected=f"{PREFIX}SECTION__KEY",
            hint=did_you_mean(variable, _all_variables()),
        )
    return Override(variable, location, _value(field, text))


def _field(location: tuple[str, ...]) -> FieldInfo | None:
    if len(location) != 2 or location == ("camera", "options"):
        return None
    section = Rig.model_fields.get(location[0])
    # Every field of a rig is a section, made by its default factory's class.
    return None if section is None else getattr(section.annotation, "model_fields", {}).get(location[1])


def _all_variables() -> list[str]:
    return [
        f"{PREFIX}{section}__{key}".upper()
        for section, field in Rig.model_fields.items()
        for key in getattr(field.annotation, "model_fields", {})
    ]


def _value(field: FieldInfo, text: str) -> Any:
    if get_origin(field.annotation) is tuple:
        value = _parsed(text)
        return value if isinstance(value, list) else [part.strip() for part in text.split(",") if part.strip()]
    if _is_text(field.annotation):
        return text
    return None if text == "" and field.default is None else _parsed(text)


def _is_text(annotation: Any) -> bool:
    """Return whether a field of this type takes the text as it stands."""
    if get_origin(annotation) is Literal:
        return True
    if isinstance(annotation, type):
        return issubclass(annotation, str | Path | enum.Enum)
    return any(_is_text(part) for part in get_args(annotation))


def _parsed(text: str) -> Any:
    """Return what TOML makes of a value. Text that is none stands for itself: a shell has taken its quotes already."""
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except tomllib.TOMLDecodeError:
        return text
