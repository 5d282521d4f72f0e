"""HTTP access control: rate limits and tokens, for the live page and the health endpoints."""

from __future__ import annotations

import enum
import hmac
import math
from collections import Counter
from collections.abc import Iterable

from sci_stream.delivery.rate_limit import KeyedRateLimiter

# Ten typing errors are free; after that a token of 8 random letters would take thousands of years to guess.
_GUESSES_PER_S, _GUESSES_BURST = 0.5, 10


class AccessDecision(enum.Enum):
    """Result of checking a request."""

    OPEN = "open"
    """Accepted."""
    TOKEN = "token"
    """No token, or a wrong one."""
    EXPIRED = "expired"
    """The right token, but expired."""
    RATE = "rate"
    """Too many requests or wrong tokens from this address."""


class HttpAccessControl:
    """Admit requests by address and token; count refused ones by reason.

    Parameters
    ----------
    token
        The token; None to admit every request.
    expires_s
        Unix time at which the token expires; infinity for never.
    per_s, burst
        Rate limit of one address.
    """

    def __init__(self, token: str | None, expires_s: float = math.inf, *, per_s: float, burst: float) -> None:
        self._token = None if token is None else token.encode()
        self._expires_s = expires_s
        self._visits: KeyedRateLimiter[str] = KeyedRateLimiter(per_s, burst)
        self._guesses: KeyedRateLimiter[str] = KeyedRateLimiter(_GUESSES_PER_S, _GUESSES_BURST)
        self.refused: Counter[str] = Counter()

    @property
    def needs_token(self) -> bool:
        """Whether a token is set."""
        return self._token is not None

    def check_rate(self, address: str, now_s: float) -> AccessDecision:
        """Count a request against the rate limit; return ``RATE`` or ``OPEN``."""
        return self._counted(AccessDecision.OPEN if self._visits.take(address, now_s) else AccessDecision.RATE)

    def admit(self, address: str, given: Iterable[str], now_s: float, unix_s: float) -> AccessDecision:
        """Check the tokens given with a request.

        Parameters
        ----------
        address
            Address of the client; after too many wrong tokens, its tokens are not even compared for a while.
        now_s, unix_s
            The time, monotonic and Unix.
        """
        if self._token is None:
            return AccessDecision.OPEN
        if not self._guesses.has(address, now_s):
            return self._counted(AccessDecision.RATE)
        words = [word.encode() for word in given if word]
        if not any(hmac.compare_digest(word, self._token) for word in words):
            if words:
                self._guesses.take(address, now_s)
            return self._counted(AccessDecision.TOKEN)
        return self._counted(AccessDecision.OPEN if unix_s < self._expires_s else AccessDecision.EXPIRED)

    def expired(self, unix_s: float) -> bool:
        """Return whether there is a token and it has expired."""
        return self._token is not None and unix_s >= self._expires_s

    def count(self, reason: str) -> None:
        """Count a request that was refused for another reason."""
        self.refused[reason] += 1

    def _counted(self, admission: AccessDecision) -> AccessDecision:
        if admission is not AccessDecision.OPEN:
            self.refused[admission.value] += 1
        return admission
