"""One spool slot: a snapshot encoded as its wire message, and a state that is written last."""

from __future__ import annotations

import logging
import mmap
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sci_stream.errors import WireError
from sci_stream.model import Array, SeriesInfo, Snapshot
from sci_stream.wire import Limits, decode, encode

log = logging.getLogger(__name__)

FREE, HELD, DELIVERED = 0, 0x48454C44, 0x44454C56
"""Slot states: empty; a snapshot; a delivered snapshot whose raw counts are not yet confirmed."""

_SLOT = struct.Struct("<IIQIIQQ")  # state, CRC of the rest, seq, header length, number of payloads, their lengths
_STATE = struct.Struct("<I")
# A snapshot's header is a few hundred bytes; chunk data may add kilobytes.
_MOST_HEADER = 16 << 10
_MOST_PAYLOADS = 2


def slot_size(info: SeriesInfo, *, truth: bool) -> int:
    """Return the slot size for a snapshot of a series: header, counts, and ground truth as float32."""
    frames = 1 + (info.n_frames if truth else 0)
    return _SLOT.size + _MOST_HEADER + 4 * info.height_px * info.width_px * frames


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
        padded = sizes + [0] * (_MOST_PAYLOADS - len(sizes))
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
    if n_payloads > _MOST_PAYLOADS or header_bytes > _MOST_HEADER or end > slot_bytes:
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
