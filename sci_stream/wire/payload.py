"""Payloads: arrays as raw bytes after the header that describes them, without copying."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from isal import isal_zlib

from sci_stream.model import Array
from sci_stream.wire.header import Limits, refuse
from sci_stream.wire.validators import FieldError, Fields, Integer, Text, quoted

# Types of payload elements, always little-endian on the wire.
DTYPES: Final = {name: np.dtype(name).newbyteorder("<") for name in ("uint8", "uint16", "float16", "float32")}

MAX_DIM: Final = 65536


# The payloads of a message by name; None for absent optional ones.
Arrays = dict[str, Array | None]

_NAME = Text(32)
_CRC = Integer(0, 2**32 - 1)


class ReceivedArray(np.ndarray[Any, Any]):
    """A received payload, read-only, with its checksum.

    Forwarded unchanged it keeps that checksum: the receiver detects corruption in this process's memory, and the bytes
    are summed once less. Arrays derived from it, even views, have no checksum.
    """

    crc32: int | None = None


def with_checksum(array: Array) -> ReceivedArray:
    """Return a read-only array with a checksum, computed once for any number of sends."""
    view = np.ascontiguousarray(array).view(ReceivedArray)
    view.flags.writeable = False
    view.crc32 = isal_zlib.crc32(np.asarray(view, dtype=DTYPES[view.dtype.name]).reshape(-1).view(np.uint8).data)
    return view


@dataclass(frozen=True, slots=True)
class PayloadSpec:
    """One payload of a kind of message: name, dtypes, number of dimensions, and whether it is optional."""

    name: str
    dtypes: tuple[str, ...]
    ndim: int
    optional: bool = False


def pack_payloads(
    specs: Sequence[PayloadSpec], arrays: Mapping[str, Array | None]
) -> tuple[list[Fields], list[memoryview]]:
    """Describe arrays and return them as bytes.

    Returns
    -------
    The descriptions for the header, and views that share the arrays' memory (copies only of arrays that are not
    C-contiguous or not little-endian). The arrays must not be modified while the message may still be sent.

    Raises
    ------
    FieldError
        If an array is missing or has another dtype or number of dimensions than its payload.
    """
    descriptions: list[Fields] = []
    views: list[memoryview] = []
    for spec in specs:
        array = arrays[spec.name]
        if array is None:
            if not spec.optional:
                raise FieldError("an array", "None", spec.name)
            continue
        dtype = array.dtype.name
        if dtype not in spec.dtypes:
            raise FieldError(f"dtype {' or '.join(spec.dtypes)}", dtype, spec.name)
        if array.ndim != spec.ndim or not all(1 <= dim <= MAX_DIM for dim in array.shape):
            raise FieldError(f"{spec.ndim} dimensions of 1 to {MAX_DIM}", str(array.shape), spec.name)
        view = np.ascontiguousarray(array, dtype=DTYPES[dtype]).reshape(-1).view(np.uint8).data
        # A forwarded array keeps its checksum: damage in this process is detected, and no byte is summed twice.
        crc = array.crc32 if isinstance(array, ReceivedArray) and not array.flags.writeable else None
        crc = isal_zlib.crc32(view) if crc is None else crc
        descriptions.append({"name": spec.name, "dtype": dtype, "shape": list(array.shape), "crc32": crc})
        views.append(view)
    return descriptions, views


def unpack_payloads(
    specs: Sequence[PayloadSpec],
    descriptions: object,
    frames: Sequence[memoryview],
    limits: Limits,
) -> Arrays:
    """Return the arrays of a message by name, None for absent optional ones.

    Returns
    -------
    Read-only `ReceivedArray` on the frames' own memory (a copy only if that is not aligned for the dtype).

    Raises
    ------
    WireError
        ``header_field``, ``payload_*`` or ``crc``.
    """
    if not isinstance(descriptions, list):
        refuse("header_field", "payloads of the header", expected="a list", got=quoted(descriptions))
    if len(descriptions) != len(frames):
        refuse("payload_count", "Frames do not match the header", expected=len(descriptions), got=len(frames))
    known = {spec.name: spec for spec in specs}
    out: Arrays = dict.fromkeys(known)
    for entry, frame in zip(descriptions, frames, strict=True):
        described = _read_description(entry)
        spec = known.pop(described.name, None)
        if spec is None:
            got = quoted(described.name)
            refuse("payload_name", "An unknown or repeated payload", expected=list(known), got=got)
        out[spec.name] = _unpack(spec, described, frame, limits)
    missing = [spec.name for spec in known.values() if not spec.optional]
    if missing:
        refuse("payload_name", "A payload is missing", expected=missing[0], got=f"{len(frames)} others")
    return out


class _Described(NamedTuple):
    """Header entry of a payload; types are checked, values are not."""

    name: str
    dtype: str
    shape: list[int]
    crc32: int


def _read_description(entry: object) -> _Described:
    if not isinstance(entry, dict) or entry.keys() != set(_Described._fields):
        refuse("header_field", "payloads of the header", expected=f"maps of {', '.join(_Described._fields)}")
    shape = entry["shape"]
    if not isinstance(shape, list) or not all(type(dim) is int for dim in shape):
        refuse("header_field", "shape of a payload", expected="a list of integers", got=quoted(shape))
    try:
        return _Described(_NAME.read(entry["name"]), _NAME.read(entry["dtype"]), shape, _CRC.read(entry["crc32"]))
    except FieldError as error:
        refuse("header_field", "The description of a payload", expected=error.expected, got=error.got)


def _unpack(spec: PayloadSpec, described: _Described, frame: memoryview, limits: Limits) -> Array:
    name, dtype, shape, crc = described
    if dtype not in spec.dtypes:
        refuse("payload_dtype", f"dtype of {name}", expected=" or ".join(spec.dtypes), got=quoted(dtype))
    if len(shape) != spec.ndim or not all(1 <= dim <= MAX_DIM for dim in shape):
        refuse("payload_shape", f"shape of {name}", expected=f"{spec.ndim} × 1 to {MAX_DIM}", got=shape[:8])
    nbytes = math.prod(shape) * DTYPES[dtype].itemsize
    if nbytes > limits.max_payload_bytes:
        refuse("payload_size", f"{name} is too large", expected=f"≤ {limits.max_payload_bytes} bytes", got=nbytes)
    if frame.nbytes != nbytes:
        refuse("payload_length", f"length of {name}", expected=f"{nbytes} bytes", got=frame.nbytes)
    if isal_zlib.crc32(frame) != crc:
        refuse("crc", f"{name} was corrupted in transit", expected=f"crc32 {crc}")
    array: Array = np.frombuffer(frame, dtype=DTYPES[dtype]).reshape(shape)
    if not array.flags.aligned:
        # A small message may start anywhere in a receive buffer; compiled code downstream relies on alignment.
        array = array.copy()
    received = array.view(ReceivedArray)
    received.flags.writeable = False
    received.crc32 = crc
    return received
