"""Messages of many snapshots that are only recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgpack

from sci_stream.wire.header import MAX_PAYLOADS
from sci_stream.wire.messages import RawSnapshots

# Snapshots of one message wait for each other in the sockets, and in the recorder.
_MAX_BYTES = 4 << 20
# Numbers of the camera in a header of at most 256 KiB; those of one snapshot have up to 110 KiB.
_MAX_CHUNK_BYTES = 64 << 10


def in_groups(snapshots: Iterable[RawSnapshots]) -> Iterator[RawSnapshots]:
    """Join single snapshots, in order, as long as their numbers continue and a message has room."""
    group: list[RawSnapshots] = []
    n_bytes = chunk_bytes = 0
    for one in snapshots:
        place = (one.id.epoch, one.id.seq)
        follows = bool(group) and place == (group[-1].id.epoch, group[-1].id.seq + 1)
        has_room = n_bytes < _MAX_BYTES and chunk_bytes < _MAX_CHUNK_BYTES
        if group and not (follows and has_room and len(group) < MAX_PAYLOADS):
            yield group[0].joined(group[1:])
            group = []
            n_bytes = chunk_bytes = 0
        group.append(one)
        n_bytes += one.counts[0].nbytes
        chunk_bytes += len(msgpack.packb(one.rows[0].chunks))
    if group:
        yield group[0].joined(group[1:])
