"""A mask modulator on another host, where ``sci-stream modulate`` serves it.

Makers' libraries are mostly for Windows: nothing in `server`, and nothing that it imports, needs
POSIX, torch or a camera. One call at a time: the client's lease, name, argument as JSON and
perhaps patterns; one answer: kind of error, and the result as JSON.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
import zmq
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from sci_stream.config.fields import Endpoint, PublicKey, is_loopback, tcp_address
from sci_stream.errors import CameraError, InputError, SciStreamError
from sci_stream.plugins import Array, MaskTiming, ModulatorCapabilities, Pattern
from sci_stream.security.curve import client_config
from sci_stream.security.keys import read_key_pair
from sci_stream.transport.sockets import answering, connect, make_socket
from sci_stream_drivers.fields import DriverOptions, Rare

log = logging.getLogger(__name__)

_Argument = TypeVar("_Argument")
_Answer = TypeVar("_Answer")
_MAX_BYTES = 1 << 30


class Method(NamedTuple, Generic[_Argument, _Answer]):
    """A method of the port: argument and answer, and how long it may take.

    To load patterns over USB takes minutes.
    """

    name: str
    argument: TypeAdapter[_Argument]
    answer: TypeAdapter[_Answer]
    limit_s: float = 10.0


NOTHING: TypeAdapter[None] = TypeAdapter(None)
_TIMING = TypeAdapter(MaskTiming)
OPEN = Method("open", NOTHING, TypeAdapter(ModulatorCapabilities), 60.0)
LOAD = Method(
    "load", TypeAdapter(Annotated[tuple[int, ...], Field(max_length=3)]), TypeAdapter(str), 600.0
)
_ARM = Method("arm", _TIMING, _TIMING)
_HOLD = Method("hold", TypeAdapter[Pattern | None](Pattern | None), NOTHING, 600.0)
_ADVANCE = Method(
    "advance", TypeAdapter(Annotated[int, Field(ge=-65536, le=65536)]), NOTHING, 600.0
)
_COUNTERS = Method("counters", NOTHING, TypeAdapter(dict[str, int]))
KEEP = Method("keep", NOTHING, NOTHING)
"""Renews the lease of a client, and calls nothing."""
LEASED = b"leased"
"""Kind of error: another client has the modulator."""
LEASE_S = 10.0
"""A client that says nothing for so long has lost the modulator to the next one that opens it."""
_KEEP_EVERY_S = 2.0
_START = Method("start", NOTHING, NOTHING)
STOP = Method("stop", NOTHING, NOTHING)
CLOSE = Method("close", NOTHING, NOTHING)
METHODS: dict[str, Method[Any, Any]] = {
    m.name: m for m in (OPEN, LOAD, _ARM, _HOLD, _ADVANCE, _COUNTERS, _START, STOP, CLOSE, KEEP)
}
# Errors by the kind that an answer names. All others are a `CameraError`. Invalid calls raise
# ValueError, too.
ERRORS: dict[str, type[Exception]] = {
    "input": InputError,
    "value": ValueError,
    "order": RuntimeError,
}


def is_remote(endpoint: str) -> bool:
    """Return whether an address is beyond this machine."""
    address = tcp_address(endpoint)
    return address is not None and not is_loopback(address[0])


def modulator_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """Create a socket of either side."""
    return make_socket(
        context, kind, max_message_bytes=_MAX_BYTES, heartbeat_s=1.0, send_queue=4, receive_queue=4
    )


class RemoteOptions(DriverOptions):
    """Options of the driver."""

    address: Endpoint = Field(
        description="Address of `sci-stream modulate` on the modulator's host.",
        examples=["tcp://192.168.1.7:5704"],
    )
    public_key: PublicKey = Field(
        default="",
        description='Public key that `sci-stream keys show` prints on its host; "": no encryption.',
    )
    key: Rare[Path] = Field(
        default=Path("~/.config/sci-stream/key"), description="Secret key of this host."
    )
    unprotected_network: Rare[bool] = Field(
        default=False,
        description="Allow another host without encryption: any host may command the modulator.",
    )

    @model_validator(mode="after")
    def _beyond_this_machine_is_encrypted(self) -> Self:
        if is_remote(self.address) and not self.public_key and not self.unprotected_network:
            raise ValueError(
                "address is another machine: set public_key, or unprotected_network = true"
            )
        return self


class RemoteModulator:
    """The modulator that `sci-stream modulate` serves.

    It is leased from `open` to `close`: a second client is refused.

    Satisfies `sci_stream.ports.MaskModulator`.
    """

    Options: ClassVar[type[RemoteOptions]] = RemoteOptions

    def __init__(self, options: RemoteOptions) -> None:
        self._options = options
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._lease = f"{secrets.token_hex(8)} {socket.gethostname()}, process {os.getpid()}"
        self._closing = threading.Event()
        self._keeper: threading.Thread | None = None

    def open(self) -> ModulatorCapabilities:
        """Connect, and open it there; wait for the lease of a client that was killed."""
        if self._socket is None:
            self._context = zmq.Context()
            self._socket = self._connected(self._context)
        try:
            capabilities = self._opened(self._socket)
        except BaseException:
            self._disconnect()
            raise
        if self._keeper is None:
            self._closing.clear()
            self._keeper = threading.Thread(
                target=self._keep_lease, args=(self._context,), name="lease", daemon=True
            )
            self._keeper.start()
        return capabilities

    def _opened(self, socket: zmq.Socket[bytes]) -> ModulatorCapabilities:
        deadline_s = time.monotonic() + LEASE_S + 1.0
        while True:
            try:
                return self._ask(socket, OPEN, None)
            except _LeasedError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.5)

    def _connected(self, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
        made = modulator_socket(context, zmq.REQ)
        # After a call without an answer the next one may follow, and its late answer is discarded.
        made.setsockopt(zmq.REQ_RELAXED, 1)
        made.setsockopt(zmq.REQ_CORRELATE, 1)
        if self._options.public_key:
            keys = read_key_pair(self._options.key.expanduser())
            client_config(keys, self._options.public_key)(made)
        connect(made, answering(self._options.address))
        return made

    def _keep_lease(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Renew the lease while the rig asks nothing, as between two series."""
        with self._connected(context) as own:
            while not self._closing.wait(_KEEP_EVERY_S):
                try:
                    self._ask(own, KEEP, None, limit_s=_KEEP_EVERY_S)
                except (SciStreamError, RuntimeError, ValueError) as error:
                    log.info("the lease of the modulator is not renewed: %s", error)

    def load(self, patterns: Array) -> str:
        """Send patterns."""
        content = np.ascontiguousarray(patterns, np.uint8)
        return self._call(LOAD, content.shape, content.tobytes())

    def arm(self, timing: MaskTiming) -> MaskTiming:
        """Set the timing."""
        return self._call(_ARM, timing)

    def start(self) -> None:
        """Start the cycle."""
        self._call(_START, None)

    def hold(self, pattern: Pattern | None) -> None:
        """Show one pattern."""
        self._call(_HOLD, pattern)

    def advance(self, patterns: int) -> None:
        """Shift the cycle."""
        self._call(_ADVANCE, patterns)

    def counters(self) -> Mapping[str, int]:
        """Return the counts."""
        return self._call(_COUNTERS, None)

    def stop(self) -> None:
        """Stop the cycle; does not raise."""
        self._call_quietly(STOP)

    def close(self) -> None:
        """Close it there, and disconnect; does not raise."""
        self._call_quietly(CLOSE)
        self._disconnect()

    def _call(
        self, method: Method[_Argument, _Answer], argument: _Argument, *payload: bytes
    ) -> _Answer:
        if self._socket is None:
            raise RuntimeError("the modulator is not open: call open() first")
        return self._ask(self._socket, method, argument, *payload)

    def _ask(
        self,
        socket: zmq.Socket[bytes],
        method: Method[_Argument, _Answer],
        argument: _Argument,
        *payload: bytes,
        limit_s: float = 0.0,
    ) -> _Answer:
        limit_s = limit_s or method.limit_s
        content = method.argument.dump_json(argument)
        try:
            socket.send_multipart([self._lease.encode(), method.name.encode(), content, *payload])
            if not socket.poll(round(1000 * limit_s)):
                keys = ", and do the keys fit (public_key in its options)"
                raise CameraError(
                    f"The modulator at {self._options.address} does not answer",
                    expected=f"an answer to {method.name}() within {limit_s:g} s",
                    hint="Does `sci-stream modulate` run there"
                    f"{keys if self._options.public_key else ''}?",
                )
            error, answer = socket.recv_multipart()
            if error == LEASED:
                raise _LeasedError(
                    f"The modulator at {self._options.address} is used by another rig",
                    got=answer.decode(errors="replace"),
                    hint="Stop the other rig first.",
                )
            if error:
                raise ERRORS.get(error.decode(errors="replace"), CameraError)(
                    answer.decode(errors="replace")
                )
            return method.answer.validate_json(answer)
        except (zmq.ZMQError, ValidationError) as failure:
            where = self._options.address
            raise CameraError(
                f"The connection to the modulator at {where} failed", got=failure
            ) from failure

    def _call_quietly(self, method: Method[None, None]) -> None:
        if self._socket is not None:
            try:
                self._call(method, None)
            except (SciStreamError, RuntimeError, ValueError) as error:
                log.warning("%s", error)

    def _disconnect(self) -> None:
        self._closing.set()
        if self._keeper is not None:
            self._keeper.join()
        if self._context is not None:
            self._context.destroy(linger=0)
        self._context = self._socket = self._keeper = None


class _LeasedError(CameraError):
    """Another client has the modulator."""
