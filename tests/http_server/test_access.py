"""HTTP access control: rate limits and tokens."""

from __future__ import annotations

from collections import Counter

import pytest
from starlette.applications import Starlette

from sci_stream.transport.http.access import AccessMiddleware


def access(token: str | None = "hush") -> AccessMiddleware:
    return AccessMiddleware(Starlette(), "preview", token, Counter(), per_s=10.0, burst=20)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["hush"], ""),
        (["wrong", "", "hush"], ""),
        (["wrong"], "token"),
        ([], "token"),
        (["hüsh\ud800".encode("utf-8", "replace").decode()], "token"),
    ],
)
def test_only_the_right_token_is_accepted(given: list[str], reason: str) -> None:
    gate = access()
    assert gate.admit("10.0.0.1", given, 0.0) == reason
    assert gate.refused.total() == bool(reason)


def test_access_without_token_is_open() -> None:
    gate = access(token=None)
    assert gate.admit("10.0.0.1", [], 0.0) == ""


def test_wrong_tokens_block_their_address_only() -> None:
    gate = access()
    guesses = [gate.admit("10.0.0.1", ["wrong"], 0.0) for _ in range(100)]
    assert guesses.count("token") == 10
    assert guesses[-1] == "rate"
    assert gate.admit("10.0.0.1", ["hush"], 0.0) == "rate", "it would reveal a correct guess"
    assert gate.admit("10.0.0.2", ["hush"], 0.0) == ""
    assert gate.admit("10.0.0.1", ["hush"], 10.0) == ""
    assert gate.refused == {"token": 10, "rate": 91}


def test_request_without_token_is_not_a_guess() -> None:
    gate = access()
    for _ in range(100):
        gate.admit("10.0.0.1", [], 0.0)
    assert gate.admit("10.0.0.1", ["hush"], 0.0) == ""


def test_requests_per_address_are_limited() -> None:
    gate = access()
    visits = [gate.within_rate("10.0.0.1", 0.0) for _ in range(30)]
    assert visits.count(True) == 20
    assert gate.within_rate("10.0.0.2", 0.0)
    assert gate.within_rate("10.0.0.1", 1.0)
