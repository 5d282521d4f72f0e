"""Choose one of the cameras of a transport layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from sci_stream.errors import CameraError, ConfigError
from sci_stream.plugins import FoundCamera
from sci_stream_drivers.genicam.options import CameraSelector

T = TypeVar("T")


def selected(
    cameras: Sequence[tuple[FoundCamera, T]], selector: CameraSelector, hint: str
) -> tuple[FoundCamera, T]:
    """Return the one camera that matches, with what its transport layer knows of it; ``hint``: if
    none does.

    Raises `CameraError` if no camera matches; `ConfigError` if several match.
    """
    criteria = {
        key: value for key, value in selector.given.items() if key in CameraSelector.model_fields
    }
    matching = [
        pair
        for pair in cameras
        if all(getattr(pair[0], key) == value for key, value in criteria.items())
    ]
    if len(matching) > 1:
        matching = _each_once(matching)
    if len(matching) == 1:
        return matching[0]
    wanted = ", ".join(f"{key} {value!r}" for key, value in criteria.items())
    listed = "Found:" + "".join(f"\n  {_described(camera)}" for camera, _ in matching or cameras)
    if matching:
        raise ConfigError(
            f"{len(matching)} cameras "
            f"{f'match the selector {wanted}' if wanted else 'are found and none is selected'}",
            hint=f'{listed}\nName one: selector = {{ serial = "…" }}, by its id, or by its '
            "producer if it has one.",
        )
    if cameras:
        raise CameraError(
            f"No camera matches the selector {wanted}", hint=f"{listed}\nSelect one of these."
        )
    raise CameraError(
        "No camera is found", expected=f"one with {wanted}" if wanted else "one", hint=hint
    )


def _each_once(cameras: Sequence[tuple[FoundCamera, T]]) -> list[tuple[FoundCamera, T]]:
    """Return the cameras without those that their producer lists again, as some do for each network
    card; of equal ones, one that can be opened.
    """
    once: dict[str, tuple[FoundCamera, T]] = {}
    for camera, handle in cameras:
        key = repr(replace(camera, access="")) if camera.id else repr((camera, len(once)))
        if key not in once or (camera.access == "free" and once[key][0].access != "free"):
            once[key] = (camera, handle)
    return list(once.values())


def _described(camera: FoundCamera) -> str:
    name = f", named {camera.user_defined_name!r}" if camera.user_defined_name else ""
    access = "" if camera.access == "unknown" else f", {camera.access}"
    return (
        f"{camera.vendor} {camera.model}, serial {camera.serial!r}{name}, id {camera.id!r}{access}"
    )
