"""Encryption of a node's connections, as configured by the rig."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import zmq

from sci_stream.config import Rig
from sci_stream.security.curve import CurveServer, SocketConfig, plain, present
from sci_stream.security.keys import read_key_pair

Host = Literal["acquire", "sink"]


@dataclass(frozen=True, slots=True)
class ConnectionSecurity:
    """Security of the sockets of one node; without encryption its functions do nothing."""

    serve: SocketConfig
    _rig: Rig
    _server: CurveServer | None

    def reach(self, host: Host) -> SocketConfig:
        """Return the configuration of a socket that connects to a node's host."""
        return plain if self._server is None else self._server.reach(self._rig.security.key_of(host))

    def close(self) -> None:
        """Refuse all further connections."""
        if self._server is not None:
            self._server.close()


def setup_security(rig: Rig, context: zmq.Context[zmq.Socket[bytes]]) -> ConnectionSecurity:
    """Set up the encryption of a rig; close it before the ZeroMQ context ends.

    Raises
    ------
    ConfigError
        If this host's key is missing or unusable.
    """
    if not rig.encrypted:
        return ConnectionSecurity(plain, rig, None)
    server = CurveServer(context, read_key_pair(rig.security.key), rig.security.allowed)
    return ConnectionSecurity(server.serve, rig, server)


def reach_taps(rig: Rig) -> SocketConfig:
    """Return the configuration of a socket that subscribes to the sink's taps."""
    return present(read_key_pair(rig.security.key), rig.security.key_of("sink")) if rig.encrypted else plain
