"""``sci-stream modulate``: serve the mask modulator of this host to the camera's host; see
`remote`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import typer
import zmq

from sci_stream.cli.common import RigPath, start_logging
from sci_stream.config import Rig, load_rig
from sci_stream.devices.modulators import make_modulator
from sci_stream.errors import ConfigError, SciStreamError
from sci_stream.plugins import Array, MaskModulator
from sci_stream.security.curve import CurveServer
from sci_stream.security.keys import read_key_pair
from sci_stream.transport.sockets import bind
from sci_stream_modulators.remote import (
    CLOSE,
    ERRORS,
    KEEP,
    LEASE_S,
    LEASED,
    LOAD,
    METHODS,
    NOTHING,
    OPEN,
    STOP,
    Method,
    is_remote,
    modulator_socket,
)

log = logging.getLogger(__name__)

_POLL_MS = 200
_MAX_LEASE = 200

modulate_app = typer.Typer(add_completion=False)


@modulate_app.command()
def modulate(
    rig: RigPath,
    listen: Annotated[str, typer.Option(help="Address to listen on.")] = "tcp://0.0.0.0:5704",
) -> None:
    """Serve the mask modulator of this host to the acquire node on another one. Ctrl-C ends it."""
    start_logging("modulate")
    loaded = load_rig(rig)
    serve_modulator(loaded, make_modulator(loaded), listen)


def serve_modulator(
    rig: Rig, modulator: MaskModulator, endpoint: str, *, until: Callable[[], bool] = lambda: False
) -> None:
    """Serve a modulator until Ctrl-C or ``until`` says so, then close it.

    It is encrypted as ``[security]`` of the rig says: by default beyond this machine. One client at
    a time has the modulator.

    Raises `ConfigError` without this host's key, or beyond this machine without encryption and
    ``unprotected_network``; `TransportError` if the address is in use.
    """
    mode, security = rig.security.encryption, rig.security
    encrypted = mode == "on" or (
        mode == "auto" and is_remote(endpoint) and not security.unprotected_network
    )
    if is_remote(endpoint) and not encrypted and not security.unprotected_network:
        raise ConfigError(
            "The modulator would be served to other machines without encryption",
            expected='[security] encryption = "on", or unprotected_network = true',
            got=endpoint,
            hint="Otherwise any host could command it.",
        )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    served = _Served(modulator)
    curve = None
    try:
        socket = modulator_socket(context, zmq.REP)
        if encrypted:
            curve = CurveServer(context, read_key_pair(security.key), security.allowed)
            curve.serve(socket)
        bind(socket, endpoint, "modulator")
        log.warning("serving the modulator at %s%s", endpoint, ", encrypted" if encrypted else "")
        while not until():
            # With a timeout: on Windows nothing else lets Ctrl-C through.
            if socket.poll(_POLL_MS):
                socket.send_multipart(served.execute(socket.recv_multipart()))
    except KeyboardInterrupt:
        log.warning("stopped: the modulator is closed")
    finally:
        modulator.close()
        if curve is not None:
            curve.close()
        context.destroy(linger=0)


class _Served:
    """The modulator, and the lease of the client that has it: from `open` to `close`, or until it
    says nothing for `LEASE_S`.
    """

    def __init__(self, modulator: MaskModulator) -> None:
        self._modulator = modulator
        self._holder = ""
        self._until_s = 0.0

    def execute(self, frames: list[bytes]) -> list[bytes]:
        """Execute one call; whatever it raises is in the answer: the kind of error, "" for none,
        and its text.
        """
        try:
            lease, name, argument, *payload = frames
            method = METHODS[name.decode()]
            value = method.argument.validate_json(argument)
            return self._called(lease[:_MAX_LEASE].decode(), method, value, payload)
        except (Exception, SystemExit) as error:  # a driver may raise anything
            kind = next((word for word, types in ERRORS.items() if isinstance(error, types)), None)
            if not isinstance(error, (SciStreamError, *ERRORS.values())):
                log.exception("the modulator driver failed")
            text = str(error)[:2000] or type(error).__name__
            return [(kind or "camera").encode(), text.encode()]

    def _called(
        self, lease: str, method: Method[Any, Any], value: Any, payload: list[bytes]
    ) -> list[bytes]:
        if lease != self._holder:
            if self._holder and time.monotonic() < self._until_s:
                return [LEASED, self._holder.partition(" ")[2].encode()]
            if method in (STOP, CLOSE):
                return [b"", b"null"]  # of a client that had it before
            if method is not OPEN:
                raise RuntimeError("the modulator is not open: call open() first")
            self._holder = lease
        try:
            return [b"", self._answer(method, value, payload)]
        except BaseException:
            if method is OPEN:
                self._holder = ""
            raise
        finally:
            self._until_s = time.monotonic() + LEASE_S  # from the end of a call, which may be long

    def _answer(self, method: Method[Any, Any], value: Any, payload: list[bytes]) -> bytes:
        if method is KEEP:
            return b"null"
        if method is LOAD:
            value = _patterns(value, payload)
        if method is CLOSE:
            self._holder = ""
        call = getattr(self._modulator, method.name)
        answer = call() if method.argument is NOTHING else call(value)
        return method.answer.dump_json(answer)


def _patterns(shape: tuple[int, ...], payload: list[bytes]) -> Array:
    size = math.prod(shape) if len(shape) == 3 and min(shape[1:]) > 0 <= shape[0] else -1
    if len(payload) != 1 or len(payload[0]) != size:
        raise ValueError(f"patterns of shape {shape} need as many bytes")
    return np.frombuffer(payload[0], np.uint8).reshape(shape)
