"""Write values as TOML; the standard library only reads it.

Tables, and single values on one line, as error messages and ``--set`` need them; packages that
write TOML write documents only, with one line per entry of an array.
"""

from __future__ import annotations

import datetime
import enum
import json
import re
from collections.abc import Mapping
from pathlib import Path


def key_text(key: str) -> str:
    """Return a key, quoted if necessary."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else value_text(key)


def value_text(value: object) -> str:
    """Return a value as TOML.

    Raises TypeError if TOML has no such type.
    """
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_text(entry) for entry in value) + "]"
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{key_text(key)} = {value_text(entry)}" for key, entry in value.items())
            + "}"
        )
    return _scalar_text(value.value if isinstance(value, enum.Enum) else value)


def _scalar_text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() | Path():
            # The escapes of JSON are valid TOML; TOML also requires DEL to be escaped, which JSON
            # does not.
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case datetime.date() | datetime.time():  # a datetime is a date
            return value.isoformat()
    raise TypeError(f"TOML has no {type(value).__name__}")


def edited_text(text: str, table: str, values: Mapping[str, object]) -> str:
    """Return a TOML document with other values in one of its tables; comments stay.

    A key that is there, also as a comment, gets its value; others are added at the table's top.
    """
    header = re.compile(rf"^\[{re.escape(table)}\][^\n]*\n", re.MULTILINE)
    place = header.search(text)
    if place is None:
        return f"{text.rstrip()}\n\n{table_text(table, values)}"
    following = re.compile(r"^\[", re.MULTILINE).search(text, place.end())
    end = following.start() if following else len(text)
    body = text[place.end() : end]
    added = ""
    for key, value in values.items():
        line = re.compile(rf"^(?:# ?)?{re.escape(key)} *=[^#\n]*(#)?", re.MULTILINE)
        entry = f"{key_text(key)} = {value_text(value)}"
        if found := line.search(body):
            comment = "  #" if found[1] else ""
            body = body[: found.start()] + entry + comment + body[found.end() :]
        else:
            added += f"{entry}\n"
    return text[: place.end()] + added + body + text[end:]


def table_text(name: str, table: Mapping[str, object]) -> str:
    """Return a table and its sub-tables, ending in a line feed."""
    inner = {key: entry for key, entry in table.items() if isinstance(entry, Mapping)}
    lines = [
        f"{key_text(key)} = {value_text(entry)}" for key, entry in table.items() if key not in inner
    ]
    text = "\n".join([f"[{name}]", *lines]) + "\n"
    return text + "".join(
        "\n" + table_text(f"{name}.{key_text(key)}", entry) for key, entry in inner.items()
    )
