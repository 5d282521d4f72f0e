"""A mask modulator on another host: a server around it, and a client that satisfies `sci_stream.ports.MaskModulator`.

Makers' libraries are mostly for Windows: nothing here, and nothing that it imports, needs POSIX, torch or a camera. One
call at a time: name, argument as JSON and perhaps patterns; one answer: kind of error, and the result as JSON.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import numpy as np
import zmq
from pydantic import Field, TypeAdapter, ValidationError

from sci_stream.config import Rig
from sci_stream.config.fields import is_loopback, tcp_address
from sci_stream.errors import CameraError, ConfigError, InputError, SciStreamError
from sci_stream.model import Array
from sci_stream.modulation.timing import MaskTiming, ModulatorCapabilities
from sci_stream.ports import MaskModulator, Pattern
from sci_stream.security.curve import CurveServer, client_config
from sci_stream.security.keys import read_key_pair
from sci_stream.transport.sockets import bind, make_socket

log = logging.getLogger(__name__)

_Argument = TypeVar("_Argument")
_Answer = TypeVar("_Answer")
_POLL_MS = 200
_MAX_BYTES = 1 << 30


class _Method(NamedTuple, Generic[_Argument, _Answer]):
    """A method of the port: argument and answer, and how long it may take. To load patterns over USB takes minutes."""

    name: str
    argument: TypeAdapter[_Argument]
    answer: TypeAdapter[_Answer]
    limit_s: float = 10.0


_NOTHING: TypeAdapter[None] = TypeAdapter(None)
_TIMING = TypeAdapter(MaskTiming)
_OPEN = _Method("open", _NOTHING, TypeAdapter(ModulatorCapabilities), 60.0)
_LOAD = _Method("load", TypeAdapter(Annotated[tuple[int, ...], Field(max_length=3)]), TypeAdapter(str), 600.0)
_ARM = _Method("arm", _TIMING, _TIMING)
_HOLD = _Method("hold", TypeAdapter[Pattern | None](Pattern | None), _NOTHING, 600.0)
_ADVANCE = _Method("advance", TypeAdapter(Annotated[int, Field(ge=-65536, le=65536)]), _NOTHING, 600.0)
_COUNTERS = _Method("counters", _NOTHING, TypeAdapter(dict[str, int]))
_START, _STOP, _CLOSE = (_Method(name, _NOTHING, _NOTHING) for name in ("start", "stop", "close"))
_METHODS: dict[str, _Method[Any, Any]] = {
    m.name: m for m in (_OPEN, _LOAD, _ARM, _HOLD, _ADVANCE, _COUNTERS, _START, _STOP, _CLOSE)
}
# Errors by the kind that an answer names. All others are a `CameraError`. Invalid calls raise ValueError, too.
_ERRORS: dict[str, type[Exception]] = {"input": InputError, "value": ValueError, "order": RuntimeError}


def _encrypted(rig: Rig, endpoint: str) -> bool:
    address = tcp_address(endpoint)
    beyond = address is not None and not is_loopback(address[0])
    mode = rig.security.encryption
    return mode == "on" or (mode == "auto" and beyond and not rig.security.unprotected_network)


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    return make_socket(context, kind, max_message_bytes=_MAX_BYTES, heartbeat_s=1.0, send_queue=4, receive_queue=4)


def serve_modulator(
    rig: Rig, modulator: MaskModulator, endpoint: str, *, until: Callable[[], bool] = lambda: False
) -> None:
    """Serve a modulator until Ctrl-C or ``until`` says so, encrypted beyond this machine; then close it.

    Raises `ConfigError` without an address or this host's key, `TransportError` if the address is in use.
    """
    if not endpoint:
        raise ConfigError("There is no address to listen on", expected="[modulator] address, or --listen")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    curve = None
    try:
        socket = _socket(context, zmq.REP)
        if _encrypted(rig, endpoint):
            curve = CurveServer(context, read_key_pair(rig.security.key), rig.security.allowed)
            curve.serve(socket)
        bind(socket, endpoint, "modulator")
        log.warning("serving the modulator at %s%s", endpoint, "" if curve is None else ", encrypted")
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
    """Execute one call; whatever it raises is in the answer: the kind of error, "" for none, and its text."""
    try:
        name, argument, *payload = frames
        method = _METHODS[name.decode()]
        value = method.argument.validate_json(argument)
        arguments = () if method.argument is _NOTHING else (_patterns(value, payload) if method is _LOAD else value,)
        return [b"", method.answer.dump_json(getattr(modulator, method.name)(*arguments))]
    except Exception as error:  # a driver may raise anything; the next call may work
        kind = next((word for word, types in _ERRORS.items() if isinstance(error, types)), "camera")
        if not isinstance(error, (SciStreamError, *_ERRORS.values())):
            log.exception("the modulator driver failed")
        return [kind.encode(), str(error).encode()[:2000] or type(error).__name__.encode()]


def _patterns(shape: tuple[int, ...], payload: list[bytes]) -> Array:
    size = math.prod(shape) if len(shape) == 3 and min(shape[1:]) > 0 <= shape[0] else -1
    if len(payload) != 1 or len(payload[0]) != size:
        raise ValueError(f"patterns of shape {shape} need as many bytes")
    return np.frombuffer(payload[0], np.uint8).reshape(shape)


class RemoteModulator:
    """The modulator that `serve_modulator` serves at the rig's address. Satisfies `sci_stream.ports.MaskModulator`."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._endpoint = rig.modulator.address
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None

    def open(self) -> ModulatorCapabilities:
        """Connect, and open it there."""
        if self._socket is None:
            self._context = zmq.Context()
            self._socket = _socket(self._context, zmq.REQ)
            # After a call without an answer the next one may follow, and its late answer is discarded.
            self._socket.setsockopt(zmq.REQ_RELAXED, 1)
            self._socket.setsockopt(zmq.REQ_CORRELATE, 1)
            if _encrypted(self._rig, self._endpoint):
                security = self._rig.security
                client_config(read_key_pair(security.key), security.modulator_key)(self._socket)
            self._socket.connect(self._endpoint)
        try:
            return self._ask(_OPEN, None)
        except BaseException:
            self._disconnect()
            raise

    def load(self, patterns: Array) -> str:
        """Send patterns."""
        content = np.ascontiguousarray(patterns, np.uint8)
        return self._ask(_LOAD, content.shape, content.tobytes())

    def arm(self, timing: MaskTiming) -> MaskTiming:
        """Set the timing."""
        return self._ask(_ARM, timing)

    def start(self) -> None:
        """Start the cycle."""
        self._ask(_START, None)

    def hold(self, pattern: Pattern | None) -> None:
        """Show one pattern."""
        self._ask(_HOLD, pattern)

    def advance(self, patterns: int) -> None:
        """Shift the cycle."""
        self._ask(_ADVANCE, patterns)

    def counters(self) -> Mapping[str, int]:
        """Return the counts."""
        return self._ask(_COUNTERS, None)

    def stop(self) -> None:
        """Stop the cycle; does not raise."""
        self._ask_quietly(_STOP)

    def close(self) -> None:
        """Close it there, and disconnect; does not raise."""
        self._ask_quietly(_CLOSE)
        self._disconnect()

    def _ask(self, method: _Method[_Argument, _Answer], argument: _Argument, *payload: bytes) -> _Answer:
        if self._socket is None:
            raise RuntimeError("the modulator is not open: call open() first")
        try:
            self._socket.send_multipart([method.name.encode(), method.argument.dump_json(argument), *payload])
            if not self._socket.poll(round(1000 * method.limit_s)):
                raise CameraError(
                    f"The modulator at {self._endpoint} does not answer",
                    expected=f"an answer to {method.name}() within {method.limit_s:g} s",
                    hint="Does `sci-stream modulate` run there, and do the keys fit ([security] modulator_key)?",
                )
            error, answer = self._socket.recv_multipart()
            if error:
                raise _ERRORS.get(error.decode(errors="replace"), CameraError)(answer.decode(errors="replace"))
            return method.answer.validate_json(answer)
        except (zmq.ZMQError, ValidationError) as failure:
            raise CameraError(f"The connection to the modulator at {self._endpoint} failed", got=failure) from failure

    def _ask_quietly(self, method: _Method[None, None]) -> None:
        if self._socket is not None:
            try:
                self._ask(method, None)
            except (SciStreamError, RuntimeError, ValueError) as error:
                log.warning("%s", error)

    def _disconnect(self) -> None:
        if self._context is not None:
            self._context.destroy(linger=0)
        self._context = self._socket = None
