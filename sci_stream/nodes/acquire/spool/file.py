"""The file of a spool: its beginning, which says whose it is, and the locks and errors around it."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sci_stream.errors import StorageError, WireError
from sci_stream.model import SeriesInfo
from sci_stream.wire import Limits, decode, encode

log = logging.getLogger(__name__)

_MAGIC = b"SCISPOOL"
_VERSION = 1
_HEAD = struct.Struct("<8sIIQIII")  # magic, version, slots, bytes a slot, begin of slots, length and crc of the info
_INFO_AT = 512
"""Between the head and this lies what changes while the series runs: see `sci_stream.nodes.acquire.spool.spool`."""


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A spool's open and locked file, and how it is laid out."""

    path: Path
    number: int
    slots: int
    slot_bytes: int
    begin: int

    @property
    def nbytes(self) -> int:
        """Its length; most of it takes no room until it is used."""
        return self.begin + self.slots * self.slot_bytes


def make_file(path: Path, info: SeriesInfo, *, slots: int, slot_bytes: int) -> SpoolFile:
    """Make a spool's file in place of one that may be there.

    Raises
    ------
    StorageError
        If it cannot be made.
    """
    told = bytes(encode(info)[1])
    begin, slot_bytes = pages(_INFO_AT + len(told)), pages(slot_bytes)
    head = _HEAD.pack(_MAGIC, _VERSION, slots, slot_bytes, begin, len(told), zlib.crc32(told))
    new = path.with_suffix(".new")
    with said_of(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        file = SpoolFile(path, number, slots, slot_bytes, begin)
        try:
            _lock(file)
            os.ftruncate(number, file.nbytes)
            os.posix_fallocate(number, 0, begin)
            os.pwrite(number, head, 0)
            os.pwrite(number, told, _INFO_AT)
            new.rename(path)
        except (OSError, StorageError):
            os.close(number)
            raise
    return file


def open_file(path: Path) -> tuple[SpoolFile, SeriesInfo] | None:
    """Open a spool that was left, and say of which series; None if there is none, or it had to be moved aside.

    Raises
    ------
    StorageError
        If another process has it open, or the file system refuses.
    """
    if not path.exists():
        return None
    with said_of(path):
        number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _lock(SpoolFile(path, number, 0, 0, 0))
            return _read_head(path, number)
        except (ValueError, WireError) as error:
            os.close(number)
            set_aside(path, str(error))
            return None
        except (OSError, StorageError):
            os.close(number)
            raise


def set_aside(path: Path, why: str) -> Path:
    """Move a spool that cannot be taken up out of the way: it is the only copy of what is in it. Return where to."""
    aside = path.with_name(f"{path.stem}-{path.stat().st_mtime_ns}.aside")
    path.rename(aside)
    log.error("what a series that was not ended left behind cannot be taken up (%s); it is kept as %s", why, aside)
    return aside


def pages(nbytes: int) -> int:
    """Return the next multiple of what can be mapped."""
    return -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


@contextlib.contextmanager
def said_of(path: Path) -> Iterator[None]:
    """Turn the system's errors into ours."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"The spool {path} cannot be used",
            got=error.strerror,
            hint="Name a folder on a memory file system in [policy] spool that this user can write to.",
        ) from None


def _read_head(path: Path, number: int) -> tuple[SpoolFile, SeriesInfo]:
    head = os.pread(number, _HEAD.size, 0)
    if len(head) < _HEAD.size or head[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it is not a spool")
    _, version, slots, slot_bytes, begin, told_bytes, crc = _HEAD.unpack(head)
    if version != _VERSION:
        raise ValueError(f"expected version {_VERSION}, got {version}")
    file = SpoolFile(path, number, slots, slot_bytes, begin)
    told = os.pread(number, min(told_bytes, Limits().max_header_bytes), _INFO_AT)
    if zlib.crc32(told) != crc or file.nbytes != os.fstat(number).st_size:
        raise ValueError("its beginning is damaged")
    info = decode([b"series_start", told])
    if not isinstance(info, SeriesInfo):
        raise ValueError("it names no series")
    return file, info


def _lock(file: SpoolFile) -> None:
    try:
        fcntl.flock(file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StorageError(
            f"The spool {file.path} is in use",
            expected="one acquire node for a rig",
            got="another process that has it open",
            hint="Stop the other acquire node, or give this rig another name or [policy] spool.",
        ) from None
