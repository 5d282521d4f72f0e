"""Snapshots as records in the files of the spool."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Sequence

import msgpack

from sci_stream.delivery.outbox import Frames
from sci_stream.errors import WireError
from sci_stream.field_types import Chunks, Payload
from sci_stream.model import COUNTS, SeriesInfo, SnapshotId
from sci_stream.wire.messages import RawRow, RawSnapshots
from sci_stream.wire.payload import PayloadDescription, pack_payload, unpack_payload
from sci_stream.wire.schema import FieldError, MapSchema

# Before the parts of a snapshot: the CRC of their sizes and the header; the sizes of the header and
# of up to two payloads.
_CRC = struct.Struct("<I")
_SIZES = struct.Struct("<IQQ")
_PARTS_AT = _CRC.size + _SIZES.size
# The header of a snapshot that is only recorded, before its chunks as msgpack: type of its counts
# and their CRC, seq, epoch, the numbers of `RawRow`. A schema takes eight times as long.
_ROW = struct.Struct("<BIQIQQQQ")
_CHUNKS = MapSchema({"chunks": Chunks})
_PAYLOAD = Payload(COUNTS, 2)


def raw_parts(raw: RawSnapshots) -> Frames:
    """Return header and counts of one snapshot. Raises ValueError if they cannot be sent."""
    row = raw.rows[0]
    try:
        payload, counts = pack_payload(_PAYLOAD, "counts", raw.counts[0])
        header = _ROW.pack(
            COUNTS.index(payload.dtype),
            payload.crc32,
            raw.id.seq,
            raw.id.epoch,
            _number(row.host_time_ns),
            _number(row.camera_time_ns),
            _number(row.camera_frame_id),
            _number(row.dropped_before),
        )
        chunks = _CHUNKS.read(_CHUNKS.dump(row))["chunks"] if row.chunks else {}
    except (FieldError, struct.error) as error:
        raise ValueError(f"this snapshot cannot be sent: {error}") from None
    return [header + msgpack.packb(chunks), counts]


def raw_seq(parts: Sequence[bytes]) -> int:
    """Return the number of a snapshot that is only recorded. Raises ValueError if it has none."""
    try:
        return int(_ROW.unpack_from(parts[0])[2])
    except struct.error as error:
        raise ValueError(f"a header is too short: {error}") from None


def raw_snapshot(parts: Sequence[bytes], info: SeriesInfo) -> RawSnapshots:
    """Return the snapshot of header and counts, as `raw_parts`. Raises ValueError if damaged."""
    header, *payloads = parts
    try:
        dtype, crc, seq, epoch, *numbers = _ROW.unpack_from(header)
        shape = [info.height_px, info.width_px]
        described = PayloadDescription("counts", COUNTS[dtype], shape, crc)
        content = memoryview(payloads[0])
        counts = unpack_payload(_PAYLOAD, described, content, content.nbytes)
        chunks = msgpack.unpackb(header[_ROW.size :])
    except (IndexError, struct.error, FieldError, WireError) as error:
        raise ValueError(str(error)) from None
    host_time, camera_time, frame_id, dropped = (n >> 1 if n else None for n in numbers)
    row = RawRow(host_time or 0, camera_time, frame_id, dropped or 0, chunks)
    return RawSnapshots.one(SnapshotId(info.series, epoch, seq), counts, row, info)


def _number(count: int | None) -> int:
    """Return a count of at most 63 bits, or None, as a number that 64 bits hold."""
    return 0 if count is None else count << 1 | 1


def write_record(number: int, at: int, parts: Frames) -> int:
    """Write the header and payloads of a snapshot into a file; return their length.

    Raises OSError, also if there is no room for all.
    """
    lengths = [memoryview(part).nbytes for part in parts]
    sizes = _SIZES.pack(*lengths, *[0] * (3 - len(lengths)))
    # The payloads have checksums of their own in the header.
    crc = _CRC.pack(zlib.crc32(parts[0], zlib.crc32(sizes)))
    length = _PARTS_AT + sum(lengths)
    if os.pwritev(number, [crc, sizes, *parts], at) != length:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return length


def read_record(content: bytes, at: int) -> tuple[list[bytes], int]:
    """Return the header and payloads that begin ``at`` a byte, none if they are not complete; and
    where they end.
    """
    sizes = content[at + _CRC.size : at + _PARTS_AT]
    if len(sizes) < _SIZES.size:
        return [], at
    end = at + _PARTS_AT
    parts = []
    for size in filter(None, _SIZES.unpack(sizes)):
        parts.append(content[end : end + size])
        end += size
    crc = _CRC.pack(zlib.crc32(b"".join(parts[:1]), zlib.crc32(sizes)))
    # A file that was used before may be longer.
    if end > len(content) or not content.startswith(crc, at):
        return [], at
    return parts, end
