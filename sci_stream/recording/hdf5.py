"""Shared handling of HDF5 files: opening, format marks, validated reading.

A file of this format can name other files, whose bytes then appear as its own content: external
links, external storage, virtual datasets. Such files are refused, or a recording could make its
reader export any file of its user.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import io
import math
import os
import re
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
from isal import isal_zlib

from sci_stream.errors import FileFormatError, require_optional
from sci_stream.file_guard import (
    NO_LOCKS,
    SMALL_BYTES,
    in_words,
    lock,
    reading,
    require_memory,
    require_ratio,
    require_regular,
)
from sci_stream.model import Array

with contextlib.suppress(ImportError):
    # Registers the filters of compressed recordings with HDF5.
    importlib.import_module("hdf5plugin")

# The oldest format with SWMR: the oldest readers can open our files, and live readers work.
LIBVER = ("v110", "v110")

# The superblock after the HDF5 file format specification: signature, version, consistency flags,
# end of file.
_SUPERBLOCK = struct.Struct("<8sB2xB16xQ")
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
# Version 3 is that of files for single-writer multiple-reader access, which recordings are.
_SUPERBLOCK_VERSION = 3
_WRITE_FLAG = 0x01
_SWMR_FLAG = 0x04
_MAX_MISSING_BYTES = 16 << 20
# HDF5 doubles its waiting time with each attempt to read metadata, from a nanosecond: 30 take a
# second, and its default of 100 never ends. A writer is interrupted in the middle of a write for
# milliseconds.
_READ_ATTEMPTS = 30
# HDF5's error where this process has the file open without a lock.
_OPEN_WITHOUT_LOCK = "file locking flag values don't match"
_FEW_ATTEMPTS = "sci_stream_few_attempts"
# Every object is checked before the first is read; ours have a hundred, networks in MATLAB files a
# few hundred.
_MAX_OBJECTS = 100_000


class _File(h5py.File):  # type: ignore[misc]  # h5py has no types
    """An HDF5 file that is closed without harm to this process when its disk fails."""

    def close(self) -> None:
        """Close the file; raise OSError or RuntimeError if its last changes cannot be written.

        HDF5 1.14 and 2.0 crash after they have failed to close a file. So such a file stays open in
        them, and what they still write to it goes to memory.
        """
        try:
            if self.id.valid:
                self.flush()
        except (OSError, RuntimeError):
            memory = os.memfd_create("unwritable")
            os.dup2(memory, self.id.get_vfd_handle())
            os.close(memory)
            h5py.h5i.inc_ref(self.id)
            raise
        super().close()


def open_for_reading(path: Path, what: str, *, trusted: bool = False) -> h5py.File:
    """Open an HDF5 file for reading, even while it is being written or after its writer was killed.

    ``what`` is its kind in error messages. A ``trusted`` file has been opened and checked before.

    Raises `FileFormatError` if the file is missing, is not HDF5, is truncated, or refers to other
    files.
    """
    require_regular(path, f"a {what}")
    if not trusted:
        # Opened for the check alone: HDF5 keeps the metadata that it has seen, and data that a live
        # writer appends between the check and the first read would be missing from some datasets.
        with _open(path, what) as file, reading(path, f"a {what}"):
            _require_self_contained(file, path)
    return _open(path, what)


def open_file(path: Path, mode: str, **options: Any) -> h5py.File:
    """Open an HDF5 file; without a lock where its disk has none."""
    try:
        return _File(path, mode, **options)
    except OSError as error:
        if error.errno not in NO_LOCKS and _OPEN_WITHOUT_LOCK not in str(error):
            raise
        return _File(path, mode, locking=False, **options)


def require_recording_disk(folder: Path) -> bool:
    """Write, lock and read a small file as a recording; return whether the disk has file locks.

    Raises OSError or `FileFormatError` if one of these fails.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".sci-stream-") as place:
        path = Path(place) / "probe.h5"
        path.write_bytes(
            build_image(lambda file: file.create_dataset("rows", data=[0], maxshape=(None,)))
        )
        with open_file(path, "r+", libver=LIBVER) as file:
            file.swmr_mode = True
            has_locks = lock(file.id.get_vfd_handle(), shared=True)
            with open_for_reading(path, "recording") as reader:
                read_array(reader, "rows", 1)
    return has_locks


def _open(path: Path, what: str) -> h5py.File:
    try:
        # SWMR mode ignores the flag of a writer, alive or killed. For other files it would be
        # wrong: HDF5 takes damage for a write in progress, waits and reads again.
        if not _is_unfinished(path):
            return open_file(path, "r")
        attempts = _READ_ATTEMPTS if is_open_for_writing(path) else 1
        return open_file(path, "r", swmr=True, driver=_FEW_ATTEMPTS, attempts=attempts)
    except Exception as error:  # h5py's error depends on the damaged place
        raise FileFormatError(
            f"{path} cannot be opened as a {what}",
            expected=f"an HDF5 file with a {what}",
            got=in_words(error),
            hint="The file has another format or is damaged.",
        ) from error


def _use_few_attempts(access: Any, attempts: int) -> None:
    """Set up file access as by default, with fewer attempts to read metadata; called by h5py."""
    # Not the driver of writers: HDF5 gives a reader the file of a writer in this process, with what
    # the writer has not flushed, and with its errors.
    access.set_fapl_log(b"", 0, 0)
    if (limit_attempts := _limit_attempts()) is not None:
        limit_attempts(access.id, attempts)


@functools.cache
def _limit_attempts() -> Callable[[int, int], int] | None:
    """Return HDF5's ``H5Pset_metadata_read_attempts``, which h5py lacks; None where the library is
    not found.
    """
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        (library,) = {
            line.split()[-1] for line in maps.splitlines() if re.search(r"/libhdf5[-.][^/]*$", line)
        }
        function = ctypes.CDLL(library).H5Pset_metadata_read_attempts
    except (OSError, ValueError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int64, ctypes.c_uint)
    function.restype = ctypes.c_int
    return cast(Callable[[int, int], int], function)


def _require_self_contained(file: h5py.File, path: Path) -> None:
    """Raise if any object of a file has its data elsewhere."""
    links: list[tuple[bytes, int]] = []

    def collect(name: bytes, info: Any) -> bool | None:
        links.append((name, info.type))
        return (
            len(links) > _MAX_OBJECTS or None
        )  # anything but None ends the walk; exceptions would be lost

    file.id.links.visit(collect, info=True)
    if len(links) > _MAX_OBJECTS:
        raise FileFormatError(f"{path} has too many objects", expected=f"at most {_MAX_OBJECTS}")
    for name, kind in links:
        where = f"{path}:/{name.decode(errors='replace')}"
        if kind not in (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT):
            raise _refers_to_another_file(where, "an external link")
        # Soft links stay within the file, whose every hard link is checked. By h5py's low-level
        # objects, which take a third of the time of the others.
        if kind == h5py.h5l.TYPE_HARD and isinstance(
            node := h5py.h5o.open(file.id, name), h5py.h5d.DatasetID
        ):
            require_own_data(node, where)


def require_own_data(node: h5py.h5d.DatasetID, where: str) -> None:
    """Raise if the data of a dataset lie in other files, or a chunk expands to a bomb.

    Of datasets that only a reference names; all others are checked when their file is opened.
    """
    creation = node.get_create_plist()
    if creation.get_external_count():
        raise _refers_to_another_file(where, "external storage")
    layout = creation.get_layout()
    if layout == h5py.h5d.VIRTUAL:
        sources = {source.file_name for source in h5py.Dataset(node).virtual_sources()} - {
            "."
        }  # the file itself
        if sources:
            raise _refers_to_another_file(where, f"a virtual dataset over {min(sources)!r}")
    if layout != h5py.h5d.CHUNKED:
        return
    chunk_bytes = math.prod(creation.get_chunk()) * node.get_type().get_size()
    # Counting the stored bytes takes time in proportion to the number of chunks.
    if chunk_bytes > SMALL_BYTES and (stored := node.get_storage_size()):
        require_ratio(chunk_bytes, stored, where)


def _refers_to_another_file(where: str, got: str) -> FileFormatError:
    return FileFormatError(
        f"{where} has its data in another file",
        expected="data in the file itself",
        got=got,
        hint="Refused, because it could show any file of this user. Copy the data into one file: "
        "h5repack, or h5py.",
    )


def read_dataset(node: h5py.Dataset, index: Any = ()) -> Array:
    """Read a dataset or a part of it, after checking its declared size against the stored bytes.

    Raises `FileFormatError` if it is too large for the memory, declares more than it stores, or is
    damaged.
    """
    where = place(node)
    _require_filters(node)
    with reading(where, "a dataset"):
        items = math.prod(node.shape)
        if isinstance(index, tuple) and index and isinstance(index[0], int | np.integer):
            items //= max(1, node.shape[0])  # one row
        if isinstance(index, slice):
            items = items * len(range(*index.indices(len(node)))) // max(1, len(node))
        n_bytes = items * node.dtype.itemsize
        if n_bytes > SMALL_BYTES:
            require_memory(n_bytes, where)
            if not node.is_virtual:
                require_ratio(n_bytes, node.id.get_storage_size(), where)
        return np.asarray(node[index])


def _require_filters(node: h5py.Dataset) -> None:
    """Check that HDF5 can decompress a dataset; without the filter its error is the same as for a
    damaged chunk.
    """
    stored = node.id.get_create_plist()
    if any(
        not h5py.h5z.filter_avail(stored.get_filter(i)[0]) for i in range(stored.get_nfilters())
    ):
        require_optional(
            "hdf5plugin", "compression", f"Reading the compressed dataset {place(node)}"
        )


def missing_bytes(path: Path) -> int:
    """Return how many bytes a file lacks at its end, as its superblock counts them."""
    return _superblock(path)[1]


def is_open_for_writing(path: Path) -> bool:
    """Return whether a writer has the file open, or was killed with it open."""
    head = _superblock(path)[0]
    return head is not None and bool(head & (_WRITE_FLAG | _SWMR_FLAG))


def _is_unfinished(path: Path) -> bool:
    """Return whether an SWMR writer has the file open, or was killed with it open, and the file is
    nearly complete.
    """
    flags, missing, size = _superblock(path)
    # A full disk truncates a file by its last write, which is harmless; more missing than this is a
    # broken copy.
    return (
        flags is not None
        and bool(flags & _SWMR_FLAG or missing)
        and missing <= min(_MAX_MISSING_BYTES, size // 2)
    )


def _superblock(path: Path) -> tuple[int | None, int, int]:
    """Return a file's consistency flags (None if it has none), the number of bytes missing at its
    end, and its size.
    """
    with path.open("rb") as file:
        head = file.read(_SUPERBLOCK.size)
        size = file.seek(0, os.SEEK_END)
    if len(head) < _SUPERBLOCK.size:
        return None, 0, size
    signature, version, flags, end = _SUPERBLOCK.unpack(head)
    if signature != _SIGNATURE or version != _SUPERBLOCK_VERSION:
        return None, 0, size
    return flags, max(0, end - size), size


h5py.register_driver(_FEW_ATTEMPTS, _use_few_attempts)


def build_image(fill: Callable[[h5py.File], None]) -> bytes:
    """Build an HDF5 file in memory and return its bytes.

    The bytes can be written with plain writes, which fail cleanly on a full disk; HDF5 itself can
    crash the process if a new file cannot be written.
    """
    image = io.BytesIO()
    # Not the image of a file in the core driver: HDF5 1.14 returns it with a superblock of a wrong
    # checksum, because it clears the flag of the open file in the bytes without computing the
    # checksum again.
    with h5py.File(image, "w", libver=LIBVER) as file:
        fill(file)
    return image.getvalue()


def write_mark(group: h5py.Group, kind: str, version: int) -> None:
    """Mark a group as holding ``kind`` in schema ``version``."""
    group.attrs["format"] = kind
    group.attrs["schema_version"] = version


def check_mark(group: h5py.Group, kind: str, version: int) -> None:
    """Check the mark of `write_mark`.

    Raises `FileFormatError` if the group has no mark, another mark, or a newer schema.
    """
    where = place(group)
    with reading(where, "a group"):
        mark = group.attrs.get("format")
        number = group.attrs.get("schema_version")
    if not isinstance(mark, str) or mark != kind:
        raise FileFormatError(
            f"{where} is not a {kind.rpartition('.')[2]}",
            expected=f"attribute format = {kind!r}",
            got="no such attribute" if mark is None else repr(mark),
        )
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


def require_dataset(group: h5py.Group, name: str, ndim: int) -> h5py.Dataset:
    """Return a dataset; raise FileFormatError if it is missing or of another rank."""
    node = group.get(name)
    if not isinstance(node, h5py.Dataset) or node.ndim != ndim:
        raise FileFormatError(
            f"{place(group)} lacks the dataset {name!r}", expected=f"a {ndim}-D dataset", got=node
        )
    return node


def read_array(group: h5py.Group, name: str, ndim: int) -> Array:
    """Read a complete numeric dataset.

    Raises `FileFormatError` if it is missing, of another rank, not numeric, or unreadable.
    """
    node = require_dataset(group, name, ndim)
    if node.dtype.kind not in "buif":
        raise FileFormatError(
            f"The dataset {place(node)} has the wrong type", expected="numbers", got=node.dtype
        )
    return read_dataset(node)


def read_attribute(
    group: h5py.Group, name: str, kind: type | tuple[type, ...], *, required: bool = True
) -> Any:
    """Read a scalar attribute as a Python value of ``kind``; None if absent and not required.

    Raises `FileFormatError` if it is missing (and required) or of another type.
    """
    with reading(place(group), "a group"):
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
    """Write text of any length as a fixed-length UTF-8 scalar dataset, which every HDF5 tool can
    read.
    """
    data = text.encode()
    # Fixed length: SWMR does not support variable-length data.
    kind = h5py.string_dtype("utf-8", max(1, len(data)))
    node = group.create_dataset(name, data=data, dtype=kind)
    # HDF5 itself sums metadata, which attributes are, and no data.
    node.attrs["crc32"] = isal_zlib.crc32(data)


def read_text(group: h5py.Group, name: str) -> str:
    """Read text written by `write_text`.

    Raises `FileFormatError` if it is missing or not text.
    """
    node = group.get(name)
    if (
        not isinstance(node, h5py.Dataset)
        or node.shape != ()
        or h5py.check_string_dtype(node.dtype) is None
    ):
        raise FileFormatError(
            f"{place(group)} lacks the text {name!r}", expected="a scalar string dataset", got=node
        )
    with reading(place(node), "text"):
        require_memory(node.dtype.itemsize, place(node))
        raw = node[()]
        data = raw if isinstance(raw, bytes) else str(raw).encode()
        stored = node.attrs.get("crc32")  # files of earlier versions have none
        if stored is not None and stored != isal_zlib.crc32(data):
            raise FileFormatError(f"{place(node)} is damaged", got="another checksum")
        return data.decode()
