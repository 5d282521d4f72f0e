"""A commented example of a rig file, generated from the descriptions of the fields."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sci_stream.config.fields import has_mark, model_of
from sci_stream.config.rig import Rig
from sci_stream.config.toml_text import key_text, value_text

_WIDTH = 120

_PREAMBLE = """\
# A rig: one SCI camera with its reconstruct nodes and outputs.
#
#   sci-stream check THIS_FILE    test every component that it needs
#   sci-stream run THIS_FILE      all nodes on this machine
#
# Every key is shown with its default; a key behind a # is unset. Relative paths start at this
# file's folder.
# The environment takes precedence: SCI_STREAM_RIG__POLICY__MODE=record sets mode = "record" in
# [policy].
"""
_REST = (
    "# Keys that are rarely needed are left out: sci-stream config init --all writes them too.\n"
)


def example_toml(
    driver: str = "simulated",
    options: type[BaseModel] | None = None,
    *,
    every_key: bool = False,
    values: Mapping[str, object] | None = None,
    examples: Mapping[str, object] | None = None,
    tables: Mapping[str, Mapping[str, object]] | None = None,
) -> str:
    """Return a rig file with its keys, their descriptions and their defaults.

    Parameters
    ----------
    driver
        Name of the camera driver.
    options
        Model of the driver's options, to list them too; None to leave them out.
    every_key
        Also list the keys that are rarely needed.
    values, examples
        Values of driver options in place of their defaults, and examples in place of those of unset
        options.
    tables
        Values of keys in place of their defaults, by section.
    """
    text = _PREAMBLE if every_key else _PREAMBLE + _REST
    for name, field in Rig.model_fields.items():
        section = model_of(field)
        assert section is not None  # every field of `Rig` is a table
        text += "\n" + _comment(inspect.getdoc(section) or "") + f"[{name}]\n"
        if name == "camera":
            fields = {
                key: field for key, field in _listed(section, every_key).items() if key != "options"
            }
            text += _entries(fields, {"driver": driver})
            text += f"\n# Options of the {driver} camera.\n[camera.options]\n"
            if options is not None:
                text += _options_text(
                    "camera.options", options, every_key, values or {}, examples or {}
                )
        else:
            text += _entries(_listed(section, every_key), (tables or {}).get(name, {}))
    return text


def _listed(model: type[BaseModel], every_key: bool) -> dict[str, FieldInfo]:
    return {
        key: field
        for key, field in model.model_fields.items()
        if every_key or not has_mark(field, "expert")
    }


def _options_text(
    name: str,
    options: type[BaseModel],
    every_key: bool,
    values: Mapping[str, object],
    examples: Mapping[str, object],
) -> str:
    """Return the entries of a driver's options, sub-tables last."""
    fields = _listed(options, every_key)
    tables = {
        key: field.annotation
        for key, field in fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    text = _entries(
        {key: field for key, field in fields.items() if key not in tables}, values, examples
    )
    for key, table in tables.items():
        comment = _comment(fields[key].description or "")
        inner = values.get(key)
        path = f"{name}.{key_text(key)}"
        chosen = inner if isinstance(inner, Mapping) else {}
        text += f"\n{comment}[{path}]\n" + _options_text(path, table, every_key, chosen, {})
    return text


def _entries(
    fields: Mapping[str, FieldInfo],
    values: Mapping[str, object],
    examples: Mapping[str, object] | None = None,
) -> str:
    """Return one line per key, its description behind it where it fits, else above it."""
    entries = {
        key: _entry(key, field, values.get(key), (examples or {}).get(key))
        for key, field in fields.items()
    }
    column = max((len(entry) for entry in entries.values() if len(entry) < _WIDTH // 3), default=0)
    text = ""
    for key, entry in entries.items():
        described = f"{entry:<{column}}  # {fields[key].description or ''}"
        text += (
            f"{described}\n"
            if len(described) <= _WIDTH
            else _comment(fields[key].description or "") + f"{entry}\n"
        )
    return text


def _entry(key: str, field: FieldInfo, chosen: object, example: object) -> str:
    if chosen is not None:
        return f"{key_text(key)} = {value_text(chosen)}"
    if field.is_required():
        return f'{key_text(key)} = ""  # must be set'
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is not None:
        return f"{key_text(key)} = {value_text(default)}"
    if example is None and field.examples:
        example = field.examples[0]
    return f"# {key_text(key)} = {'' if example is None else value_text(example)}".rstrip()


def _comment(text: str) -> str:
    lines = textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_on_hyphens=False,
    )
    return "".join(f"{line}\n" for line in lines)
