"""The format of a spool file: a header with the series, then slots of one encoded snapshot each; locking and errors."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sci_stream.errors import StorageError, WireError
from sci_stream.model import Array, SeriesInfo, Snapshot
from sci_stream.nodes.runtime.runtime_folder import make_private_folder, open_own
from sci_stream.wire import Limits, decode, encode

log = logging.getLogger(__name__)

_MAGIC = b"SCISPOOL"
_VERSION = 1
# magic, version, number of slots, bytes per slot, offset of the slots, length and CRC of the info
_HEAD = struct.Struct("<8sIIQIII")
# The mutable fields lie between the header and this offset: see `sci_stream.nodes.acquire.spool.spool`.
_INFO_AT = 512
MAX_SLOTS = 1 << 16


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """An open, locked spool file and its layout."""

    path: Path
    number: int
    slots: int
    slot_bytes: int
    begin: int

    @property
    def nbytes(self) -> int:
        """File length; the file is sparse."""
        return self.begin + self.slots * self.slot_bytes


def make_file(path: Path, info: SeriesInfo, *, slots: int, slot_bytes: int) -> SpoolFile:
    """Create a spool file, replacing an existing one.

    Raises
    ------
    StorageError
        If it cannot be created.
    """
    header = bytes(encode(info)[1])
    begin, slot_bytes = pages(_INFO_AT + len(header)), pages(slot_bytes)
    head = _HEAD.pack(_MAGIC, _VERSION, slots, slot_bytes, begin, len(header), zlib.crc32(header))
    # Written aside and renamed: a crash while creating must not leave a half-written spool under the real name.
    new = path.with_suffix(".new")
    with storage_errors(path):
        make_private_folder(path.parent)
        new.unlink(missing_ok=True)  # left by a crash
        number = open_own(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        file = SpoolFile(path, number, slots, slot_bytes, begin)
        try:
            _lock(file)
            os.ftruncate(number, file.nbytes)
            # Reserve the header now: on a full memory file system a later write through the mapping would raise SIGBUS.
            os.posix_fallocate(number, 0, begin)
            os.pwrite(number, head, 0)
            os.pwrite(number, header, _INFO_AT)
            new.rename(path)
        except (OSError, StorageError):
            os.close(number)
            raise
    return file


def open_file(path: Path) -> tuple[SpoolFile, SeriesInfo] | None:
    """Open an existing spool and return its series; None if there is none or it had to be quarantined.

    Raises
    ------
    StorageError
        If another process has it open, or the file system refuses.
    """
    if not path.exists():
        return None
    with storage_errors(path):
        number = open_own(path, os.O_RDWR)
        try:
            # The lock goes with the descriptor: it is released even if the process is killed.
            _lock(SpoolFile(path, number, 0, 0, 0))
            return _read_head(path, number)
        except (ValueError, WireError) as error:
            os.close(number)
            quarantine(path, str(error))
            return None
        except (OSError, StorageError):
            os.close(number)
            raise


def quarantine(path: Path, why: str) -> Path:
    """Rename a spool that cannot be resumed, because it is the only copy of its snapshots. Return the new path."""
    aside = path.with_name(f"{path.stem}-{path.stat().st_mtime_ns}.aside")
    path.rename(aside)
    log.error("cannot resume the interrupted series (%s); its spool is kept as %s", why, aside)
    return aside


def pages(nbytes: int) -> int:
    """Round up to a multiple of the page size."""
    return -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert OSError to StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"Cannot use the spool {path}",
            got=error.strerror,
            hint="Name a folder on a memory file system in [policy] spool that this user can write to.",
        ) from None


def _read_head(path: Path, number: int) -> tuple[SpoolFile, SeriesInfo]:
    head = os.pread(number, _HEAD.size, 0)
    if len(head) < _HEAD.size or head[: len(_MAGIC)] != _MAGIC:
        raise ValueError("not a spool file")
    _, version, slots, slot_bytes, begin, info_bytes, crc = _HEAD.unpack(head)
    if version != _VERSION:
        raise ValueError(f"expected version {_VERSION}, got {version}")
    file = SpoolFile(path, number, slots, slot_bytes, begin)
    header = os.pread(number, min(info_bytes, Limits().max_header_bytes), _INFO_AT)
    if slots > MAX_SLOTS or begin < _INFO_AT or zlib.crc32(header) != crc or file.nbytes != os.fstat(number).st_size:
        raise ValueError("corrupt header")
    info = decode([b"series_start", header])
    if not isinstance(info, SeriesInfo):
        raise ValueError("it names no series")
    return file, info


def _lock(file: SpoolFile) -> None:
    try:
        fcntl.flock(file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StorageError(
            f"The spool {file.path} is in use",
            expected="one acquire node per rig",
            got="another process that has it open",
            hint="Stop the other acquire node, or give this rig another name or [policy] spool.",
        ) from None


FREE, HELD, DELIVERED = 0, 0x48454C44, 0x44454C56
"""Slot states: empty; a snapshot; a delivered snapshot whose raw counts are not yet confirmed."""

_SLOT = struct.Struct("<IIQIIQQ")  # state, CRC of the rest, seq, header length, number of payloads, their lengths
_STATE = struct.Struct("<I")
# A snapshot's header is a few hundred bytes; chunk data may add kilobytes.
_MAX_HEADER = 16 << 10
_MAX_PAYLOADS = 2


def slot_size(info: SeriesInfo, *, truth: bool) -> int:
    """Return the slot size for a snapshot of a series: header, counts, and ground truth as float32."""
    frames = 1 + (info.n_frames if truth else 0)
    return _SLOT.size + _MAX_HEADER + 4 * info.height_px * info.width_px * frames


@dataclass(frozen=True, slots=True)
class Packed:
    """An encoded snapshot; its payloads share the snapshot's memory."""

    seq: int
    parts: Sequence[bytes | memoryview]

    @classmethod
    def of(cls, snapshot: Snapshot) -> Packed:
        """Encode a snapshot."""
        return cls(snapshot.id.seq, encode(snapshot)[1:])

    @property
    def nbytes(self) -> int:
        """Encoded size in bytes."""
        return _SLOT.size + sum(memoryview(part).nbytes for part in self.parts)

    def write(self, mapped: mmap.mmap, at: int, through: Array) -> None:
        """Write the snapshot to a free slot; ``through`` is the whole mapping as bytes."""
        # Bytes first, checksum in the prefix, state last: a crash at any point leaves either a valid slot or a free
        # one.
        header, *payloads = self.parts
        sizes = [memoryview(payload).nbytes for payload in payloads]
        padded = sizes + [0] * (_MAX_PAYLOADS - len(sizes))
        fields = _SLOT.pack(FREE, 0, self.seq, len(header), len(sizes), *padded)[8:]
        # Of prefix and header only: the payloads have a checksum of their own in the wire header.
        crc = zlib.crc32(header, zlib.crc32(fields))
        mapped[at : at + _SLOT.size] = struct.pack("<II", FREE, crc) + fields
        end = at + _SLOT.size
        for part in self.parts:
            view = np.frombuffer(part, np.uint8)
            through[end : end + view.nbytes] = view
            end += view.nbytes
        set_state(mapped, at, HELD)


def set_state(mapped: mmap.mmap, at: int, state: int) -> None:
    """Set the state of a slot."""
    _STATE.pack_into(mapped, at, state)


def state_of(mapped: mmap.mmap, at: int) -> int:
    """Return the state of a slot."""
    state: int = _STATE.unpack_from(mapped, at)[0]
    return state


def read_slot(mapped: mmap.mmap, at: int, slot_bytes: int, series: str) -> Snapshot | None:
    """Return a copy of the snapshot in a slot; None if it is corrupt or of another series."""
    prefix = mapped[at : at + _SLOT.size]
    _, crc, seq, header_bytes, n_payloads, *sizes = _SLOT.unpack(prefix)
    end = _SLOT.size + header_bytes + sum(sizes[:n_payloads])
    # Sizes are checked before the checksum, which would read beyond the slot if they are damaged.
    if n_payloads > _MAX_PAYLOADS or header_bytes > _MAX_HEADER or end > slot_bytes:
        return None
    at += _SLOT.size
    header = mapped[at : at + header_bytes]
    if zlib.crc32(header, zlib.crc32(prefix[8:])) != crc:
        return None
    at += header_bytes
    frames = [b"snapshot", header]
    for size in sizes[:n_payloads]:
        frames.append(mapped[at : at + size])
        at += size
    try:
        snapshot = decode(frames, Limits(max_payload_bytes=slot_bytes))
    except WireError as error:
        log.warning("corrupt spool slot ignored: %s", error)
        return None
    whole = isinstance(snapshot, Snapshot) and (snapshot.id.series, snapshot.id.seq) == (series, seq)
    return snapshot if isinstance(snapshot, Snapshot) and whole else None
