"""List the cameras of a transport layer, and choose one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from sci_stream.errors import CameraError, ConfigError
from sci_stream.model import FoundCamera, FoundInterface
from sci_stream_drivers.genicam.options import CameraSelector

T = TypeVar("T")


def interfaces(cameras: Sequence[tuple[FoundCamera, str]], transports: Mapping[str, str]) -> tuple[FoundInterface, ...]:
    """Return cameras by their protocol, as interfaces; ``transports`` are the names of protocols in GenTL."""
    by_protocol: dict[str, list[FoundCamera]] = {}
    for camera, protocol in cameras:
        by_protocol.setdefault(protocol, []).append(camera)
    return tuple(
        FoundInterface(protocol, protocol, transports.get(protocol, protocol), tuple(found))
        for protocol, found in by_protocol.items()
    )


def selected(cameras: Sequence[tuple[FoundCamera, T]], selector: CameraSelector, hint: str) -> tuple[FoundCamera, T]:
    """Return the one camera that matches, with what its transport layer knows of it; ``hint``: if none does.

    Raises
    ------
    CameraError
        If no camera matches.
    ConfigError
        If several match.
    """
    criteria = selector.given
    matching = [pair for pair in cameras if all(getattr(pair[0], key) == value for key, value in criteria.items())]
    if len(matching) == 1:
        return matching[0]
    wanted = ", ".join(f"{key} {value!r}" for key, value in criteria.items()) or "any camera"
    listed = "; ".join(
        f"{camera.vendor} {camera.model}, serial {camera.serial!r}, id {camera.id!r}" for camera, _ in cameras
    )
    if matching:
        raise ConfigError(
            f"{len(matching)} cameras match the selector ({wanted})",
            hint=f'Found: {listed}. Name one: selector = {{ serial = "…" }}, or its id.',
        )
    raise CameraError(f"No camera matches the selector ({wanted})", got=listed or "no camera at all", hint=hint)
