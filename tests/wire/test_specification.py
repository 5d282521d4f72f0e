"""docs/wire.md agrees with the code: peers in other languages are written from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from sci_stream.model import CalibrationHealth, SolveReport, StageTimes
from sci_stream.wire import SCHEMA_VERSION, Goodbye, Limits, Reason, encode
from sci_stream.wire.message_kind import MessageKind
from sci_stream.wire.payload import DTYPES
from sci_stream.wire.schema import KINDS

DOCS = Path(__file__).parents[2] / "docs"
TEXT, QUANTITIES = (DOCS / "wire.md").read_text(), (DOCS / "quantities.md").read_text()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_field_and_payload_is_specified(kind: MessageKind) -> None:
    for name in (kind.name, *kind.record.names, *(payload.name for payload in kind.payloads)):
        assert f"`{name}`" in TEXT, name


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.payloads], ids=lambda kind: kind.name)
def test_every_payload_is_specified_with_its_dtypes(kind: MessageKind) -> None:
    for payload in kind.payloads:
        optional = ", optional" if payload.optional else ""
        assert f"| `{payload.name}`{optional} | {', '.join(payload.dtypes)} | (" in TEXT


def test_every_reason_dtype_and_nested_field_is_specified() -> None:
    for name in (*get_args(Reason), *DTYPES, *StageTimes.__dataclass_fields__):
        assert f"`{name}`" in TEXT, name
    for name in (*SolveReport.__dataclass_fields__, *CalibrationHealth.__dataclass_fields__):
        assert f"`{name}`" in TEXT + QUANTITIES, name


def test_version_and_limits_match_the_code() -> None:
    assert f"Version {SCHEMA_VERSION}." in TEXT
    assert f"most\n{Limits().max_frames}; a header at most {Limits().max_header_bytes >> 10} KiB" in TEXT


def test_example_equals_the_encoded_message() -> None:
    example = TEXT.split("## Example")[1].split("```")[1]
    octets = " ".join(re.sub(r"   +\S.*$", "", line.strip()) for line in example.strip().splitlines())
    assert bytes.fromhex(octets) == b"".join(bytes(frame) for frame in encode(Goodbye("reconstruct-0")))
