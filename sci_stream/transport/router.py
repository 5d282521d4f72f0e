"""What both ROUTERs do with whatever comes: read it, count what is refused, bound how often peers may ask."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from sci_stream.delivery.rate_limit import KeyedRateLimiter, TokenBucket
from sci_stream.errors import WireError
from sci_stream.optics.calibration import Calibration
from sci_stream.transport.client_connection import identity_of
from sci_stream.transport.remote_memory import UNREADABLE, read_parcel
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
"""Nodes that may be there at once: four times as many reconstruct nodes as a rig can have."""

_TALK_PER_S, _TALK_BURST = 100.0, 400
"""Hellos, heartbeats, pings and the like of one peer: with the shortest heartbeat it says 40 a second."""
_MASKS_PER_S, _MASKS_BURST = 1.0, 8
"""Calibrations that one peer asks for or sends: each may have the size of many snapshots."""
_JOINS_PER_S, _JOINS_BURST = 20.0, MOST_PEERS
"""Nodes that nobody knew before, all together."""
_LINES_PER_S, _LINES_BURST = 1.0, 20
_ANSWERS_PER_S, _ANSWERS_BURST = 1.0, 5

Answer = Callable[[Message], object]
"""Sends a message to whoever one was just read from."""

_TALK = (Hello, Heartbeat, Ping, Goodbye, ControlResult)


class RouterReceiver:
    """Reads messages for a ROUTER that nodes connect to.

    Snapshots, results and what is done about them are bounded by credit, by the sender's queue and by the camera. The
    rest is bounded here: who asks too often is not answered, and counted under ``rate``.

    Parameters
    ----------
    what
        The address of the rig that is served, for the log.
    """

    def __init__(self, what: str, limits: Limits, log: logging.Logger) -> None:
        self._what = what
        self._limits = limits
        self._log = log
        self._talk: KeyedRateLimiter[bytes] = KeyedRateLimiter(_TALK_PER_S, _TALK_BURST)
        self._masks: KeyedRateLimiter[bytes] = KeyedRateLimiter(_MASKS_PER_S, _MASKS_BURST)
        self._answers: KeyedRateLimiter[bytes] = KeyedRateLimiter(_ANSWERS_PER_S, _ANSWERS_BURST)
        self._joins = TokenBucket(_JOINS_PER_S, _JOINS_BURST)
        self._lines = TokenBucket(_LINES_PER_S, _LINES_BURST)
        self._handshakes = TokenBucket(0.1, 1)
        self._unsaid = 0
        self.wire_errors: Counter[str] = Counter()

    def read(self, identity: bytes, parcel: ReceivedMessage, now_s: float, answer: Answer) -> Message | None:
        """Return the message in a parcel; None if it is refused, which is counted, or comes too often."""
        try:
            message = read_parcel(parcel, parcel.frames[1:], self._limits)
        except WireError as error:
            self.wire_errors[error.reason] += 1
            self._complain(f"message to the {self._what} address refused: {error}", now_s)
            if error.reason in {"version", UNREADABLE} and self._answers.take(identity, now_s):
                answer(Refused(reason=error.reason, text=str(error)))
            return None
        masks = isinstance(message, Calibration | CalibrationRequest) and not self._masks.take(identity, now_s)
        if masks or (isinstance(message, _TALK) and not self._talk.take(identity, now_s)):
            self.wire_errors["rate"] += 1
            self._complain(
                f"{_name(identity)} says {type(message).__name__} to the {self._what} address too often", now_s
            )
            return None
        return message

    def welcomes(
        self,
        identity: bytes,
        hello: Hello,
        now_s: float,
        *,
        known: bool,
        peers: int,
        answer: Callable[[Message], object],
    ) -> bool:
        """Return whether a node may come in, or stay; count it if not."""
        if identity != identity_of(hello):
            # From a connection that a newer one of the same node has replaced, or from nobody who may say so.
            self.wire_errors["identity"] += 1
            return False
        if known:
            return True
        if peers >= MOST_PEERS or not self._joins.take(now_s):
            self.wire_errors["rate"] += 1
            self._complain(f"{hello.node} is not let in: {peers} nodes are there, or many came at once", now_s)
            if self._answers.take(identity, now_s):
                answer(Refused(reason="too_many", text=f"{peers} nodes are there or came just now; try again later"))
            return False
        return True

    def strangers(self, refused: int, now_s: float) -> None:
        """Count connections that were refused in their handshake."""
        if refused:
            self.wire_errors["handshake"] += refused
            if self._handshakes.take(now_s):
                self._log.warning(
                    "%d connections to the %s address were refused in their handshake: the other side expects another "
                    "key here, has none that is allowed, does not encrypt, or is no node",
                    self.wire_errors["handshake"],
                    self._what,
                )

    def _complain(self, text: str, now_s: float) -> None:
        """Say it, unless so much was said just now that the log would fill the disk; all is counted anyway."""
        if not self._lines.take(now_s):
            self._unsaid += 1
            return
        more = f" (and {self._unsaid} more before)" if self._unsaid else ""
        self._unsaid = 0
        self._log.warning("%s%s", text, more)


def _name(identity: bytes) -> str:
    return identity.decode("ascii", "replace") if identity.isascii() else identity.hex()
