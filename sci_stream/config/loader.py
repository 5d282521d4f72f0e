"""From a rig file, and the environment, to a `Rig`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from sci_stream.config.error_messages import Location, config_error, dotted
from sci_stream.config.overrides import Override, read_overrides
from sci_stream.config.rig import Rig
from sci_stream.errors import ConfigError

_MOST_BYTES: Final = 32 << 10
"""A rig travels, as text, in the message that starts a series; that message is bounded."""


def load_rig(path: str | Path, overrides: Mapping[str, str] | None = None) -> Rig:
    """Read a rig file.

    Parameters
    ----------
    path
        The file. Relative paths in it start at its folder.
    overrides
        Environment variables; those named ``SCI_STREAM_RIG__SECTION__KEY`` take precedence over the file, which
        `Rig.overridden` lists. None for this process' environment, ``{}`` for none.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not TOML, or says what cannot be: each thing in a line, with file, section and
        key, what was expected and what came.
    """
    source = Path(path)
    return parse_rig(_read(source), source=source.resolve(), overrides=overrides, name=str(path))


def parse_rig(
    text: str, *, source: Path | None = None, overrides: Mapping[str, str] | None = None, name: str = "the rig"
) -> Rig:
    """Read a rig from text, as `load_rig` does; without a ``source`` relative paths stay as they are.

    Raises
    ------
    ConfigError
        As `load_rig`.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{name} is not valid TOML", got=error, hint="Strings are quoted, and truth values are true and false."
        ) from None
    given = read_overrides(os.environ if overrides is None else overrides)
    for override in given:
        _put(table, override, name)
    by_location = {override.location: override.variable for override in given}

    def call(location: Location) -> str:
        variable = by_location.get(tuple(str(part) for part in location))
        in_file = f"{name}: {in_section(location)}" if location else name
        return in_file if variable is None else f"The environment variable {variable}"

    try:
        rig = Rig.model_validate(table, context={"folder": source.parent if source is not None else None})
    except ValidationError as error:
        raise config_error(error, Rig, name, call) from None
    return rig.remember(source, tuple(override.variable for override in given))


def in_section(location: Location) -> str:
    """Return a key as a reader of the file knows it: ``[policy] mode``."""
    return f"[{location[0]}] {dotted(location[1:])}".rstrip()


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path} is not a rig file", expected=f"at most {_MOST_BYTES} bytes of TOML")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"There is no rig file {path}", hint=f"To write a commented example: sci-stream config init {path}"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a rig file", expected="UTF-8 text", got=error.reason) from None
    except OSError as error:
        raise ConfigError(f"The rig file {path} cannot be read", got=error.strerror) from None


def _put(table: dict[str, Any], override: Override, name: str) -> None:
    """Put an override in its place, making tables on the way."""
    *way, key = override.location
    for depth, part in enumerate(way):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(
                f"{name}: {in_section(override.location[: depth + 1])} is wrong",
                expected=f"a table, since {override.variable} is set",
                got=type(table).__name__,
            )
    table[key] = override.value
