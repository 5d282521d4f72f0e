"""How often who may ask for what: token buckets, one a peer, for what credit and queues do not bound already."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_PEERS_KEPT = 1024


class TokenBucket:
    """Lets through ``burst`` at once and ``per_s`` a second in the long run."""

    __slots__ = ("_burst", "_filled_s", "_per_s", "_tokens")

    def __init__(self, per_s: float, burst: float) -> None:
        if per_s <= 0 or burst < 1:
            raise ValueError("per_s must be positive and burst at least 1")
        self._per_s = per_s
        self._burst = burst
        self._tokens = burst
        self._filled_s = float("-inf")

    def take(self, now_s: float) -> bool:
        """Take a token; False if there is none."""
        filled = self._tokens + max(0.0, now_s - self._filled_s) * self._per_s
        self._tokens, self._filled_s = min(self._burst, filled), now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def has(self, now_s: float) -> bool:
        """Return whether there is a token to take."""
        return self._tokens + max(0.0, now_s - self._filled_s) * self._per_s >= 1

    def full(self, now_s: float) -> bool:
        """Return whether it is as if nothing had ever been taken."""
        return self._tokens + max(0.0, now_s - self._filled_s) * self._per_s >= self._burst


class KeyedRateLimiter(Generic[K]):
    """A bucket for each peer, for as many as are remembered: those that were there last.

    Parameters
    ----------
    per_s, burst
        Of each peer.
    most
        Peers remembered. Who makes up more names than that shares one bucket with all others that do.
    """

    def __init__(self, per_s: float, burst: float, most: int = _PEERS_KEPT) -> None:
        self._per_s = per_s
        self._burst = burst
        self._most = most
        self._buckets: OrderedDict[K, TokenBucket] = OrderedDict()
        self._strangers = TokenBucket(per_s, burst)
        self.refused = 0
        """How often there was none to be had."""

    def take(self, peer: K, now_s: float) -> bool:
        """Take one of a peer's tokens; False, counted, if it has none."""
        bucket = self._buckets.get(peer)
        if bucket is None:
            bucket = self._new(peer, now_s)
        else:
            self._buckets.move_to_end(peer)
        allowed = bucket.take(now_s)
        self.refused += not allowed
        return allowed

    def has(self, peer: K, now_s: float) -> bool:
        """Return whether a peer has a token to take."""
        bucket = self._buckets.get(peer)
        return bucket is None or bucket.has(now_s)

    def _new(self, peer: K, now_s: float) -> TokenBucket:
        if len(self._buckets) >= self._most:
            oldest, bucket = next(iter(self._buckets.items()))
            if not bucket.full(now_s):
                return self._strangers  # forgetting it would give it all its tokens back
            del self._buckets[oldest]
        return self._buckets.setdefault(peer, TokenBucket(self._per_s, self._burst))
