"""Settings from environment variables: ``SCI_STREAM_RIG__POLICY__MODE=record``."""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from sci_stream.config.fields import fields_of
from sci_stream.config.removed_keys import REMOVED
from sci_stream.config.rig import Rig
from sci_stream.errors import ConfigError, did_you_mean

PREFIX: Final = "SCI_STREAM_RIG__"


@dataclass(frozen=True, slots=True)
class Override:
    """One setting from the environment: variable, location of the key, value as read from TOML."""

    variable: str
    location: tuple[str, ...]
    value: object


def read_overrides(environment: Mapping[str, str]) -> list[Override]:
    """Return the settings among environment variables, sorted by name.

    Raises
    ------
    ConfigError
        If a variable with the prefix names no setting, or two variables set one key to different values.
    """
    found = [_read(name, environment[name]) for name in sorted(environment) if name.startswith(PREFIX)]
    first: dict[tuple[str, ...], Override] = {}
    for override in found:
        other = first.setdefault(override.location, override)
        if other.value != override.value:
            raise ConfigError(
                f"The environment variables {other.variable} and {override.variable} set the same key differently",
                hint="Unset one of them.",
            )
    return found


def _read(variable: str, text: str) -> Override:
    location = tuple(variable.removeprefix(PREFIX).lower().split("__"))
    if location[:2] == ("camera", "options") and len(location) > 2 and all(location):
        return Override(variable, location, parse_value(text))
    field = _field(location)
    if field is None:
        raise ConfigError(
            f"The environment variable {variable} names no setting of a rig",
            expected=f"{PREFIX}SECTION__KEY",
            hint=REMOVED.get(".".join(location)) or did_you_mean(variable, _all_variables()),
        )
    return Override(variable, location, _value(field, text))


def _field(location: tuple[str, ...]) -> FieldInfo | None:
    if len(location) != 2 or location == ("camera", "options"):
        return None
    return fields_of(Rig.model_fields.get(location[0])).get(location[1])


def _all_variables() -> list[str]:
    return [
        f"{PREFIX}{section}__{key}".upper() for section, field in Rig.model_fields.items() for key in fields_of(field)
    ]


def _value(field: FieldInfo, text: str) -> object:
    if get_origin(field.annotation) is tuple:
        value = parse_value(text)
        return value if isinstance(value, list) else [part.strip() for part in text.split(",") if part.strip()]
    if _is_text(field.annotation):
        return text
    return None if text == "" and field.default is None else parse_value(text)


def _is_text(annotation: object) -> bool:
    """Return whether a field of this type takes the text without parsing."""
    if get_origin(annotation) is Literal:
        return True
    if isinstance(annotation, type):
        return issubclass(annotation, str | Path | enum.Enum)
    return any(_is_text(part) for part in get_args(annotation))


def parse_value(text: str) -> object:
    """Parse a value as TOML; text that is not TOML is returned unchanged."""
    try:
        value: object = tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (tomllib.TOMLDecodeError, RecursionError):
        # The shell has removed the quotes of a string before it gets here.
        return text
    return value
