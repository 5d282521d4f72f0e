"""A mask modulator on another host: a server around it, and a client that satisfies `sci_stream.ports.MaskModulator`.

Makers' libraries are mostly for Windows: nothing here, and nothing that it imports, needs POSIX, torch or a camera. One
call at a time, each with one answer: a line of JSON, and the patterns behind it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

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

# Loading patterns over USB takes minutes.
_ANSWER_S = {"open": 60.0, "load": 600.0, "advance": 600.0, "hold": 600.0}
_SHORT_S = 10.0
_POLL_MS = 200
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the port, with its argument."""

    name: Literal["open", "load", "arm", "start", "stop", "hold", "advance", "counters", "close"]
    timing: MaskTiming | None = None
    pattern: Pattern | None = None
    steps: Annotated[int, Field(ge=-65536, le=65536)] = 0
    shape: Annotated[tuple[int, ...], Field(max_length=3)] = ()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result, or the kind of error, a key of `_ERRORS`, with its text."""

    error: str = ""
    text: str = ""
    capabilities: ModulatorCapabilities | None = None
    timing: MaskTiming | None = None
    counts: dict[str, int] | None = None


_CALL, _OUTCOME = TypeAdapter(_Call), TypeAdapter(_Outcome)
# All others are a `CameraError`. Invalid calls raise ValueError, too.
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
                socket.send(_OUTCOME.dump_json(_execute(modulator, socket.recv_multipart())))
    except KeyboardInterrupt:
        log.warning("stopped: the modulator is closed")
    finally:
        modulator.close()
        if curve is not None:
            curve.close()
        context.destroy(linger=0)


def _execute(modulator: MaskModulator, frames: list[bytes]) -> _Outcome:
    """Execute one call; whatever it raises is in the answer."""
    try:
        return _carry_out(modulator, _CALL.validate_json(frames[0]), frames[1:])
    except Exception as error:  # a driver may raise anything; the next call may work
        kind = next((word for word, types in _ERRORS.items() if isinstance(error, types)), "camera")
        if not isinstance(error, (SciStreamError, *_ERRORS.values())):
            log.exception("the modulator driver failed")
        return _Outcome(kind, str(error)[:2000] or type(error).__name__)


def _carry_out(modulator: MaskModulator, call: _Call, payload: list[bytes]) -> _Outcome:
    answer = _Outcome()
    match call.name:
        case "open":
            answer = _Outcome(capabilities=modulator.open())
        case "load":
            answer = _Outcome(text=modulator.load(_patterns(call.shape, payload)))
        case "arm":
            answer = _Outcome(timing=modulator.arm(call.timing or MaskTiming()))
        case "hold":
            modulator.hold(call.pattern)
        case "advance":
            modulator.advance(call.steps)
        case "counters":
            answer = _Outcome(counts=dict(modulator.counters()))
        case "start" | "stop" | "close":
            getattr(modulator, call.name)()
    return answer


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
            answer = self._ask(_Call("open"))
        except BaseException:
            self._disconnect()
            raise
        assert answer.capabilities is not None
        return answer.capabilities

    def load(self, patterns: Array) -> str:
        """Send patterns."""
        content = np.ascontiguousarray(patterns, np.uint8)
        return self._ask(_Call("load", shape=content.shape), content.tobytes()).text

    def arm(self, timing: MaskTiming) -> MaskTiming:
        """Set the timing."""
        armed = self._ask(_Call("arm", timing=timing)).timing
        assert armed is not None
        return armed

    def start(self) -> None:
        """Start the cycle."""
        self._ask(_Call("start"))

    def hold(self, pattern: Pattern | None) -> None:
        """Show one pattern."""
        self._ask(_Call("hold", pattern=pattern))

    def advance(self, patterns: int) -> None:
        """Shift the cycle."""
        self._ask(_Call("advance", steps=patterns))

    def counters(self) -> Mapping[str, int]:
        """Return the counts."""
        return self._ask(_Call("counters")).counts or {}

    def stop(self) -> None:
        """Stop the cycle; does not raise."""
        self._ask_quietly(_Call("stop"))

    def close(self) -> None:
        """Close it there, and disconnect; does not raise."""
        self._ask_quietly(_Call("close"))
        self._disconnect()

    def _ask(self, call: _Call, payload: bytes | None = None) -> _Outcome:
        if self._socket is None:
            raise RuntimeError("the modulator is not open: call open() first")
        limit_s = _ANSWER_S.get(call.name, _SHORT_S)
        try:
            self._socket.send_multipart([_CALL.dump_json(call), *([] if payload is None else [payload])])
            if not self._socket.poll(round(1000 * limit_s)):
                raise CameraError(
                    f"The modulator at {self._endpoint} does not answer",
                    expected=f"an answer to {call.name}() within {limit_s:g} s",
                    hint="Does `sci-stream modulate` run there, and do the keys fit ([security] modulator_key)?",
                )
            answer = _OUTCOME.validate_json(self._socket.recv())
        except (zmq.ZMQError, ValidationError) as error:
            raise CameraError(f"The connection to the modulator at {self._endpoint} failed", got=error) from error
        if answer.error:
            raise _ERRORS.get(answer.error, CameraError)(answer.text)
        return answer

    def _ask_quietly(self, call: _Call) -> None:
        if self._socket is not None:
            try:
                self._ask(call)
            except (SciStreamError, RuntimeError, ValueError) as error:
                log.warning("%s", error)

    def _disconnect(self) -> None:
        if self._context is not None:
            self._context.destroy(linger=0)
        self._context = self._socket = None
