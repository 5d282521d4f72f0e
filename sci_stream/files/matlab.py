"""Read numeric arrays from MATLAB files of version 5 to 7.3, bounds-checked.

SciPy's reader indexes C tables with type codes from the file and crashes the process if they are
damaged; a node must survive a damaged file. The format up to version 7: a header of 128 bytes, then
elements of (type, size, data), some compressed; a matrix is an element of elements: flags,
dimensions, name, values ("MAT-File Format", MathWorks, chapter 1). Version 7.3 is HDF5.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator

import numpy as np

from sci_stream.file_guard import require_memory, require_ratio
from sci_stream.model import Array

_HEADER = 128
_MATRIX = 14
_COMPRESSED = 15
_COMPLEX_FLAG = 0x0800

# Element types of numbers; the values of a matrix may be stored in a smaller type than its class.
_STORED = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
# Array classes of numbers.
_CLASSES = {
    6: "f8",
    7: "f4",
    8: "i1",
    9: "u1",
    10: "i2",
    11: "u2",
    12: "i4",
    13: "u4",
    14: "i8",
    15: "u8",
}
COMPLEX = "complex numbers: save real(NAME)"
SPARSE = "a sparse matrix: save full(NAME)"
_OTHER_CLASSES = {1: "a cell", 2: "a structure", 4: "text", 5: SPARSE}
# Tables, strings and other objects. They have a name in place of dimensions.
_OPAQUE = 17

Element = tuple[int, memoryview]


def read_variables(content: bytes) -> dict[str, Array | str]:
    """Return each variable: its array in MATLAB's axis order, or why it is no array of numbers.

    Raises ValueError if the content is not a MATLAB file or is damaged; `FileFormatError` if a
    variable is too large for the memory or declares more than it stores.
    """
    order = {b"IM": "<", b"MI": ">"}.get(content[_HEADER - 2 : _HEADER])
    if order is None:
        raise ValueError("not a MATLAB file of version 5 to 7")
    variables = {}
    for code, data in _elements(memoryview(content)[_HEADER:], order):
        kind, matrix = _inflate(data, order) if code == _COMPRESSED else (code, data)
        if kind == _MATRIX:
            name, content_or_reason = _variable(matrix, order)
            if name:
                variables[name] = content_or_reason
    return variables


def _elements(data: memoryview, order: str) -> Iterator[Element]:
    """Yield the consecutive elements of ``data``."""
    at = 0
    while at < len(data):
        if len(data) - at < 8:
            raise ValueError("cut off within an element's tag")
        code, size = struct.unpack_from(order + "II", data, at)
        if (
            code >> 16
        ):  # a small element: type and size share one word, followed by up to four bytes of data
            code, size, begin, end = code & 0xFFFF, code >> 16, at + 4, at + 8
            if size > 4:
                raise ValueError(f"a small element claims {size} bytes")
        else:
            begin = at + 8
            end = begin + size + (0 if code == _COMPRESSED else -size % 8)
        if begin + size > len(data):
            raise ValueError(f"cut off: an element of {size} bytes, {len(data) - begin} left")
        yield code, data[begin : begin + size]
        at = end


def _inflate(data: memoryview, order: str) -> Element:
    """Decompress a compressed element, limited to the size that it declares."""
    stream = zlib.decompressobj()
    try:
        tag = stream.decompress(data, 8)
        if len(tag) < 8:
            raise ValueError("a compressed variable is cut off")
        code, size = struct.unpack(order + "II", tag)
        require_memory(size, "a compressed variable")
        require_ratio(size, len(data), "a compressed variable")
        content = stream.decompress(stream.unconsumed_tail, size) if size else b""
        stream.decompress(
            stream.unconsumed_tail, 1
        )  # reads the end of the stream, and so verifies its checksum
    except zlib.error as error:
        raise ValueError(f"a compressed variable is damaged ({error})") from error
    if len(content) != size or not stream.eof:
        raise ValueError("a compressed variable is cut off or damaged")
    return code, memoryview(content)


def _variable(data: memoryview, order: str) -> tuple[str, Array | str]:
    """Return the name of a matrix, and its values or the reason why they are no real numbers.

    The name is empty for the data of objects that MATLAB adds to the variables.
    """
    (_, flags), *parts = _elements(data, order)
    if len(flags) < 4:
        raise ValueError("a variable has no flags")
    (word,) = struct.unpack_from(order + "I", flags)
    if word & 0xFF == _OPAQUE:
        return _name(parts[0][1]) if parts else "", "an object"
    (_, dimensions), (_, label), *values = parts
    name = _name(label)
    if len(dimensions) % 4 or not values:
        raise ValueError(f"the variable {name} is damaged")
    kind = _CLASSES.get(word & 0xFF)
    if kind is None:
        return name, _OTHER_CLASSES.get(word & 0xFF, "an object")
    if word & _COMPLEX_FLAG:
        return name, COMPLEX
    code, content = values[0]
    stored = _STORED.get(code)
    if stored is None:
        return name, "no numbers"
    shape = struct.unpack(f"{order}{len(dimensions) // 4}i", dimensions)
    dtype = np.dtype(order + stored)
    if min(shape, default=-1) < 0 or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"the variable {name} of shape {shape} has {len(content)} bytes of values")
    return name, np.frombuffer(content, dtype).astype(kind).reshape(shape, order="F")


def _name(label: memoryview) -> str:
    return bytes(label).decode("utf-8", "replace")
