"""One slot of a spool: a snapshot as the message that goes over the wire, and a state that is written last."""

from __future__ import annotations

import logging
import mmap
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sci_stream.errors import WireError
from sci_stream.model import Array, Snapshot
from sci_stream.wire import Limits, decode, encode

log = logging.getLogger(__name__)

FREE, HELD, DELIVERED = 0, 0x48454C44, 0x44454C56
"""States: no snapshot; one; one of which only the raw counts are not known to be safe."""

_SLOT = struct.Struct("<IIQIIQQ")  # state, crc of what follows, seq, length of the header, payloads, their lengths
_STATE = struct.Struct("<I")
_MOST_HEADER = 16 << 10
_MOST_PAYLOADS = 2


def slot_size(array_bytes: int) -> int:
    """Return the most that a snapshot with so many bytes of arrays takes."""
    return _SLOT.size + _MOST_HEADER + array_bytes


def snapshot_bytes(height_px: int, width_px: int, truth_frames: int) -> int:
    """Return the most that the arrays of a snapshot can take: counts and truth as float32."""
    return 4 * height_px * width_px * (1 + truth_frames)


@dataclass(frozen=True, slots=True)
class Packed:
    """A snapshot as it lies in a slot; its payloads share the snapshot's memory."""

    seq: int
    parts: Sequence[bytes | memoryview]

    @classmethod
    def of(cls, snapshot: Snapshot) -> Packed:
        """Pack a snapshot."""
        return cls(snapshot.id.seq, encode(snapshot)[1:])

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return _SLOT.size + sum(memoryview(part).nbytes for part in self.parts)

    def write(self, mapped: mmap.mmap, at: int, through: Array) -> None:
        """Write it to a slot that is free; ``through`` is the whole mapping as bytes."""
        header, *payloads = self.parts
        sizes = [memoryview(payload).nbytes for payload in payloads]
        padded = sizes + [0] * (_MOST_PAYLOADS - len(sizes))
        told = _SLOT.pack(FREE, 0, self.seq, len(header), len(sizes), *padded)[8:]
        crc = zlib.crc32(header, zlib.crc32(told))
        mapped[at : at + _SLOT.size] = struct.pack("<II", FREE, crc) + told
        end = at + _SLOT.size
        for part in self.parts:
            view = np.frombuffer(part, np.uint8)
            through[end : end + view.nbytes] = view
            end += view.nbytes
        set_state(mapped, at, HELD)


def set_state(mapped: mmap.mmap, at: int, state: int) -> None:
    """Say what is in a slot."""
    _STATE.pack_into(mapped, at, state)


def state_of(mapped: mmap.mmap, at: int) -> int:
    """Return what is in a slot."""
    state: int = _STATE.unpack_from(mapped, at)[0]
    return state


def read_slot(mapped: mmap.mmap, at: int, slot_bytes: int, series: str) -> Snapshot | None:
    """Return a copy of the snapshot in a slot; None if it is torn, or not of the series."""
    prefix = mapped[at : at + _SLOT.size]
    _, crc, seq, header_bytes, n_payloads, *sizes = _SLOT.unpack(prefix)
    end = _SLOT.size + header_bytes + sum(sizes[:n_payloads])
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
        log.warning("a slot of the spool holds no whole snapshot: %s", error)
        return None
    whole = isinstance(snapshot, Snapshot) and (snapshot.id.series, snapshot.id.seq) == (series, seq)
    return snapshot if isinstance(snapshot, Snapshot) and whole else None
