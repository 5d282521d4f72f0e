"""Headers of messages: a msgpack map of bounded size, plain types and one version.

This module handles the map, its size, syntax and version; `schema` checks its fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NoReturn

import msgpack
from pydantic import JsonValue

from sci_stream.errors import WireError

# Version of the wire format. Any change of the set, a name, a type or the meaning of fields
# increases it; a test compares their fingerprint.
SCHEMA_VERSION = 10

_LONGEST_QUOTE = 40

Reason = Literal[
    "frames",
    "unknown_kind",
    "header_size",
    "header_syntax",
    "version",
    "header_field",
    "payload_count",
    "payload_name",
    "payload_dtype",
    "payload_shape",
    "payload_size",
    "payload_length",
    "payload_value",
    "crc",
]
"""Why a message is refused: the ``reason`` of every `WireError` raised here (specified in
docs/wire.md)."""


# Limits of a message, checked before its content.
MAX_HEADER_BYTES = 256 << 10
MAX_PAYLOADS = 32
MAX_FRAMES = 2 + MAX_PAYLOADS
MAX_PAYLOAD_BYTES = 256 << 20
"""Usual limit of each payload, and so of each part of a message."""


def quoted(value: object) -> str:
    """Describe a received value in a few words, however large or deeply nested it is."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        if len(value) <= _LONGEST_QUOTE:
            return repr(value)
        return f"{value[:_LONGEST_QUOTE]!r}… ({len(value)} characters)"
    return f"a {type(value).__name__}"


def refuse(
    reason: Reason, what: str, *, expected: object = None, got: object = None, hint: str = ""
) -> NoReturn:
    """Raise a `WireError`, the only exception that leaves this package on decoding."""
    raise WireError(reason, what, expected=expected, got=got, hint=hint or None)


def pack_header(fields: Mapping[str, JsonValue]) -> bytes:
    """Return a header as msgpack, starting with the schema version.

    Raises ValueError if it exceeds the limit of a receiver.
    """
    packed: bytes = msgpack.packb({"v": SCHEMA_VERSION, **fields})
    if len(packed) > MAX_HEADER_BYTES:
        raise ValueError(
            f"the header of {len(packed)} bytes is over the limit of {MAX_HEADER_BYTES}"
        )
    return packed


def unpack_header(frame: memoryview) -> dict[str, JsonValue]:
    """Return the fields of a header without its version; only the version is checked here.

    Raises `WireError`: ``header_size``, ``header_syntax`` or ``version``.
    """
    if frame.nbytes > MAX_HEADER_BYTES:
        refuse(
            "header_size",
            "The header is too large",
            expected=f"≤ {MAX_HEADER_BYTES}",
            got=frame.nbytes,
        )
    try:
        # No binary and no extension types: a header contains maps, lists, strings and numbers only.
        header = msgpack.unpackb(
            frame, max_bin_len=0, max_ext_len=0, max_array_len=64, max_map_len=256
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        refuse(
            "header_syntax",
            "The header is not valid msgpack of plain types",
            got=f"{type(error).__name__}",
        )
    if not isinstance(header, dict):
        refuse("header_syntax", "The header is not a map", got=quoted(header))
    version = header.pop("v", None)
    if type(version) is not int or version != SCHEMA_VERSION:
        refuse(
            "version",
            "The message has another version of the wire format",
            expected=f"version {SCHEMA_VERSION}",
            got="no version" if version is None else quoted(version),
            hint="Run the same release of sci_stream on all machines of a rig.",
        )
    return header
