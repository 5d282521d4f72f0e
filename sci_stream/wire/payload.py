"""Payloads: arrays as raw bytes after the header that describes them, without copying."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from isal import isal_zlib

from sci_stream.field_types import MAX_DIM, Payload, integer, text
from sci_stream.model import Array
from sci_stream.wire.header import quoted, refuse
from sci_stream.wire.schema import FieldError

# Types of payload elements, always little-endian on the wire.
DTYPES = {
    name: np.dtype(name).newbyteorder("<") for name in ("uint8", "uint16", "float16", "float32")
}


@dataclass(frozen=True)
class PayloadDescription:
    """Entry of a payload in the header. Dtype and shape are checked against the kind of message."""

    name: Annotated[str, text(32)]
    dtype: Annotated[str, text(32)]
    shape: list[int]
    crc32: Annotated[int, integer(0, 2**32 - 1)]


# NumPy takes 3 µs to name a dtype.
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class ReceivedArray(np.ndarray[Any, Any]):
    """A received payload, read-only, with its checksum.

    Forwarded unchanged it keeps that checksum: the receiver detects corruption in this process's
    memory, and the bytes are summed once less. Arrays derived from it, even views, have no
    checksum.
    """

    crc32: int | None = None


def with_checksum(array: Array) -> ReceivedArray:
    """Return a read-only array with a checksum, computed once for any number of sends."""
    view = np.ascontiguousarray(array).view(ReceivedArray)
    view.flags.writeable = False
    view.crc32 = checksum(view)
    return view


def checksum(array: Array) -> int:
    """Return the CRC-32 of an array's elements, in C order and little-endian.

    A received array has it: damage in this process is detected, and no byte is summed twice.
    """
    if isinstance(array, ReceivedArray) and not array.flags.writeable and array.crc32 is not None:
        return array.crc32
    return isal_zlib.crc32(_as_bytes(array))


def _as_bytes(array: Array) -> memoryview:
    dtype = DTYPES[_NAMES.get(array.dtype) or array.dtype.name]
    return np.ascontiguousarray(array, dtype=dtype).data.cast("B")


def pack_payloads(
    payloads: Mapping[str, Payload], message: object
) -> tuple[list[PayloadDescription], list[memoryview]]:
    """Describe the arrays of a message and return them as bytes.

    Returns
    -------
    The descriptions for the header, and views that share the arrays' memory (copies only of arrays
    that are not C-contiguous or not little-endian). The arrays must not be modified while the
    message may still be sent.

    Raises
    ------
    FieldError
        If an array is missing or has another dtype or number of dimensions than its payload.
    """
    descriptions: list[PayloadDescription] = []
    views: list[memoryview] = []
    for name, payload in payloads.items():
        value = getattr(message, name)
        if value is None:
            if not payload.optional:
                raise FieldError(name, "an array", "None")
            continue
        for array in value if payload.many else [value]:
            description, view = pack_payload(payload, name, array)
            descriptions.append(description)
            views.append(view)
    return descriptions, views


def pack_payload(
    payload: Payload, name: str, array: Array
) -> tuple[PayloadDescription, memoryview]:
    """Describe an array and return it as bytes, as `pack_payloads` does. Raises `FieldError`."""
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    dtype = _NAMES.get(array.dtype) or array.dtype.name
    _check(payload, name, dtype, array.shape)
    return PayloadDescription(name, dtype, list(array.shape), checksum(array)), _as_bytes(array)


def _check(payload: Payload, name: str, dtype: str, shape: Sequence[int]) -> None:
    if dtype not in payload.dtypes:
        raise FieldError(
            name, f"dtype {' or '.join(payload.dtypes)}", quoted(dtype), "payload_dtype"
        )
    if len(shape) != payload.ndim or not all(1 <= dim <= MAX_DIM for dim in shape):
        expected = f"{payload.ndim} dimensions of 1 to {MAX_DIM}"
        raise FieldError(name, expected, str(tuple(shape[:8])), "payload_shape")


def unpack_payloads(
    payloads: Mapping[str, Payload],
    descriptions: Sequence[PayloadDescription],
    frames: Sequence[memoryview],
    max_bytes: int,
) -> dict[str, Array | list[Array] | None]:
    """Return the arrays of a message by name, None for absent optional ones, a list of ``many``.

    Returns
    -------
    Read-only `ReceivedArray` on the frames' own memory (a copy only if that is not aligned for the
    dtype).

    Raises
    ------
    FieldError
        ``payload_dtype`` or ``payload_shape``.
    WireError
        Any other ``payload_*``, or ``crc``.
    """
    if len(descriptions) != len(frames):
        refuse(
            "payload_count",
            "Frames do not match the header",
            expected=len(descriptions),
            got=len(frames),
        )
    known = dict(payloads)
    out: dict[str, Array | list[Array] | None] = dict.fromkeys(known)
    out |= {name: [] for name, one in payloads.items() if one.many}
    for described, frame in zip(descriptions, frames, strict=True):
        payload = known.get(described.name)
        if payload is None:
            got = quoted(described.name)
            refuse("payload_name", "An unknown or repeated payload", expected=list(known), got=got)
        array = unpack_payload(payload, described, frame, max_bytes)
        if isinstance(gathered := out[described.name], list):
            gathered.append(array)
        else:
            out[described.name] = array
            del known[described.name]
    missing = [name for name, one in known.items() if not (one.optional or one.many)]
    if missing:
        refuse(
            "payload_name", "A payload is missing", expected=missing[0], got=f"{len(frames)} others"
        )
    return out


def unpack_payload(
    payload: Payload, described: PayloadDescription, frame: memoryview, max_bytes: int
) -> Array:
    """Return one array, as `unpack_payloads` does, and with its errors."""
    name = described.name
    dtype = described.dtype
    shape = described.shape
    crc = described.crc32
    _check(payload, name, dtype, shape)
    nbytes = math.prod(shape) * DTYPES[dtype].itemsize
    if nbytes > max_bytes:
        refuse(
            "payload_size",
            f"{name} is too large",
            expected=f"≤ {max_bytes} bytes",
            got=nbytes,
        )
    if frame.nbytes != nbytes:
        refuse("payload_length", f"length of {name}", expected=f"{nbytes} bytes", got=frame.nbytes)
    if isal_zlib.crc32(frame) != crc:
        refuse("crc", f"{name} was corrupted in transit", expected=f"crc32 {crc}")
    array: Array = np.frombuffer(frame, dtype=DTYPES[dtype]).reshape(shape)
    if not array.flags.aligned:
        # A small message may start anywhere in a receive buffer; compiled code downstream relies on
        # alignment.
        array = array.copy()
    received = array.view(ReceivedArray)
    received.flags.writeable = False
    received.crc32 = crc
    return received
