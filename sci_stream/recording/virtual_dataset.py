"""A single file over the segments of a recording: ``run.nxs`` next to ``run.h5``, ``run_001.h5``, ….

It is a recording whose ``raw`` and ``video`` are virtual datasets: the data remain in the segments, so the files must
stay together. Any HDF5 program shows the whole series in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np

from sci_stream.errors import FileFormatError
from sci_stream.file_guard import complete_output
from sci_stream.recording.calibration_file import write_calibration
from sci_stream.recording.columns import columns_of, describe_column
from sci_stream.recording.hdf5 import LIBVER
from sci_stream.recording.layout import (
    FRAME_FLAGS,
    LEDGER_BYTES,
    LedgerDocument,
    RowState,
    describe_file,
    describe_frames,
    ledger_document,
)
from sci_stream.recording.nexus import create_nexus
from sci_stream.recording.series import RecordedSeries


def write_virtual_recording(path: Path) -> Path:
    """Write the virtual recording over the segments that begin with ``path``, replacing an older one.

    Raises
    ------
    FileFormatError
        If a segment was left by a crash: most programs cannot read such a file through a virtual dataset.
    StorageError
        If the file cannot be written.
    """
    out = path.with_suffix(".nxs")
    with RecordedSeries(path) as series:
        for segment in series.segments:
            if not segment.finished:
                raise FileFormatError(
                    f"{segment.path} was not closed cleanly",
                    hint=f"Run first: sci-stream repair {segment.path}",
                )
        with complete_output(out, replace=True) as partial, h5py.File(partial, "w", libver=LIBVER) as file:
            _fill(file, series)
    return out


def _fill(file: h5py.File, series: RecordedSeries) -> None:
    info = series.info
    describe_file(file, info, series.first_seq, series.parent)
    file.attrs["segments"] = [segment.path.name for segment in series.segments]
    # Readers take this file for a recording, so it needs everything that a recording has.
    document: LedgerDocument = {"clean": series.finished, "time_ns": 0, "ledger": series.ledger}
    file.create_dataset("ledger", data=ledger_document(document, series.notes), chunks=(LEDGER_BYTES,))
    write_calibration(file.create_group("calibration"), series.calibration)
    rows = file.create_group("rows")
    for column in columns_of(info):
        describe_column(rows.create_dataset(column.name, data=series.rows[column.name]), column)
    for name in FRAME_FLAGS:
        if (dtype := _common_dtype(series, name)) is not None:
            _virtual(file, series, name, dtype)
    create_nexus(file, info, series.calibration)


def _common_dtype(series: RecordedSeries, name: str) -> np.dtype[np.generic] | None:
    """Return the type of the stored frames, which must be the same in all segments: readers scale uint16."""
    dtypes = {dtype for segment in series.segments if (dtype := segment.stored_dtype(name)) is not None}
    if len(dtypes) > 1:
        raise FileFormatError(
            f"The segments of {series.path} store {name} of different types",
            got=", ".join(sorted(map(str, dtypes))),
            hint="Open the first segment instead of one file over all of them.",
        )
    return dtypes.pop() if dtypes else None


def _virtual(file: h5py.File, series: RecordedSeries, name: str, dtype: np.dtype[np.generic]) -> None:
    info = series.info
    shape = (info.height_px, info.width_px) if name == "raw" else (info.n_frames, info.height_px, info.width_px)
    layout = h5py.VirtualLayout((len(series.rows["state"]), *shape), dtype)
    for number, start, stop in _owners(series, FRAME_FLAGS[name]):
        segment = series.segments[number]
        rows = len(segment.rows["state"])
        source = h5py.VirtualSource(segment.path.name, name, shape=(rows, *shape), dtype=dtype)
        offset = segment.first_seq - series.first_seq
        # Rows of no segment belong to the preceding one here, whose file does not have them.
        end = min(stop, offset + rows)
        layout[start:end] = source[start - offset : end - offset]
    describe_frames(file.create_virtual_dataset(name, layout, fillvalue=0))


def _owners(series: RecordedSeries, flag: RowState) -> Iterator[tuple[int, int, int]]:
    """Yield (segment, start, stop): the rows that a segment contains; rows of no segment are added to the preceding."""
    owner = np.full(len(series.rows["state"]), -1)
    for number, segment in enumerate(series.segments):
        state = segment.rows["state"]
        offset = segment.first_seq - series.first_seq
        mine = owner[offset : offset + len(state)]
        mine[((state & flag) != 0) & (mine < 0)] = number
    held = np.flatnonzero(owner >= 0)
    if not len(held):
        return
    # Long runs, even across missing snapshots: readers are slow with many small mappings.
    stretches = held[np.flatnonzero(np.diff(owner[held], prepend=-1))]
    for start, stop in pairwise([*stretches, held[-1] + 1]):
        yield int(owner[start]), int(start), int(stop)
