"""Token buckets: burst, long-term rate, and a bounded number of peers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.delivery.rate_limit import KeyedRateLimiter, TokenBucket


def test_burst_is_admitted_then_rate() -> None:
    bucket = TokenBucket(per_s=2.0, burst=3)
    assert [bucket.take(10.0) for _ in range(5)] == [True, True, True, False, False]
    assert [bucket.take(10.5), bucket.take(10.5)] == [True, False]
    assert not bucket.full(11.0)
    assert bucket.full(12.0)
    assert [bucket.take(1000.0) for _ in range(4)] == [True, True, True, False], (
        "at most a burst is saved"
    )


@given(st.lists(st.floats(0, 1), max_size=60), st.floats(0.5, 50), st.integers(1, 20))
def test_bucket_never_admits_more_than_burst_and_rate(
    pauses: list[float], per_s: float, burst: int
) -> None:
    bucket = TokenBucket(per_s, burst)
    now_s, taken = 5.0, 0
    for pause_s in pauses:
        now_s += pause_s
        taken += bucket.take(now_s)
    assert taken <= burst + per_s * (now_s - 5.0) + 1e-6


def test_peers_have_separate_buckets() -> None:
    rates: KeyedRateLimiter[str] = KeyedRateLimiter(per_s=1.0, burst=2)
    assert [rates.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert rates.take("b", 0.0)


def test_invented_names_share_one_bucket() -> None:
    rates: KeyedRateLimiter[int] = KeyedRateLimiter(per_s=1.0, burst=2, max_peers=10)
    passed = sum(rates.take(name, 0.0) for name in range(10_000))
    assert passed == 10 + 2, "one bucket for each stored peer, and one for all others"
    assert rates.take(10_001, 100.0), "idle peers are removed"
    assert len(rates._buckets) == 10


def test_invalid_limits_are_refused() -> None:
    for per_s, burst in ((0.0, 1), (1.0, 0)):
        with pytest.raises(ValueError, match="per_s"):
            TokenBucket(per_s, burst)
