"""Types of the fields of values that travel between nodes, with their bounds.

A field is declared once, as in ``seq: Seq``: `sci_stream.wire` checks it on both sides, and the
tables of docs/wire.md name its type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

V = TypeVar("V")

MAX_DIM = 65536
MAX_CHUNKS = 24
"""Numbers that come with a snapshot: 16 of a camera, those of its modulator and of analyses."""

_WITHOUT_NUL = r"[^\x00]*"  # neither HDF5 nor file names can hold it
_CHUNK_NAME = r"[^/\x00-\x1f\x7f]+"


@dataclass(frozen=True, eq=False)
class FieldType:
    """Metadata of a field that is sent.

    ``name`` of its type in docs/wire.md; ``valid`` describes its valid values in errors; ``schema``
    checks them, that of the annotated type if None; ``send`` converts a value before it is sent.
    """

    name: str
    valid: str = ""
    schema: CoreSchema | None = None
    send: Callable[[Any], Any] | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the schema, with `valid` as its error message."""
        schema = handler(source) if self.schema is None else self.schema
        if not self.valid:
            return schema
        return core_schema.custom_error_schema(
            schema, custom_error_type="field", custom_error_message=self.valid
        )


@dataclass(frozen=True)
class Payload:
    """Metadata of an array that is sent as a payload: dtypes, number of dimensions, and whether it
    may be None. Of a field with ``many`` arrays, each is a payload.
    """

    dtypes: tuple[str, ...]
    ndim: int
    optional: bool = False
    many: bool = False


def integer(low: int, high: int, name: str = "") -> FieldType:
    """Return the type of integers between two bounds, inclusive; booleans are refused."""
    schema = core_schema.int_schema(ge=low, le=high, strict=True)
    return FieldType(
        name or f"integer, {low} to {high}", f"an integer from {low} to {high}", schema
    )


def number(low: float | None = None, high: float | None = None) -> FieldType:
    """Return the type of finite numbers; integers are accepted, since packers of some languages
    write 1.0 as 1.
    """
    schema = core_schema.float_schema(ge=low, le=high, strict=True, allow_inf_nan=False)
    bounds = "" if low is None else f" ≥ {low:g}" if high is None else f", {low:g} to {high:g}"
    return FieldType(f"number{bounds}", f"a finite number{bounds}", schema)


def text(
    size: int, name: str = "", pattern: str = _WITHOUT_NUL, noun: str = "a string"
) -> FieldType:
    """Return the type of strings of bounded length that match a pattern."""
    schema = core_schema.str_schema(max_length=size, pattern=f"^(?:{pattern})$", strict=True)
    return FieldType(
        name or f"string, ≤ {size} characters",
        f"{noun} of at most {size} characters, without NUL",
        schema,
    )


def prose(size: int, name: str = "") -> FieldType:
    """Return the type of texts for people: they are cut to length when they are sent,
    not refused.
    """
    checked = text(size)
    return FieldType(
        name or f"prose({size})", checked.valid, checked.schema, lambda value: _cut(value, size)
    )


def _cut(value: str, size: int) -> str:
    """Return the text cut to length, with NUL and characters that UTF-8 cannot encode replaced."""
    if len(value) <= size and value.isascii() and "\0" not in value:
        return value
    clean = value.encode(errors="replace").decode().replace("\0", "?")
    return clean if len(clean) <= size else clean[: size - 1] + "…"


def finite_or_none(value: float | None) -> float | None:
    """Return a number, None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def _cut_values(values: Mapping[str, V]) -> dict[str, V | str]:
    return {
        key: _cut(value, MAX_TEXT) if isinstance(value, str) else value
        for key, value in values.items()
    }


def _finite_values(values: Mapping[str, V]) -> dict[str, V | str]:
    """Leave out infinite and unknown numbers: an unknown rate must not prevent a heartbeat."""
    return {
        key: value
        for key, value in _cut_values(values).items()
        if not isinstance(value, float) or math.isfinite(value)
    }


def _with_chunk_names(values: Mapping[str, V]) -> dict[str, V]:
    """Leave out chunk data whose names are invalid, which must not prevent the frame."""
    return {
        key: value
        for key, value in values.items()
        if len(key) <= 64 and re.fullmatch(_CHUNK_NAME, key)
    }


Count = Annotated[int, integer(0, 2**63 - 1, "count")]
SmallCount = Annotated[int, integer(0, 2**31 - 1, "small")]
# Numbers of snapshots: a million per second for nine years. Sums of a few stay exact as floats and
# as 64-bit integers.
Seq = Annotated[int, integer(0, 2**48 - 1, "seq")]
Dim = Annotated[int, integer(1, MAX_DIM, "dim")]
BitDepth = Annotated[int, integer(1, 64)]

Number = Annotated[float, number()]
NonNegative = Annotated[float, number(0)]
Fraction = Annotated[float, number(0, 1)]
Measured = Annotated[
    float | None,
    FieldType(
        "number?",
        "a finite number or nil",
        core_schema.nullable_schema(number().schema or {}),
        finite_or_none,
    ),
]
"""A number that may be unknown; infinity and NaN are sent as nil."""

# Names become files, folders and socket identities: no separators, no leading dot, no shell
# characters.
Name = Annotated[
    str, text(96, "name", r"[A-Za-z0-9][A-Za-z0-9._-]*", "a name of letters, digits and . _ -")
]
Word = Annotated[str, text(64, "word", r"[a-z][a-z0-9_]*", "a word of small letters, digits and _")]
OptionalWord = Annotated[
    str, text(64, 'word or `""`', r"|[a-z][a-z0-9_]*", "a word of small letters, digits and _")
]
# Cameras, drivers and devices choose their own labels: too long ones are cut, not refused.
Label = Annotated[str, prose(256, "label")]
Sentence = Annotated[str, prose(1024)]
Paragraph = Annotated[str, prose(2048)]

MAX_TEXT = 1024
StatusValue = Annotated[
    bool | int | float | str,
    FieldType(
        "value",
        f"a finite number, a flag or a string of at most {MAX_TEXT} characters, without NUL",
        core_schema.union_schema(
            [
                core_schema.bool_schema(strict=True),
                core_schema.int_schema(ge=-(2**63), le=2**63 - 1, strict=True),
                core_schema.float_schema(strict=True, allow_inf_nan=False),
                core_schema.str_schema(
                    max_length=MAX_TEXT, pattern=f"^{_WITHOUT_NUL}$", strict=True
                ),
            ]
        ),
    ),
]
_Key = Annotated[str, text(64)]
# Chunk values become columns of the recording, so their names must be names in HDF5.
_ChunkName = Annotated[str, text(64, "", _CHUNK_NAME, "a name without / and control characters,")]

Versions = Annotated[
    dict[_Key, Annotated[str, text(128)]], Field(max_length=64), FieldType("versions", send=dict)
]
Status = Annotated[
    Mapping[_Key, StatusValue], Field(max_length=128), FieldType("status", send=_finite_values)
]
Parameters = Annotated[
    Mapping[_Key, StatusValue], Field(max_length=16), FieldType("parameters", send=_cut_values)
]
Chunks = Annotated[
    dict[_ChunkName, StatusValue],
    Field(max_length=MAX_CHUNKS),
    FieldType("chunks", send=lambda values: _with_chunk_names(_finite_values(values))),
]
Units = Annotated[
    dict[_ChunkName, Annotated[str, text(64)]],
    Field(max_length=MAX_CHUNKS),
    FieldType(
        "units",
        send=lambda units: {
            name: _cut(unit, 64) for name, unit in _with_chunk_names(units).items()
        },
    ),
]
