"""Node maps of pylon with the interface of the package ``genicam``.

pylon does not give the description of a camera, from which ``genicam`` would make a node map. Both
packages wrap GenApi: numbers of types and access modes are equal, and names differ in spelling.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from sci_stream_drivers.genicam.library import get, library

# Members that are nodes, or tuples of them.
_NODES = ("node", "entries", "features", "selecting_features")


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise errors of pylon as those of ``genicam``."""
    from pypylon.genicam import GenericException  # noqa: PLC0415  # optional

    try:
        yield
    except GenericException as error:
        genapi = library().genapi
        raise getattr(genapi, type(error).__name__, genapi.RuntimeException)(str(error)) from None


class Node:
    """A node: ``node.is_selector()`` calls ``IsSelector()`` of pylon, ``node.value`` reads
    ``Value``.
    """

    def __init__(self, node: Any) -> None:
        self.__dict__["_node"] = node

    def __getattr__(self, name: str) -> Any:
        spelt = (
            "ToolTip"
            if name == "tooltip"
            else "".join(word.capitalize() for word in name.split("_"))
        )
        with translated():
            if name in _NODES:
                nodes = getattr(self._node, f"Get{spelt}")()
                return (
                    [Node(node) for node in nodes]
                    if isinstance(nodes, tuple | list)
                    else Node(nodes)
                )
            member = getattr(self._node, spelt)
        return translated()(member) if callable(member) else member

    def __setattr__(self, name: str, value: Any) -> None:
        with translated():
            setattr(self._node, name.capitalize(), value)


class NodeMap:
    """A node map, of a camera or of the chunk data of a frame."""

    def __init__(self, nodes: Any) -> None:
        self._nodes = nodes

    @property
    def nodes(self) -> list[Node]:
        """All nodes."""
        return [Node(node) for node in self._nodes.GetNodes()]

    def get_node(self, name: str) -> Node | None:
        """Return a node; None if there is none of this name."""
        node = get(lambda: translated()(self._nodes.GetNode)(name))
        return Node(node) if node is not None and node.IsValid() else None

    def has_node(self, name: str) -> bool:
        """Return whether there is a node of this name."""
        return self.get_node(name) is not None

    def _invalidate_nodes(self) -> None:
        translated()(self._nodes.InvalidateNodes)()
