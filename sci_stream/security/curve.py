"""Encrypted connections between hosts: CURVE with a list of allowed keys (ZAP)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from sci_stream.delivery.rate_limit import KeyedRateLimiter, TokenBucket
from sci_stream.errors import ConfigError
from sci_stream.security.keys import KeyPair, read_allowed

log = logging.getLogger(__name__)

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]
SocketConfig = Callable[[Socket], None]
"""Configures a socket before it binds or connects."""

_DOMAIN = "sci-stream"
# A refused node retries every second; its log lines are limited to a burst of this many, then one
# per interval.
_QUIET_S = 10.0
_LINES_AT_ONCE = 10


def unencrypted(socket: Socket) -> None:
    """Leave a socket unencrypted."""


class AllowList:
    """The allowed keys: this host's own, whose nodes may always connect to each other, and those in
    a file, if any.

    The file may change at run time; its format is that of `sci_stream.security.keys.read_allowed`.
    """

    def __init__(self, keys: KeyPair, path: Path | None) -> None:
        self._own_key = keys.public
        self._path = path
        self._allowed: dict[bytes, str] = {}
        self._warnings = KeyedRateLimiter[bytes](1 / _QUIET_S, 1)
        self._lines = TokenBucket(1 / _QUIET_S, _LINES_AT_ONCE)
        self.refused = 0

    def callback(self, _domain: str, key: bytes) -> bool:
        """Return whether a client with this public key may connect; called from the authenticator's
        thread.
        """
        if key == self._own_key or key in self._current():
            return True
        self.refused += 1
        now_s = time.monotonic()
        if self._warnings.take(key, now_s) and self._lines.take(now_s):
            log.error(
                "Refused a node with the unknown key %s; to allow it: sci-stream keys allow '%s' "
                "NAME",
                key.decode("ascii", "replace"),
                key.decode("ascii", "replace"),
            )
        return False

    def _current(self) -> dict[bytes, str]:
        try:
            self._allowed = {} if self._path is None else read_allowed(self._path)
        except ConfigError as error:
            # The file may be half-written: keep the last valid list.
            if self._lines.take(time.monotonic()):
                log.error("%s", error)
        return self._allowed


class CurveServer:
    """The encrypted server sockets of one process; without a file ``allowed``, only this host's key
    is allowed.
    """

    def __init__(self, context: Context, keys: KeyPair, allowed: Path | None) -> None:
        if not zmq.has("curve"):
            raise ConfigError(
                "This ZeroMQ cannot encrypt",
                expected="libzmq with CURVE",
                hint="Install pyzmq from its wheel.",
            )
        from zmq.auth.thread import ThreadAuthenticator  # noqa: PLC0415 - it loads asyncio, which only encryption needs

        self._keys = keys
        self.allow_list = AllowList(keys, allowed)
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(
            domain=_DOMAIN, credentials_provider=self.allow_list
        )

    def close(self) -> None:
        """Refuse all further connections. Call before the context is terminated."""
        self._authenticator.stop()

    def serve(self, socket: Socket) -> None:
        """Configure a server socket, which accepts allowed keys only."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
        socket.setsockopt_string(zmq.ZAP_DOMAIN, _DOMAIN)


def client_config(keys: KeyPair, server_key: str) -> SocketConfig:
    """Return the configuration of a socket that connects with its own key, to the host with this
    public key only.
    """

    def configure(socket: Socket) -> None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)

    return configure
