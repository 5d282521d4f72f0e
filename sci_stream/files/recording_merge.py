"""The rows of several segments as one table: a snapshot's raw counts may be in one, its video in the next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sci_stream.files.recording_reader import Recording
from sci_stream.files.recording_rows import CHUNK_PREFIX, columns_of
from sci_stream.model import Array

_IDENTITY = ("epoch", "camera_frame_id", "camera_time_ns", "host_time_ns", "dropped_before")
"""Columns that say which snapshot it was; all others but the state say what became of it."""


def merge_rows(segments: Sequence[Recording]) -> tuple[int, dict[str, Array]]:
    """Return the sequence number of row 0, and every column over all segments.

    What a later segment says of a snapshot goes before what an earlier one says; what is stored adds up.
    """
    first_seq = min(segment.first_seq for segment in segments)
    stop = max(segment.first_seq + len(segment.rows["state"]) for segment in segments)
    columns = columns_of(segments[0].info)
    merged: dict[str, Array] = {column.name: np.full(stop - first_seq, column.fill, column.dtype) for column in columns}
    for segment in segments:
        rows = segment.rows
        offset = segment.first_seq - first_seq
        place = slice(offset, offset + len(rows["state"]))
        identified, settled = rows["epoch"] >= 0, rows["outcome"] != 0
        for name, values in merged.items():
            if name == "state":
                values[place] |= rows[name]
            else:
                chosen = identified if name in _IDENTITY or name.startswith(CHUNK_PREFIX) else settled
                if name in rows:  # a damaged file may lack what it promises
                    values[place][chosen] = rows[name][chosen]
    return first_seq, merged
