"""Select exactly one of the cameras found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sci_stream.errors import CameraError, ConfigError
from sci_stream_drivers.harvesters.library import attribute
from sci_stream_drivers.harvesters.options import Selector

# Keys of the selector, and their names in GenTL.
_ATTRIBUTES = {
    "serial": "serial_number",
    "user_defined_name": "user_defined_name",
    "model": "model",
    "vendor": "vendor",
    "id": "id_",
}
_ACCESS = {1: "free", 2: "read only", 3: "no access", 4: "in use", 5: "open", 6: "open, read only"}


def text_of(info: Any, key: str) -> str:
    """Return the text of a device's description for a key of the selector; empty if the producer has none."""
    return str(attribute(info, _ATTRIBUTES[key]) or "")


def access_of(info: Any) -> str:
    """Return the availability of a camera in a word."""
    return _ACCESS.get(attribute(info, "access_status", 0), "unknown")


def _producer_of(info: Any) -> str:
    """Return the file name of the producer that found a camera."""
    return Path(str(attribute(info.parent.parent, "path_name", "") or "an unnamed producer")).name


def describe(info: Any) -> str:
    """Return a line that identifies a camera."""
    name = text_of(info, "user_defined_name")
    parts = [
        f"{text_of(info, 'vendor')} {text_of(info, 'model')}".strip(),
        f"serial {text_of(info, 'serial')!r}",
        f"named {name!r}" if name else "",
        f"id {text_of(info, 'id')!r}",
        f"through {_producer_of(info)}",
        access_of(info),
    ]
    return ", ".join(part for part in parts if part)


def select(infos: Iterable[Any], selector: Selector, producers: Sequence[Path]) -> Any:
    """Return the description of the matching camera.

    Raises
    ------
    CameraError
        If none matches: it may be disconnected, and return later.
    ConfigError
        If several match.
    """
    found = list(infos)
    criteria = ", ".join(f"{key} {value!r}" for key, value in selector.given.items())
    if not found:
        raise CameraError(
            "No camera is found",
            expected=f"one with {criteria}" if criteria else "one",
            got=f"none from {', '.join(path.name for path in producers)}",
            hint="Check that it is connected, powered and reachable, and that the vendor's viewer finds it.",
        )
    fitting = [
        info
        for info in found
        if all(text_of(info, key) == value for key, value in selector.given.items() if key in _ATTRIBUTES)
    ]
    if len(fitting) == 1:
        return fitting[0]
    listed = "Found:" + "".join(f"\n  {describe(info)}" for info in fitting or found)
    if not fitting:
        raise CameraError(f"No camera matches the selector {criteria}", hint=f"{listed}\nSelect one of these.")
    fit = f"match the selector {criteria}" if criteria else "are found and none is selected"
    raise ConfigError(
        f"{len(fitting)} cameras {fit}",
        hint=f'{listed}\nName one: selector = {{ serial = "…" }}, by its id, or by its producer.',
    )
