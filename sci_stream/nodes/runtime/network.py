"""The network side of a node: ZeroMQ context, encryption as configured by the rig, and the poll
loop.
"""

from __future__ import annotations

import select
import time
from typing import Literal

import zmq

from sci_stream.config import Rig
from sci_stream.nodes.runtime.process import StopRequest
from sci_stream.security.curve import (
    Context,
    CurveServer,
    Socket,
    SocketConfig,
    client_config,
    unencrypted,
)
from sci_stream.security.keys import read_key_pair
from sci_stream.transport.client_connection import ClientConnection
from sci_stream.transport.sockets import Wakeup
from sci_stream.wire.messages import Hello

# Bounds the delay of events that no socket announces: timeouts, and frames of the camera thread.
_POLL_MS = 20
# Nothing waits for a snapshot that is only recorded: several share a turn of the loop.
_UNHURRIED_MS = 100
# Time for the last messages to leave.
_LINGER_MS = 500


class NodeNetwork:
    """ZeroMQ context, encryption and poll loop of one node. Close it after the sockets.

    Raises `ConfigError` if the rig is encrypted and this host's key is missing or unusable.
    """

    def __init__(self, rig: Rig, stop: StopRequest) -> None:
        self._rig = rig
        self.context = Context()
        self.max_payload_bytes = rig.network.max_message_mib << 20
        security = rig.security
        self._curve = (
            CurveServer(self.context, read_key_pair(security.key), security.allowed)
            if rig.encrypted
            else None
        )
        self.wakeup = Wakeup()
        stop.call_on_stop(self.wakeup.wake)
        self._poller = zmq.Poller()
        self._poller.register(self.wakeup.fd, zmq.POLLIN)

    @property
    def serve(self) -> SocketConfig:
        """Configuration of a socket that nodes connect to."""
        return unencrypted if self._curve is None else self._curve.serve

    def connect(self, host: Literal["acquire", "sink"], hello: Hello) -> ClientConnection:
        """Connect to the acquire node or the sink."""
        network = self._rig.network
        return ClientConnection(
            self.context,
            network.dispatch if host == "acquire" else network.results,
            hello,
            heartbeat_s=network.heartbeat_s,
            max_payload_bytes=self.max_payload_bytes,
            configure=client_security(self._rig, host),
        )

    def watch(self, *sockets: Socket, receiving: bool = True) -> None:
        """Let `wait` return when one of the sockets has a message, or, unless ``receiving``, no
        longer.
        """
        for socket in sockets:
            self._poller.register(socket, zmq.POLLIN if receiving else 0)

    def wait(self, *, urgent: bool = True) -> float:
        """Wait for a message, a wake-up, or 20 ms, 100 ms unless ``urgent``; return the monotonic
        time, s.
        """
        self._poller.poll(_POLL_MS if urgent else _UNHURRIED_MS)
        self.wakeup.clear()
        return time.monotonic()

    def pause(self) -> float:
        """Wait for a wake-up, or 100 ms: messages wait as well; return the monotonic time, s."""
        waiting = select.poll()
        waiting.register(self.wakeup.fd, select.POLLIN)
        waiting.poll(_UNHURRIED_MS)
        self.wakeup.clear()
        return time.monotonic()

    def close(self) -> None:
        """Refuse further connections and free everything."""
        if self._curve is not None:
            self._curve.close()
        self.context.destroy(linger=_LINGER_MS)
        self.wakeup.close()


def client_security(rig: Rig, host: Literal["acquire", "sink"]) -> SocketConfig:
    """Return the configuration of a socket that connects to a node on another host."""
    if not rig.encrypted:
        return unencrypted
    return client_config(read_key_pair(rig.security.key), rig.security.key_of(host))
