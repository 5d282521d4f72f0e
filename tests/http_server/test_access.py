"""HTTP access control: rate limits and tokens."""

from __future__ import annotations

import pytest

from sci_stream.transport.http.access import HttpAccessControl


def access(token: str | None = "hush", expires_s: float = 1000.0) -> HttpAccessControl:
    return HttpAccessControl(token, expires_s, per_s=10.0, burst=20)


@pytest.mark.parametrize(
    ("given", "unix_s", "reason"),
    [
        (["hush"], 999.0, ""),
        (["wrong", "", "hush"], 0.0, ""),
        (["hush"], 1000.0, "expired"),
        (["wrong"], 1000.0, "token"),
        ([], 0.0, "token"),
        (["hüsh\ud800".encode("utf-8", "replace").decode()], 0.0, "token"),
    ],
)
def test_right_token_is_accepted_until_it_expires(given: list[str], unix_s: float, reason: str) -> None:
    gate = access()
    assert gate.admit("10.0.0.1", given, 0.0, unix_s) == reason
    assert gate.refused.total() == bool(reason)


def test_access_without_token_is_open() -> None:
    gate = access(token=None, expires_s=0.0)
    assert gate.admit("10.0.0.1", [], 0.0, 10.0) == ""
    assert not gate.expired(10.0)


def test_wrong_tokens_block_their_address_only() -> None:
    gate = access()
    guesses = [gate.admit("10.0.0.1", ["wrong"], 0.0, 0.0) for _ in range(100)]
    assert guesses.count("token") == 10
    assert guesses[-1] == "rate"
    assert gate.admit("10.0.0.1", ["hush"], 0.0, 0.0) == "rate", "it would reveal a correct guess"
    assert gate.admit("10.0.0.2", ["hush"], 0.0, 0.0) == ""
    assert gate.admit("10.0.0.1", ["hush"], 10.0, 0.0) == ""
    assert gate.refused == {"token": 10, "rate": 91}


def test_request_without_token_is_not_a_guess() -> None:
    gate = access()
    for _ in range(100):
        gate.admit("10.0.0.1", [], 0.0, 0.0)
    assert gate.admit("10.0.0.1", ["hush"], 0.0, 0.0) == ""


def test_requests_per_address_are_limited() -> None:
    gate = access()
    visits = [gate.within_rate("10.0.0.1", 0.0) for _ in range(30)]
    assert visits.count(True) == 20
    assert gate.within_rate("10.0.0.2", 0.0)
    assert gate.within_rate("10.0.0.1", 1.0)
