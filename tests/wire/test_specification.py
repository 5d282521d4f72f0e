"""docs/wire.md agrees with the code: peers in other languages are written from it."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

import pytest

from sci_stream.field_types import MAX_CHUNKS, FieldType
from sci_stream.model import StageTimes
from sci_stream.quantities import quantities_of
from sci_stream.reports import CalibrationHealth, SolveReport
from sci_stream.wire.codec import encode
from sci_stream.wire.header import MAX_FRAMES, MAX_HEADER_BYTES, SCHEMA_VERSION, Reason
from sci_stream.wire.kinds import KINDS, MessageKind
from sci_stream.wire.messages import Goodbye
from sci_stream.wire.payload import DTYPES
from sci_stream.wire.schema import metadata_of, optional_type, types_of
from tests.wire.wire_tables import SPECIFICATION, type_name, with_tables

TEXT = SPECIFICATION.read_text()
QUANTITIES = SPECIFICATION.with_name("quantities.md").read_text()


def test_tables_are_those_of_the_declarations() -> None:
    assert with_tables(TEXT) == TEXT, "run python -m tests.wire.wire_tables"


def test_every_field_and_payload_has_a_meaning() -> None:
    for row in re.findall(r"^\| `.*\|$", TEXT, re.MULTILINE):
        assert not row.endswith("| |"), row


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_is_specified(kind: MessageKind) -> None:
    assert f"### `{kind.name}`" in TEXT or f"\n| `{kind.name}` |" in TEXT
    for declared in (metadata_of(annotation, FieldType) for annotation in kind.types.values()):
        if declared is not None and re.fullmatch(r"[a-z]+", declared.name):
            assert f"\n| `{declared.name}` |" in TEXT, "the table of types has it"


def test_every_reason_dtype_and_time_is_specified() -> None:
    for name in (*get_args(Reason), *DTYPES, *StageTimes.__dataclass_fields__):
        assert f"`{name}`" in TEXT, name
    for name in (*SolveReport.__dataclass_fields__, *CalibrationHealth.__dataclass_fields__):
        assert f"`{name}`" in TEXT + QUANTITIES, name


def test_version_and_limits_match_the_code() -> None:
    assert f"Version {SCHEMA_VERSION}." in TEXT
    assert f"`v`, integer: the version, {SCHEMA_VERSION}." in TEXT
    assert [
        f"| `{name}` | map of at most {MAX_CHUNKS} names" in TEXT for name in ("units", "chunks")
    ] == [True, True]
    assert f"most\n{MAX_FRAMES}; a header at most {MAX_HEADER_BYTES >> 10} KiB" in TEXT


FINGERPRINT = "5ce9b0a0581eeb12"


def declared(types: Mapping[str, Any], place: str) -> Iterator[str]:
    """Yield a line for each declared field, also of maps within maps.

    Quantities of a report with a default are left out: a build without them reads and writes the
    same messages.
    """
    for name, annotation in types.items():
        yield f"{place}.{name}: {type_name(annotation)}"
        inner = optional_type(annotation) or annotation
        if get_origin(inner) is list:
            (inner,) = get_args(inner)
        if dataclasses.is_dataclass(inner):
            required = types_of(inner)
            for field in dataclasses.fields(inner) if quantities_of(inner) else ():
                if field.default is not dataclasses.MISSING and field.name != "health":
                    del required[field.name]
            yield from declared(required, f"{place}.{name}")


def test_changed_declarations_have_a_new_version() -> None:
    lines = []
    for kind in KINDS:
        lines += declared(kind.types, kind.name)
        lines += [f"{kind.name} {name} {payload}" for name, payload in kind.payloads.items()]
    text = "\n".join(lines)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == FINGERPRINT, (
        "The declared fields of messages changed. Raise SCHEMA_VERSION, write the new hash into "
        "FINGERPRINT, and run python -m tests.wire.wire_tables."
    )


def test_example_equals_the_encoded_message() -> None:
    example = TEXT.split("## Example")[1].split("```")[1]
    octets = " ".join(
        re.sub(r"   +\S.*$", "", line.strip()) for line in example.strip().splitlines()
    )
    assert bytes.fromhex(octets) == b"".join(
        bytes(frame) for frame in encode(Goodbye("reconstruct-0"))
    )
