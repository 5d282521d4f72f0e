"""Token buckets by peer, for requests that neither credit nor queues bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# A bucket takes about 200 bytes; a rig has a handful of peers, so only an attacker reaches this.
_MAX_PEERS = 1024


class TokenBucket:
    """Admit ``burst`` at once and ``per_s`` a second in the long run."""

    __slots__ = ("_burst", "_filled_s", "_per_s", "_tokens")

    def __init__(self, per_s: float, burst: float) -> None:
        if per_s <= 0 or burst < 1:
            raise ValueError("per_s must be positive and burst at least 1")
        self._per_s = per_s
        self._burst = burst
        self._tokens = burst
        self._filled_s = float("-inf")

    def take(self, now_s: float, tokens: float = 1) -> bool:
        """Take a token, or several; False if there are not enough."""
        # max(): a caller may pass times slightly out of order; the bucket must not lose tokens to
        # that.
        filled = self._tokens + max(0.0, now_s - self._filled_s) * self._per_s
        self._tokens = min(self._burst, filled)
        self._filled_s = now_s
        if self._tokens < tokens:
            return False
        self._tokens -= tokens
        return True

    def has(self, now_s: float) -> bool:
        """Return whether there is a token to take."""
        return self._tokens + max(0.0, now_s - self._filled_s) * self._per_s >= 1

    def full(self, now_s: float) -> bool:
        """Return whether the bucket is full, that is, equal to a new one."""
        return self._tokens + max(0.0, now_s - self._filled_s) * self._per_s >= self._burst


class KeyedRateLimiter(Generic[K]):
    """One bucket per peer, for ``max_peers`` recent peers; others share one, so that invented names
    gain nothing.
    """

    def __init__(self, per_s: float, burst: float, max_peers: int = _MAX_PEERS) -> None:
        self._per_s = per_s
        self._burst = burst
        self._max_peers = max_peers
        self._buckets = OrderedDict[K, TokenBucket]()
        self._others = TokenBucket(per_s, burst)

    def take(self, peer: K, now_s: float) -> bool:
        """Take a token of a peer; False if it has none."""
        bucket = self._buckets.get(peer)
        if bucket is None:
            bucket = self._new(peer, now_s)
        else:
            self._buckets.move_to_end(peer)
        return bucket.take(now_s)

    def has(self, peer: K, now_s: float) -> bool:
        """Return whether a peer has a token to take."""
        bucket = self._buckets.get(peer)
        return bucket is None or bucket.has(now_s)

    def _new(self, peer: K, now_s: float) -> TokenBucket:
        if len(self._buckets) >= self._max_peers:
            oldest, bucket = next(iter(self._buckets.items()))
            if not bucket.full(now_s):
                return (
                    self._others
                )  # removing it would refill it: a peer could evict itself by inventing names
            del self._buckets[oldest]
        return self._buckets.setdefault(peer, TokenBucket(self._per_s, self._burst))
