"""Read a camera's node map: kind, access, value, range and unit of each feature."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from sci_stream.plugins import Feature, Value
from sci_stream_drivers.genicam.library import attribute, get, library

_KINDS = {
    "intfIInteger": "integer", "intfIBoolean": "boolean", "intfICommand": "command",
    "intfIFloat": "float",
    "intfIString": "string", "intfIRegister": "register", "intfICategory": "category",
    "intfIEnumeration": "enumeration",
}  # fmt: skip
_MAX_CHOICES = 12
# Nodes without a limit report the extremes of int64 or double, which would be misleading as a
# range.
_NO_LIMIT = 2**62


def kind_of(node: Any) -> str:
    """Return the kind of a feature: integer, float, boolean, enumeration, string, register,
    command, category.
    """
    number = node.node.principal_interface_type
    return _KINDS.get(library().genapi.EInterfaceType(number).name, "other")


def access_of(node: Any) -> str:
    """Return NI (not implemented), NA (not available now), WO, RO or RW."""
    return str(library().genapi.EAccessMode(node.get_access_mode()).name)


def is_settable(node_map: Any, name: str) -> bool:
    """Return whether there is a feature of this name that can be read and set now."""
    return bool(node_map.has_node(name)) and access_of(node_map.get_node(name)) == "RW"


def value_of(node: Any) -> Value | None:
    """Return the current value, None if it is not readable."""
    if "R" not in access_of(node) or kind_of(node) in ("command", "category", "other"):
        return None
    value = get(node.to_string) if kind_of(node) == "register" else attribute(node, "value")
    return value if isinstance(value, bool | int | float | str) else None


def choices_of(node: Any, *, available: bool = True) -> tuple[str, ...]:
    """Return the entries of an enumeration: those ``available`` now, or all."""
    if kind_of(node) != "enumeration":
        return ()
    shunned = ("NI", "NA") if available else ("NI",)
    entries = [entry for entry in node.entries if access_of(entry) not in shunned]
    return tuple(str(entry.symbolic) for entry in entries)


def _limits(node: Any) -> tuple[float | None, float | None, float | None]:
    kind = kind_of(node)
    if kind not in ("integer", "float"):
        return None, None, None
    low, high = (_finite(attribute(node, name)) for name in ("min", "max"))
    stepped = kind == "integer" or bool(get(node.has_inc, default=False))
    return low, high, attribute(node, "inc") if stepped else None


def _finite(limit: Any) -> Any:
    """Return a limit, None if it is only the limit of the type."""
    if isinstance(limit, int | float) and math.isfinite(limit) and abs(limit) < _NO_LIMIT:
        return limit
    return None


def range_text(node: Any) -> str:
    """Describe the valid values: ``16 to 1024 in steps of 8``, ``one of On, Off``; empty if
    unknown.
    """
    kind = kind_of(node)
    if kind == "boolean":
        return "true or false"
    if kind == "enumeration":
        choices = choices_of(node)
        return (
            "one of "
            + ", ".join(choices[:_MAX_CHOICES])
            + (", …" if len(choices) > _MAX_CHOICES else "")
        )
    low, high, step = _limits(node)
    unit = unit_of(node)
    if low is None and high is None:
        return {"integer": "an integer", "float": "a number", "string": "a string"}.get(kind, "")
    text = (
        f"at least {low:g}"
        if high is None
        else f"at most {high:g}"
        if low is None
        else f"{low:.10g} to {high:.10g}"
    )
    text += f" {unit}" if unit else ""
    return text + (f" in steps of {step:g}" if step not in (None, 1) else "")


def unit_of(node: Any) -> str:
    """Return the unit, empty without one."""
    return str(attribute(node, "unit", "") or "")


def features(node_map: Any) -> Iterator[Feature]:
    """Describe each feature of a node map, in the order of its categories.

    Yields
    ------
    Feature
        Every implemented feature, once.
    """
    seen = set[str]()
    yield from _in_category(node_map.get_node("Root"), "", seen)


def _in_category(category: Any, path: str, seen: set[str]) -> Iterator[Feature]:
    for node in category.features:
        name = str(node.node.name)
        if name in seen:
            continue
        seen.add(name)
        if kind_of(node) == "category":
            yield from _in_category(node, f"{path}/{name}".lstrip("/"), seen)
        elif access_of(node) != "NI":
            yield describe(node, path)


def describe(node: Any, category: str) -> Feature:
    """Describe one feature."""
    low, high, step = _limits(node)
    return Feature(
        name=str(node.node.name),
        kind=kind_of(node),
        access=access_of(node),
        value=value_of(node),
        minimum=low,
        maximum=high,
        step=step,
        unit=unit_of(node),
        choices=choices_of(node),
        category=category,
        visibility=str(library().genapi.EVisibility(node.node.visibility).name),
        about=" ".join(str(node.node.tooltip or node.node.description or "").split()),
    )
