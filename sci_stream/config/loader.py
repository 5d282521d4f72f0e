"""Read a rig file, and the environment variables ``SCI_STREAM_RIG__SECTION__KEY`` that override it,
into a `Rig`.
"""

from __future__ import annotations

import enum
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from sci_stream.config.error_messages import Location, config_error, dotted
from sci_stream.config.fields import fields_of
from sci_stream.config.rig import Rig
from sci_stream.errors import ConfigError, did_you_mean
from sci_stream.file_guard import read_small

# The text of a rig is part of the message that starts a series, and the size of that message is
# limited.
_MAX_BYTES = 32 << 10

PREFIX = "SCI_STREAM_RIG__"
# Of drivers, which define their own keys.
_OPTIONS = (("camera", "options"), ("modulator", "options"))


@dataclass(frozen=True)
class Override:
    """One setting from the environment: variable, location of the key, value as read from TOML."""

    variable: str
    location: tuple[str, ...]
    value: object


def load_rig(
    path: str | Path, overrides: Mapping[str, str] | None = None, *, text_from: Path | None = None
) -> Rig:
    """Read a rig file.

    Parameters
    ----------
    path
        The file. Relative paths in it start at its folder.
    overrides
        Environment variables; those named ``SCI_STREAM_RIG__SECTION__KEY`` take precedence over the
        file and are listed by `Rig.overridden`. None for this process' environment, ``{}`` for
        none.
    text_from
        A copy of the file to read in its place.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not TOML, or contains invalid keys or values: one line for
        each, with file, section and key, expected and given value.
    """
    source = Path(path)
    text = _read_file(text_from or source)
    return parse_rig(text, source=source.resolve(), overrides=overrides, name=str(path))


def parse_rig(
    text: str,
    *,
    source: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    name: str = "the rig",
) -> Rig:
    """Read a rig from text, as `load_rig` does; without a ``source`` relative paths are not
    resolved.

    Raises `ConfigError` as `load_rig` does.
    """
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of an integer with thousands of digits
        raise ConfigError(
            f"{name} is not valid TOML",
            got=error,
            hint="Strings are quoted, and truth values are true and false.",
        ) from None
    variables = read_overrides(os.environ if overrides is None else overrides)
    for override in variables:
        _put(table, override, name)
    by_location = {override.location: override.variable for override in variables}

    def name_of(location: Location) -> str:
        variable = by_location.get(tuple(str(part) for part in location))
        in_file = f"{name}: {in_section(location)}" if location else name
        return in_file if variable is None else f"The environment variable {variable}"

    try:
        # Overrides are put into the table before validation, so that they are checked like the
        # file.
        rig = Rig.model_validate(
            table, context={"folder": source.parent if source is not None else None}
        )
    except ValidationError as error:
        raise config_error(error, Rig, name, name_of) from None
    return rig.set_origin(source, tuple(override.variable for override in variables))


def in_section(location: Location) -> str:
    """Return the name of a key with its table: ``[policy] mode``."""
    return f"[{location[0]}] {dotted(location[1:])}".rstrip()


def _read_file(path: Path) -> str:
    if not path.exists():
        raise ConfigError(
            f"There is no rig file {path}",
            hint=f"To write a commented example: sci-stream config init {path}",
        )
    try:
        # Editors of Windows begin a file with a mark of its encoding.
        text = read_small(path, "a rig file", _MAX_BYTES, error=ConfigError).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not a rig file", expected="UTF-8 text", got=error.reason
        ) from None
    if not text.strip("\0 \t\r\n"):
        raise ConfigError(
            f"{path} is empty",
            expected="a rig file",
            hint=f"To write a commented example: sci-stream config init --force {path}",
        )
    return text


def _put(table: dict[str, object], override: Override, name: str) -> None:
    """Set the value of an override, creating missing tables."""
    *way, key = override.location
    for depth, part in enumerate(way):
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(
                f"{name}: {in_section(override.location[: depth + 1])} is wrong",
                expected=f"a table, since {override.variable} is set",
                got=type(inner).__name__,
            )
        table = inner
    table[key] = override.value


def read_overrides(environment: Mapping[str, str]) -> list[Override]:
    """Return the settings among environment variables, sorted by name.

    Raises `ConfigError` if a variable with the prefix names no setting.
    """
    return [
        _override(name, environment[name])
        for name in sorted(environment)
        if name.startswith(PREFIX)
    ]


def _override(variable: str, text: str) -> Override:
    location = tuple(variable.removeprefix(PREFIX).lower().split("__"))
    if location[:2] in _OPTIONS and len(location) > 2 and all(location):
        return Override(variable, location, parse_value(text))
    field = _field(location)
    if field is None:
        raise ConfigError(
            f"The environment variable {variable} names no setting of a rig",
            expected=f"{PREFIX}SECTION__KEY",
            hint=did_you_mean(variable, _all_variables()),
        )
    return Override(variable, location, _value(field, text))


def _field(location: tuple[str, ...]) -> FieldInfo | None:
    if len(location) != 2 or location in _OPTIONS:
        return None
    return fields_of(Rig.model_fields.get(location[0])).get(location[1])


def _all_variables() -> list[str]:
    return [
        f"{PREFIX}{section}__{key}".upper()
        for section, field in Rig.model_fields.items()
        for key in fields_of(field)
    ]


def _value(field: FieldInfo, text: str) -> object:
    if get_origin(field.annotation) is tuple:
        value = parse_value(text)
        if isinstance(value, list):
            return value
        return [part.strip() for part in text.split(",") if part.strip()]
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
