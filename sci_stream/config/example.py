"""A commented example of a rig file, generated from the descriptions of the fields."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sci_stream.config.fields import EXPERT_TABLE, is_expert, model_of
from sci_stream.config.rig import Rig
from sci_stream.config.toml_text import key_text, value_text

_WIDTH = 100

_PREAMBLE = """\
# A rig: one SCI camera with its reconstruct nodes and outputs.
#
#   sci-stream check THIS_FILE    test every component that it needs
#   sci-stream run THIS_FILE      all nodes on this machine
#
# Every key is shown with its default; a key behind a # is unset. Relative paths start at this file's folder.
# The environment takes precedence: SCI_STREAM_RIG__POLICY__MODE=record sets mode = "record" in [policy].
"""

_EXPERT_NOTE = (
    "Expert keys, rarely needed: their defaults are chosen for the device and the denoiser. To set one, uncomment it "
    "and the line of the table."
)


def example_toml(driver: str = "simulated", options: type[BaseModel] | None = None) -> str:
    """Return a rig file with every key, its description and its default.

    Parameters
    ----------
    driver
        Name of the camera driver.
    options
        Model of the driver's options, to list them too; None to leave them out.
    """
    text = _PREAMBLE
    for name, field in Rig.model_fields.items():
        section = model_of(field)
        assert section is not None  # every field of `Rig` is a table
        text += "\n" + "\n".join(_comment(inspect.getdoc(section) or "")) + f"\n[{name}]\n"
        changed = {"driver": driver} if name == "camera" else {}
        expert = {key for key, info in section.model_fields.items() if is_expert(info)}
        text += "".join(_entries(section, changed, without={"options"} if name == "camera" else expert))
        if expert:
            text += "\n" + "\n".join(_comment(_EXPERT_NOTE)) + f"\n# [{name}.{EXPERT_TABLE}]\n"
            text += "".join(_entries(section, {}, without=set(section.model_fields) - expert, unset=True))
        if name == "camera":
            text += f"\n# Options of the {driver} camera.\n[camera.options]\n"
            text += "" if options is None else _options_text("camera.options", options)
    return text


def _options_text(name: str, options: type[BaseModel]) -> str:
    """Return the entries of a driver's options, sub-tables last."""
    tables = {
        key: field.annotation
        for key, field in options.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    text = "".join(_entries(options, {}, without=set(tables)))
    for key, table in tables.items():
        comment = "\n".join(_comment(options.model_fields[key].description or ""))
        text += f"\n{comment}\n[{name}.{key_text(key)}]\n" + _options_text(f"{name}.{key_text(key)}", table)
    return text


def _entries(
    model: type[BaseModel], changed: dict[str, str], without: set[str], *, unset: bool = False
) -> Iterator[str]:
    for key, field in model.model_fields.items():
        if key not in without:
            entry = _entry(key, field, changed.get(key))
            entry = f"# {entry}" if unset and not entry.startswith("# ") else entry
            yield "\n".join([*_comment(field.description or ""), entry]) + "\n"


def _entry(key: str, field: FieldInfo, changed: str | None) -> str:
    if changed is not None:
        return f"{key_text(key)} = {value_text(changed)}"
    if field.is_required():
        return f'{key_text(key)} = ""  # must be set'
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is not None:
        return f"{key_text(key)} = {value_text(default)}"
    example = value_text(field.examples[0]) if field.examples else ""
    return f"# {key_text(key)} = {example}".rstrip()


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )
