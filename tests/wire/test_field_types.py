"""Types of fields: valid values, their errors, and conversions before sending."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from sci_stream import field_types as ft
from sci_stream.model import BayerPhase
from sci_stream.wire.header import quoted
from sci_stream.wire.schema import FieldError, MapSchema
from tests.wire.wire_tables import type_name

NAN, INF = float("nan"), float("inf")


def schema(kind: Any) -> MapSchema:
    return MapSchema({"field": kind})


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Annotated[int, ft.integer(0, 9)], [0, 9], [-1, 10, 1.0, True, "1", None, [1]]),
        (ft.Fraction, [0, 1, 0.5, 1.0], [-0.1, 2, NAN, INF, -INF, True, "1", None]),
        (ft.Number, [-1e300, 7], [NAN, INF, -INF]),
        (ft.Measured, [None, 1.5, -3], [NAN, INF, "", True]),
        (bool, [True, False], [0, 1, "true", None]),
        (Annotated[str, ft.text(3)], ["", "abc", "äöü", "a\n"], ["abcd", b"abc", 1, None, "\0"]),
        (ft.Word, ["abc", "a_1"], ["", "a b", "abc\n", "\nabc", "ABC", "ä"]),
        (ft.Name, ["run-1.h5"], [".ssh", "../x", "a/b", "a\n", "s" * 97]),
        (Literal["a", "b"], ["a", "b"], ["c", "", 1, None, ["a"]]),
        (BayerPhase | None, ["RGGB", None], ["RGBW", 1, ""]),
        (ft.Count | None, [None, 3], [-1, "3", 2**63]),
        (
            ft.Versions,
            [{}, {"a": "1"}],
            [{"a": 1}, {"k" * 65: ""}, {f"k{i}": "" for i in range(65)}, [], None],
        ),
        (
            ft.Status,
            [{"a": 1, "b": "x", "c": True, "d": 0.5}],
            [{"a": NAN}, {"a": None}, {"a": [1]}, {"a": "y" * 1025}],
        ),
        (
            ft.Chunks,
            [{"Gain": 1.0}],
            [{"../Gain": 1}, {"": 1}, {"G\0": 1}, {f"c{i}": i for i in range(25)}],
        ),
    ],
    ids=lambda value: "" if isinstance(value, list) else type_name(value),
)
def test_field_accepts_valid_values_only(kind: Any, good: list[object], bad: list[object]) -> None:
    for value in good:
        assert schema(kind).read({"field": value}) == {"field": value}
    for value in bad:
        with pytest.raises(FieldError):
            schema(kind).read({"field": value})


def test_integer_of_a_number_arrives_as_a_float() -> None:
    for kind in (ft.Number, ft.NonNegative, ft.Measured):
        assert isinstance(schema(kind).read({"field": 2**63})["field"], float)
    assert isinstance(schema(ft.Status).read({"field": {"n": 3}})["field"]["n"], int)


@pytest.mark.parametrize(
    ("kind", "value", "sent"),
    [
        (ft.Measured, INF, None),
        (ft.Measured, 31.5, 31.5),
        (Annotated[str, ft.prose(5)], "abcdef", "abcd…"),
        (Annotated[str, ft.prose(5)], "abcde", "abcde"),
        (ft.Label, "a\0\ud800", "a??"),
        (ft.Status, {"rate": NAN, "n": 3, "x": "y" * 1025}, {"n": 3, "x": "y" * 1023 + "…"}),
        (ft.Chunks, {"Gain": 2, "../Gain": 1, "g" * 65: 1, "Torn": INF}, {"Gain": 2}),
        (ft.Units, {"Gain": "d" * 65, "a/b": ""}, {"Gain": "d" * 63 + "…"}),
    ],
)
def test_value_is_sent_as_the_receiver_accepts_it(kind: Any, value: object, sent: object) -> None:
    @dataclass
    class Holder:
        field: object

    dumped = schema(kind).dump(Holder(value))
    assert dumped == {"field": sent}
    schema(kind).read(dumped)


@dataclass(frozen=True)
class Inner:
    level: Annotated[int, ft.integer(0, 9)] = 0


@dataclass(frozen=True)
class Outer:
    name: ft.Label
    inner: Inner | None = None


OUTER = MapSchema({"outer": Outer})


def test_dataclass_is_sent_as_a_map() -> None:
    @dataclass
    class Holder:
        outer: Outer

    dumped = OUTER.dump(Holder(Outer("x", Inner(3))))
    assert dumped == {"outer": {"name": "x", "inner": {"level": 3}}}
    assert OUTER.read(dumped) == {"outer": Outer("x", Inner(3))}
    assert OUTER.dump(Holder(Outer("x"))) == {"outer": {"name": "x", "inner": None}}


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        (
            {"name": "x", "inner": {"level": 10}},
            "outer.inner.level: expected an integer from 0 to 9, got 10",
        ),
        (
            {"name": "x", "inner": {}},
            "outer.inner.level: expected a required field, got no such field",
        ),
        ({"name": "x", "inner": 3}, "outer.inner: expected a map, got 3"),
        ({"name": "x"}, "outer.inner: expected a required field, got no such field"),
        (
            {"name": "x", "inner": None, "more": 1},
            "outer.more: expected only the fields of this version",
        ),
        (
            {"name": "x", "inner": None, "m" * 999: 1},
            f"outer.'{'m' * 40}'… (999 characters): expected only",
        ),
    ],
)
def test_error_names_the_invalid_field(value: object, refusal: str) -> None:
    with pytest.raises(FieldError) as caught:
        OUTER.read({"outer": value})
    assert refusal in str(caught.value)


def test_quoted_describes_any_value_in_a_few_words() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    assert quoted(deep) == "a list"
    assert quoted("x" * 10**6) == f"'{'x' * 40}'… (1000000 characters)"
    assert quoted(3) == "3"
    assert quoted(None) == "None"
