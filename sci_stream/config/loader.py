"""Read a rig file and the environment into a `Rig`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from sci_stream.config.error_messages import Location, config_error, dotted
from sci_stream.config.overrides import Override, read_overrides
from sci_stream.config.removed_keys import REMOVED
from sci_stream.config.rig import Rig
from sci_stream.errors import ConfigError
from sci_stream.file_guard import read_small

# The text of a rig is part of the message that starts a series, and the size of that message is limited.
_MAX_BYTES: Final = 32 << 10


def load_rig(path: str | Path, overrides: Mapping[str, str] | None = None) -> Rig:
    """Read a rig file.

    Parameters
    ----------
    path
        The file. Relative paths in it start at its folder.
    overrides
        Environment variables; those named ``SCI_STREAM_RIG__SECTION__KEY`` take precedence over the file and are
        listed by `Rig.overridden`. None for this process' environment, ``{}`` for none.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not TOML, or contains invalid keys or values: one line for each, with file,
        section and key, expected and given value.
    """
    source = Path(path)
    return parse_rig(_read(source), source=source.resolve(), overrides=overrides, name=str(path))


def parse_rig(
    text: str,
    *,
    source: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    name: str = "the rig",
    recorded: bool = False,
) -> Rig:
    """Read a rig from text, as `load_rig` does; without a ``source`` relative paths are not resolved.

    Keys of earlier versions are dropped from a ``recorded`` rig, and refused in others.

    Raises
    ------
    ConfigError
        As `load_rig`.
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{name} is not valid TOML", got=error, hint="Strings are quoted, and truth values are true and false."
        ) from None
    if recorded:
        _drop_removed_keys(table)
    given = read_overrides(os.environ if overrides is None else overrides)
    for override in given:
        _put(table, override, name)
    by_location = {override.location: override.variable for override in given}

    def name_of(location: Location) -> str:
        variable = by_location.get(tuple(str(part) for part in location))
        in_file = f"{name}: {in_section(location)}" if location else name
        return in_file if variable is None else f"The environment variable {variable}"

    try:
        # Overrides are put into the table before validation, so that they are checked like the file.
        rig = Rig.model_validate(table, context={"folder": source.parent if source is not None else None})
    except ValidationError as error:
        raise config_error(error, Rig, name, name_of) from None
    return rig.set_origin(source, tuple(override.variable for override in given))


def in_section(location: Location) -> str:
    """Return the name of a key with its table: ``[policy] mode``."""
    return f"[{location[0]}] {dotted(location[1:])}".rstrip()


def _drop_removed_keys(table: dict[str, object]) -> None:
    """Remove keys of earlier versions; those of the former ``[reconstruct.expert]`` are in ``[reconstruct]`` now."""
    for section, values in table.items():
        if isinstance(values, dict):
            expert = values.get("expert") if section == "reconstruct" else None
            merged = {**values, **expert} if isinstance(expert, dict) else values
            table[section] = {key: value for key, value in merged.items() if f"{section}.{key}" not in REMOVED}


def _read(path: Path) -> str:
    if not path.exists():
        raise ConfigError(
            f"There is no rig file {path}", hint=f"To write a commented example: sci-stream config init {path}"
        )
    try:
        return read_small(path, "a rig file", _MAX_BYTES, error=ConfigError).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a rig file", expected="UTF-8 text", got=error.reason) from None


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
