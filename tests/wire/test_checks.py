"""Validators of fields and their error messages."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sci_stream.wire.validators import (
    Check,
    Choice,
    FieldError,
    FiniteOrNil,
    Flag,
    Integer,
    Maybe,
    Number,
    Prose,
    Record,
    Table,
    Text,
    quoted,
)

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (Integer(0, 9), [0, 9], [-1, 10, 1.0, True, "1", None, [1]]),
        (Number(0, 1), [0, 1, 0.5, 1.0], [-0.1, 2, NAN, INF, -INF, True, "1", None]),
        (Number(), [-1e300, 2**64 - 1], [NAN, INF, -INF]),
        (Flag(), [True, False], [0, 1, "true", None]),
        (Text(3), ["", "abc", "äöü"], ["abcd", b"abc", 1, None]),
        (Text(9, r"[a-z]+"), ["abc"], ["", "a b", "abc\n", "\nabc", "ABC"]),
        (Choice({"a": 1, "b": 2}), ["a", "b"], ["c", "", 1, None, ["a"]]),
        (Maybe(Integer(0, 9)), [None, 3], [-1, "3"]),
        (Table(Integer(0, 9), most=2), [{}, {"a": 1, "b": 2}], [{"a": 10}, {"a": 1, "b": 1, "c": 1}, {1: 1}, [], None]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Check) else "",
)
def test_check_accepts_valid_values_only(check: Check, good: list[object], bad: list[object]) -> None:
    for value in good:
        check.read(value)
    for value in bad:
        with pytest.raises(FieldError):
            check.read(value)


def test_choice_returns_the_value_of_the_string() -> None:
    assert Choice({"a": 1}).read("a") == 1


def test_non_finite_numbers_are_sent_as_nil() -> None:
    check = FiniteOrNil()
    assert [check.dump(value) for value in (31.5, INF, NAN, None)] == [31.5, None, None, None]
    assert check.read(None) is None
    with pytest.raises(FieldError):
        check.read(INF)


def test_prose_is_cut_to_length() -> None:
    assert Prose(5).dump("abcdef") == "abcd…"
    assert Prose(5).dump("abcde") == "abcde"


@dataclass(frozen=True)
class Inner:
    depth: int


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner


def _inner(level: int) -> Inner:
    return Inner(depth=level)


RECORD = Record(Outer, {"name": Text(9), "inner": Record(_inner, {"level": Integer(0, 9)}, {"level": "depth"})})


def test_record_round_trip() -> None:
    outer = Outer("x", Inner(3))
    assert RECORD.dump(outer) == {"name": "x", "inner": {"level": 3}}
    assert RECORD.read(RECORD.dump(outer)) == outer


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        ({"name": "x", "inner": {"level": 10}}, "inner.level: expected an integer from 0 to 9, got 10"),
        ({"name": "x", "inner": 3}, "inner: expected a map, got 3"),
        ({"name": "x"}, "inner: expected a required field, got no such field"),
        ({"name": "x", "inner": {"level": 1}, "more": 1}, "'more': expected only the fields of this version"),
    ],
)
def test_record_names_the_invalid_field(value: object, refusal: str) -> None:
    with pytest.raises(FieldError) as caught:
        RECORD.read(value)
    assert refusal in str(caught.value)


def test_shown_describes_any_value_in_a_few_words() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    assert quoted(deep) == "a list"
    assert quoted("x" * 10**6) == f"'{'x' * 40}'… (1000000 characters)"
    assert quoted(3) == "3"
    assert quoted(None) == "None"
