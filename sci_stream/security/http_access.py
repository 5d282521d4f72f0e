"""Who may ask by HTTP, how often, and with which word: rules for the live page and the nodes' health alike."""

from __future__ import annotations

import enum
import hmac
import math
from collections import Counter
from collections.abc import Iterable

from sci_stream.delivery.rate_limit import KeyedRateLimiter

_GUESSES_PER_S, _GUESSES_BURST = 0.5, 10


class Admission(enum.Enum):
    """What became of a request."""

    OPEN = "open"
    """It may pass."""
    TOKEN = "token"
    """It has no token, or a wrong one."""
    EXPIRED = "expired"
    """It has the right token, whose time is over."""
    RATE = "rate"
    """Its address asks too often, or has guessed too often."""


class HttpAccessControl:
    """Lets requests through by address and token; counts those it does not, by reason.

    Parameters
    ----------
    token
        What must be known; None for nothing.
    expires_s
        Unix time at which the token is worth nothing any more; infinity for never.
    per_s, burst
        Requests of one address.
    """

    def __init__(self, token: str | None, expires_s: float = math.inf, *, per_s: float, burst: float) -> None:
        self._token = None if token is None else token.encode()
        self._expires_s = expires_s
        self._visits: KeyedRateLimiter[str] = KeyedRateLimiter(per_s, burst)
        self._guesses: KeyedRateLimiter[str] = KeyedRateLimiter(_GUESSES_PER_S, _GUESSES_BURST)
        self.refused: Counter[str] = Counter()

    def visit(self, address: str, now_s: float) -> Admission:
        """Take note of a request, whatever it is for; ``RATE`` or ``OPEN``."""
        return self._counted(Admission.OPEN if self._visits.take(address, now_s) else Admission.RATE)

    def admit(self, address: str, given: Iterable[str], now_s: float, unix_s: float) -> Admission:
        """Return whether one of the words given is the token.

        Parameters
        ----------
        address
            Whose request it is; who guessed wrong too often is not even compared for a while.
        now_s, unix_s
            The time, monotonic and Unix.
        """
        if self._token is None:
            return Admission.OPEN
        if not self._guesses.has(address, now_s):
            return self._counted(Admission.RATE)
        words = [word.encode() for word in given if word]
        if not any(hmac.compare_digest(word, self._token) for word in words):
            if words:
                self._guesses.take(address, now_s)
            return self._counted(Admission.TOKEN)
        return self._counted(Admission.OPEN if unix_s < self._expires_s else Admission.EXPIRED)

    def expired(self, unix_s: float) -> bool:
        """Return whether there is a token and its time is over."""
        return self._token is not None and unix_s >= self._expires_s

    def count(self, reason: str) -> None:
        """Count a request that was refused for something else."""
        self.refused[reason] += 1

    def _counted(self, admission: Admission) -> Admission:
        if admission is not Admission.OPEN:
            self.refused[admission.value] += 1
        return admission
