"""Local sockets between the nodes of one host, in addition to the rig's TCP addresses.

A server node binds its TCP address and, if its supervisor provides a folder, a local socket in that folder; nodes of
the same supervisor connect there. Measured with 2 MiB snapshots: two thirds of the
processor time of loopback TCP, which is what limits a rig whose cores also reconstruct (docs/decisions/connections.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sci_stream.config.fields import LONGEST_IPC_PATH, is_loopback, tcp_address

FOLDER_VARIABLE = "SCI_STREAM_LOCAL_SOCKETS"
"""Set by a supervisor for its nodes: a folder accessible only to its user."""


def local_endpoint(endpoint: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the local socket equivalent to a TCP address, or None if there is none.

    It exists for addresses of this host, among nodes of one supervisor.
    """
    folder = environment.get(FOLDER_VARIABLE)
    address = tcp_address(endpoint)
    if not folder or address is None or not is_loopback(address[0]):
        return None
    path = Path(folder) / f"{address[1]}.sock"
    # An ended supervisor has deleted its folder: its last nodes still connect over TCP.
    usable = path.parent.is_dir() and len(os.fsencode(path)) <= LONGEST_IPC_PATH
    return f"ipc://{path}" if usable else None


def preferred_endpoint(endpoint: str) -> str:
    """Return where to connect to reach an endpoint."""
    return local_endpoint(endpoint) or endpoint
