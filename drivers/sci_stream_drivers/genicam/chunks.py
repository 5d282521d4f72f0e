"""Chunk data: values that a camera adds to its frames."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sci_stream.plugins import Value
from sci_stream_drivers.genicam.library import get, library
from sci_stream_drivers.genicam.node_map import kind_of, unit_of, value_of
from sci_stream_drivers.genicam.standard_features import TIMES, microseconds

log = logging.getLogger(__name__)

Chunks = dict[str, Value]

_NUMBERS = ("integer", "float", "boolean")


def chunk_units(node_map: Any, names: Sequence[str]) -> dict[str, str]:
    """Return the units of numeric chunk data by name; log the names of the others."""
    nodes = {
        name: node_map.get_node(f"Chunk{name}")
        for name in names
        if node_map.has_node(f"Chunk{name}")
    }
    for name in nodes.keys() ^ set(names):
        log.warning(
            "No feature Chunk%s: the chunk data %s of the camera cannot be read", name, name
        )
    texts = [name for name, node in nodes.items() if kind_of(node) not in _NUMBERS]
    if texts:
        log.warning("Chunk data that is not numeric is not recorded: %s", ", ".join(texts))
    return {
        name: "us" if name in TIMES else unit_of(node)
        for name, node in nodes.items()
        if name not in texts
    }


def in_standard_units(name: str, node: Any) -> Value | None:
    """Return the value of chunk data, times in µs, whatever the camera counts in."""
    value = value_of(node)
    return value * microseconds(node) if name in TIMES and isinstance(value, int | float) else value


class ChunkReader:
    """Read the chunk data of frames; nothing if there are no ``names``.

    Names are as in ``ChunkSelector``; the values are in the features ``Chunk`` + name.
    ``transport`` is the type of the transport layer in GenTL; ``counts`` counts ``chunk_errors``.
    """

    def __init__(
        self, node_map: Any, transport: str, names: Sequence[str], counts: Counter[str]
    ) -> None:
        genapi = library().genapi
        self._described = transport in ("GEV", "U3V")
        kinds = {"GEV": genapi.ChunkAdapterGEV, "U3V": genapi.ChunkAdapterU3V}
        self._adapter = (
            kinds.get(transport, genapi.ChunkAdapterGeneric)(node_map) if names else None
        )
        self._nodes = {
            name: node_map.get_node(f"Chunk{name}")
            for name in names
            if node_map.has_node(f"Chunk{name}")
        }
        self._counts = counts

    def read(self, raw: Any, size: int, layout: Callable[[], Any]) -> Chunks:
        """Return the values of a buffer with ``size`` bytes; a frame without them is counted as a
        chunk error.

        ``layout`` describes the chunks of transport layers whose frames do not describe themselves.
        """
        if self._adapter is None:
            return {}
        try:
            self._adapter.attach_buffer(raw, size if self._described else layout())
        except library().transport_errors:
            self._counts["chunk_errors"] += 1
            return {}
        values = {name: in_standard_units(name, node) for name, node in self._nodes.items()}
        return {name: value for name, value in values.items() if value is not None}

    def detach(self) -> None:
        """Release the last buffer."""
        if self._adapter is not None:
            get(self._adapter.detach_buffer)
