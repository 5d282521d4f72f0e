"""Shared handling of HDF5 files: opening, format marks, validated reading."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from sci_stream.errors import FileFormatError
from sci_stream.model import Array

# The oldest format with SWMR: the oldest readers can open our files, and live readers work.
LIBVER = ("v110", "v110")

# The superblock after the HDF5 file format specification: signature, version, consistency flags, end of file.
_SUPERBLOCK = struct.Struct("<8sB2xB16xQ")
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SUPERBLOCK_VERSION = 3
_SWMR_FLAG = 0x04
_MOST_MISSING_BYTES = 16 << 20


def open_for_reading(path: Path, what: str) -> h5py.File:
    """Open an HDF5 file for reading, even while it is being written or after its writer was killed.

    Parameters
    ----------
    path
        The file.
    what
        Kind of the file, for error messages: ``"recording"``.

    Raises
    ------
    FileFormatError
        If the file is missing, is not HDF5, or is truncated.
    """
    if not path.is_file():
        raise FileFormatError(
            f"There is no {what} file {path}", expected="an existing file", hint="Check the path and the mount."
        )
    try:
        # SWMR mode ignores the flag of a writer, alive or killed. For other files it would be wrong: HDF5 takes damage
        # for a write in progress and retries indefinitely.
        return h5py.File(path, "r", swmr=_is_unfinished(path))
    except OSError as error:
        raise FileFormatError(
            f"{path} cannot be opened as a {what}",
            expected=f"an HDF5 file with a {what}",
            got=str(error).splitlines()[0],
            hint="The file has another format or is damaged.",
        ) from error


def _is_unfinished(path: Path) -> bool:
    """Return whether an SWMR writer has the file open, or was killed with it open, and the file is nearly complete."""
    with path.open("rb") as file:
        head = file.read(_SUPERBLOCK.size)
        size = file.seek(0, os.SEEK_END)
    if len(head) < _SUPERBLOCK.size:
        return False
    signature, version, flags, end = _SUPERBLOCK.unpack(head)
    # A full disk truncates a file by its last write, which is harmless; more missing than this is a broken copy.
    missing = max(0, end - size)
    return (
        signature == _SIGNATURE
        and version == _SUPERBLOCK_VERSION
        and bool(flags & _SWMR_FLAG or missing)
        and missing <= min(_MOST_MISSING_BYTES, size // 2)
    )


def build_image(fill: Callable[[h5py.File], None]) -> bytes:
    """Build an HDF5 file in memory and return its bytes.

    The bytes can be written with plain writes, which fail cleanly on a full disk; HDF5 itself can crash the process
    if a new file cannot be written.
    """
    image = io.BytesIO()
    # Not the image of a file in the core driver: HDF5 1.14 returns it with a superblock of a wrong checksum, because
    # it clears the flag of the open file in the bytes without computing the checksum again.
    with h5py.File(image, "w", libver=LIBVER) as file:
        fill(file)
    return image.getvalue()


def write_mark(group: h5py.Group, kind: str, version: int) -> None:
    """Mark a group as holding ``kind`` in schema ``version``."""
    group.attrs["format"] = kind
    group.attrs["schema_version"] = version


def check_mark(group: h5py.Group, kind: str, version: int) -> None:
    """Check the mark of `write_mark`.

    Raises
    ------
    FileFormatError
        If the group has no mark, another mark, or a newer schema.
    """
    where = place(group)
    found = group.attrs.get("format")
    if not isinstance(found, str) or found != kind:
        raise FileFormatError(
            f"{where} is not a {kind.rpartition('.')[2]}",
            expected=f"attribute format = {kind!r}",
            got="no such attribute" if found is None else repr(found),
        )
    number = group.attrs.get("schema_version")
    if not isinstance(number, int | np.integer) or not 1 <= int(number) <= version:
        raise FileFormatError(
            f"{where} has an unsupported schema version",
            expected=f"attribute schema_version from 1 to {version}",
            got=number,
            hint="Update sci-stream to read files of a newer version.",
        )


def place(node: h5py.Group | h5py.Dataset) -> str:
    """Return the name of a group or dataset with its file, for messages."""
    return f"{node.file.filename}:{node.name}"


def read_array(group: h5py.Group, name: str, ndim: int) -> Array:
    """Read a complete numeric dataset.

    Raises
    ------
    FileFormatError
        If it is missing, of another rank, not numeric, or unreadable.
    """
    node = group.get(name)
    if not isinstance(node, h5py.Dataset):
        raise FileFormatError(f"{place(group)} lacks the dataset {name!r}", expected=f"a {ndim}-D dataset", got=node)
    if node.ndim != ndim or node.dtype.kind not in "buif":
        raise FileFormatError(
            f"The dataset {place(node)} has the wrong type",
            expected=f"{ndim}-D, numeric",
            got=f"shape {node.shape}, dtype {node.dtype}",
        )
    try:
        return np.asarray(node[()])
    except OSError as error:
        raise FileFormatError(f"The dataset {place(node)} is damaged", got=str(error).splitlines()[0]) from error


def read_attribute(group: h5py.Group, name: str, kind: type | tuple[type, ...], *, required: bool = True) -> Any:
    """Read a scalar attribute as a Python value of ``kind``; None if absent and not required.

    Raises
    ------
    FileFormatError
        If it is missing (and required) or of another type.
    """
    value = group.attrs.get(name)
    if value is None and not required:
        return None
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, kind):
        names = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
        raise FileFormatError(
            f"The attribute {name!r} of {place(group)} is missing or has the wrong type",
            expected=names,
            got="nothing" if value is None else repr(value),
        )
    return value


def write_text(group: h5py.Group, name: str, text: str) -> None:
    """Write text of any length as a fixed-length UTF-8 scalar dataset, which every HDF5 tool can read."""
    data = text.encode()
    # Fixed length: SWMR does not support variable-length data.
    group.create_dataset(name, data=data, dtype=h5py.string_dtype("utf-8", max(1, len(data))))


def read_text(group: h5py.Group, name: str) -> str:
    """Read text written by `write_text`.

    Raises
    ------
    FileFormatError
        If it is missing or not text.
    """
    node = group.get(name)
    if not isinstance(node, h5py.Dataset) or node.shape != () or h5py.check_string_dtype(node.dtype) is None:
        raise FileFormatError(f"{place(group)} lacks the text {name!r}", expected="a scalar string dataset", got=node)
    raw = node[()]
    try:
        return raw.decode() if isinstance(raw, bytes) else str(raw)
    except UnicodeDecodeError as error:
        raise FileFormatError(f"The text {place(node)} is not UTF-8", got=str(error)) from error
