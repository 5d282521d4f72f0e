"""Values as TOML text. The standard library reads TOML and does not write it."""

from __future__ import annotations

import datetime
import enum
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def key_text(key: str) -> str:
    """Return a key, quoted where it must be."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else value_text(key)


def value_text(value: Any) -> str:
    """Return a value as TOML.

    Raises
    ------
    TypeError
        If TOML has no such type.
    """
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_text(entry) for entry in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key_text(key)} = {value_text(entry)}" for key, entry in value.items()) + "}"
    return _scalar_text(value.value if isinstance(value, enum.Enum) else value)


def _scalar_text(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() | Path():
            # JSON's escapes are TOML's too; the one character that TOML wants escaped and JSON does not is DEL.
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case datetime.date() | datetime.time():  # a datetime is a date
            return value.isoformat()
    raise TypeError(f"TOML has no {type(value).__name__}")


def table_text(name: str, table: Mapping[str, Any]) -> str:
    """Return a table with the tables in it, ending in a line feed."""
    inner = {key: entry for key, entry in table.items() if isinstance(entry, Mapping)}
    lines = [f"{key_text(key)} = {value_text(entry)}" for key, entry in table.items() if key not in inner]
    text = "\n".join([f"[{name}]", *lines]) + "\n"
    return text + "".join("\n" + table_text(f"{name}.{key_text(key)}", entry) for key, entry in inner.items())
