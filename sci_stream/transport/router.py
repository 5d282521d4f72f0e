"""Receiving at both ROUTER sockets: decode, count refusals and limit request rates."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sci_stream.delivery.rate_limit import KeyedRateLimiter, TokenBucket
from sci_stream.errors import SciStreamError, WireError
from sci_stream.optics.calibration import Calibration
from sci_stream.transport.client_connection import identity_of
from sci_stream.transport.remote_memory import UNREADABLE, read_incoming
from sci_stream.transport.sockets import ReceivedMessage
from sci_stream.wire import (
    CalibrationRequest,
    ControlResult,
    Goodbye,
    Heartbeat,
    Hello,
    Limits,
    Message,
    Ping,
    Refused,
)

MOST_PEERS = 256
"""Maximum number of nodes: four times the reconstruct nodes that a rig can have."""

# HELLO, heartbeat, ping and similar messages of one peer; with the shortest heartbeat it sends 40 per second.
_CONTROL_PER_S, _CONTROL_BURST = 100.0, 400
# Calibrations requested or sent by one peer: each may be as large as many snapshots.
_MASKS_PER_S, _MASKS_BURST = 1.0, 8
# New nodes, all together.
_JOINS_PER_S, _JOINS_BURST = 20.0, MOST_PEERS
_LINES_PER_S, _LINES_BURST = 1.0, 20
# A peer that sends nonsense must not have an answer sent for each message.
_ANSWERS_PER_S, _ANSWERS_BURST = 1.0, 5

Answer = Callable[[Message], object]
"""Reply to the sender of a message."""

_CONTROL_MESSAGES = (Hello, Heartbeat, Ping, Goodbye, ControlResult)


class RouterReceiver:
    """Receive messages for a ROUTER that nodes connect to.

    Credit, the sender's queue and the camera limit snapshots, results and their acknowledgements. All other messages
    are rate-limited here: requests over the limit are dropped and counted under ``rate``.

    Parameters
    ----------
    what
        Name of the served address, for the log.
    """

    def __init__(self, what: str, limits: Limits, log: logging.Logger) -> None:
        self._what = what
        self._limits = limits
        self._log = log
        self._control_rate: KeyedRateLimiter[bytes] = KeyedRateLimiter(_CONTROL_PER_S, _CONTROL_BURST)
        self._masks: KeyedRateLimiter[bytes] = KeyedRateLimiter(_MASKS_PER_S, _MASKS_BURST)
        self._answers: KeyedRateLimiter[bytes] = KeyedRateLimiter(_ANSWERS_PER_S, _ANSWERS_BURST)
        self._joins = TokenBucket(_JOINS_PER_S, _JOINS_BURST)
        self._lines = TokenBucket(_LINES_PER_S, _LINES_BURST)
        self._handshakes = TokenBucket(0.1, 1)
        self._suppressed = 0
        self.wire_errors: Counter[str] = Counter()

    def read(self, identity: bytes, incoming: ReceivedMessage, now_s: float, answer: Answer) -> Message | None:
        """Decode a received message; None if it is refused, which is counted, or over the rate limit."""
        try:
            message = read_incoming(incoming, incoming.frames[1:], self._limits)
        except WireError as error:
            self.wire_errors[error.reason] += 1
            self._warn(f"message to the {self._what} address refused: {error}", now_s)
            if error.reason in {"version", UNREADABLE} and self._answers.take(identity, now_s):
                answer(Refused(reason=error.reason, text=str(error)))
            return None
        masks = isinstance(message, Calibration | CalibrationRequest) and not self._masks.take(identity, now_s)
        if masks or (isinstance(message, _CONTROL_MESSAGES) and not self._control_rate.take(identity, now_s)):
            self.wire_errors["rate"] += 1
            self._warn(f"rate limit exceeded at {self._what}: {type(message).__name__} from {_name(identity)}", now_s)
            return None
        return message

    @contextmanager
    def guard(self, identity: bytes, now_s: float) -> Iterator[None]:
        """Keep a failure on one message from ending the node: it is counted under ``failed`` and logged.

        Errors of this project pass: a full disk, for instance, is no fault of the message.
        """
        try:
            yield
        except SciStreamError:
            raise
        except Exception:  # whatever a message provokes: the next one may be good
            self.wire_errors["failed"] += 1
            if self._lines.take(now_s):
                self._log.exception("message from %s to the %s address failed: skipped", _name(identity), self._what)

    def refuse(self, identity: bytes, reason: str, text: str, now_s: float) -> None:
        """Count and log a message that is valid but impossible here."""
        self.wire_errors[reason] += 1
        self._warn(f"message from {_name(identity)} to the {self._what} address refused: {text}", now_s)

    def accept_hello(
        self,
        identity: bytes,
        hello: Hello,
        now_s: float,
        *,
        known: bool,
        peers: int,
        answer: Callable[[Message], object],
    ) -> bool:
        """Return whether a HELLO is accepted; count it if not."""
        if identity != identity_of(hello):
            # From a connection that a newer one of the same node has replaced, or from an unknown sender.
            self.wire_errors["identity"] += 1
            return False
        if known:
            return True
        if peers >= MOST_PEERS or not self._joins.take(now_s):
            self.wire_errors["rate"] += 1
            self._warn(f"{hello.node} refused: {peers} nodes are connected, or too many joined at once", now_s)
            if self._answers.take(identity, now_s):
                answer(Refused(reason="too_many", text=f"{peers} nodes are connected; try again later"))
            return False
        return True

    def refused_connections(self, refused: int, now_s: float) -> None:
        """Count connections refused in their handshake."""
        if refused:
            self.wire_errors["handshake"] += refused
            if self._handshakes.take(now_s):
                self._log.warning(
                    "%d connections to the %s address refused in the handshake: the other side expects another "
                    "key here, has no allowed key, does not encrypt, or is not a node",
                    self.wire_errors["handshake"],
                    self._what,
                )

    def closed(self, connections: int, now_s: float) -> None:
        """Count connections closed because there were too many, or because they said nothing."""
        if connections:
            self.wire_errors["connections"] += connections
            self._warn(
                f"{connections} connections to the {self._what} address closed: too many, or no message in time", now_s
            )

    def _warn(self, text: str, now_s: float) -> None:
        """Log a message unless the log's rate limit is exceeded; everything is counted anyway."""
        if not self._lines.take(now_s):
            self._suppressed += 1
            return
        more = f" (and {self._suppressed} more before)" if self._suppressed else ""
        self._suppressed = 0
        self._log.warning("%s%s", text, more)


def _name(identity: bytes) -> str:
    return identity.decode("ascii", "replace") if identity.isascii() else identity.hex()
