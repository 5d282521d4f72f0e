"""Cameras as the interfaces that they are attached to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sci_stream.plugins import FoundCamera, FoundInterface


def interfaces(
    cameras: Sequence[tuple[FoundCamera, str]], transports: Mapping[str, str]
) -> tuple[FoundInterface, ...]:
    """Return cameras by their protocol, as interfaces; ``transports`` are the names of protocols in
    GenTL.
    """
    by_protocol: dict[str, list[FoundCamera]] = {}
    for camera, protocol in cameras:
        by_protocol.setdefault(protocol, []).append(camera)
    return tuple(
        FoundInterface(protocol, protocol, transports.get(protocol, protocol), tuple(found))
        for protocol, found in by_protocol.items()
    )
