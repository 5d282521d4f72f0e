"""``sci-stream modulate``: serve the mask modulator of this host to the camera's host; see
`remote`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Annotated

import numpy as np
import typer
import zmq

from sci_stream.cli.common import RigPath, start_logging
from sci_stream.config import Rig, load_rig
from sci_stream.errors import SciStreamError
from sci_stream.model import Array
from sci_stream.nodes.runtime.modulators import make_modulator
from sci_stream.ports import MaskModulator
from sci_stream.security.curve import CurveServer
from sci_stream.security.keys import read_key_pair
from sci_stream.transport.sockets import bind
from sci_stream_modulators.remote import ERRORS, LOAD, METHODS, NOTHING, is_remote, modulator_socket

log = logging.getLogger(__name__)

_POLL_MS = 200

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

    It is encrypted as ``[security]`` of the rig says: by default beyond this machine.

    Raises `ConfigError` without this host's key, `TransportError` if the address is in use.
    """
    mode, security = rig.security.encryption, rig.security
    encrypted = mode == "on" or (
        mode == "auto" and is_remote(endpoint) and not security.unprotected_network
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
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
                socket.send_multipart(_execute(modulator, socket.recv_multipart()))
    except KeyboardInterrupt:
        log.warning("stopped: the modulator is closed")
    finally:
        modulator.close()
        if curve is not None:
            curve.close()
        context.destroy(linger=0)


def _execute(modulator: MaskModulator, frames: list[bytes]) -> list[bytes]:
    """Execute one call; whatever it raises is in the answer: the kind of error, "" for none, and
    its text.
    """
    try:
        name, argument, *payload = frames
        method = METHODS[name.decode()]
        value = method.argument.validate_json(argument)
        arguments = (
            ()
            if method.argument is NOTHING
            else (_patterns(value, payload) if method is LOAD else value,)
        )
        return [b"", method.answer.dump_json(getattr(modulator, method.name)(*arguments))]
    except Exception as error:  # a driver may raise anything; the next call may work
        kind = next((word for word, types in ERRORS.items() if isinstance(error, types)), "camera")
        if not isinstance(error, (SciStreamError, *ERRORS.values())):
            log.exception("the modulator driver failed")
        return [kind.encode(), str(error).encode()[:2000] or type(error).__name__.encode()]


def _patterns(shape: tuple[int, ...], payload: list[bytes]) -> Array:
    size = math.prod(shape) if len(shape) == 3 and min(shape[1:]) > 0 <= shape[0] else -1
    if len(payload) != 1 or len(payload[0]) != size:
        raise ValueError(f"patterns of shape {shape} need as many bytes")
    return np.frombuffer(payload[0], np.uint8).reshape(shape)
