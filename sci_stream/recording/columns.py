"""The columns of a recording: one value per row, row = seq − first_seq, written in blocks."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import h5py
import numpy as np
from isal import isal_zlib

from sci_stream.errors import FileFormatError
from sci_stream.model import Array, Reconstruction, SeriesInfo
from sci_stream.optics.mask_errors import correction_length
from sci_stream.parameters import Value
from sci_stream.quantities import Column, Quantity, quantities_of, text_column
from sci_stream.recording.hdf5 import place, read_dataset, require_dataset
from sci_stream.recording.layout import FRAME_FLAGS, GROWTH_ROWS, RowState
from sci_stream.reports import CalibrationHealth, SolveReport, Start

# A block is one HDF5 chunk of a column. Eight blocks (4096 rows) in memory cover late and repeated
# rows; a row beyond them costs reading its block again.
BLOCK_ROWS = 512
# Of each block of each column, so that damage costs the block, written once the block is complete.
_CHECKSUMS = "rows_crc32"
_UNKNOWN = 2**32 - 1
# Late results fall into recent blocks; older ones are read again from the file.
_BLOCKS_KEPT = 8
_PIECE_ROWS = 64 * BLOCK_ROWS


Recorded = tuple[tuple[Quantity, Column], ...]
"""The recorded quantities of a report, with their columns."""


def _recorded(report: type) -> Recorded:
    return tuple(
        (quantity, quantity.column)
        for quantity in quantities_of(report)
        if quantity.column is not None
    )


SOLVE_QUANTITIES = _recorded(SolveReport)
HEALTH_QUANTITIES = _recorded(CalibrationHealth)

COLUMNS = (
    Column(
        "outcome",
        "u1",
        "0 none yet, 1 reconstructed, 2 raw_only, 3 dropped, 4 not_kept",
        required=True,
    ),
    text_column("reason", "S24", "reason why it was dropped or left raw", required=True),
    Column(
        "epoch",
        "i4",
        "starts of the camera before this snapshot; frame ids compare only within one",
        "",
        -1,
        True,
    ),
    Column("camera_frame_id", "i8", "frame id of the camera, -1 if none", "", -1, True),
    Column("camera_time_ns", "i8", "time of the camera's clock, -1 if none", "ns", -1, True),
    Column(
        "host_time_ns",
        "i8",
        "Unix time at which the host received the snapshot",
        "ns",
        required=True,
    ),
    Column("dropped_before", "i4", "frames lost by the camera just before this one", required=True),
    Column("redelivered", "i4", "number of times it was sent again", required=True),
    *(column for _, column in SOLVE_QUANTITIES),
    Column("finished_ns", "i8", "Unix time at which it was reconstructed", "ns", required=True),
    text_column("node", "S32", "name of the reconstruct node", required=True),
    *(column for _, column in HEALTH_QUANTITIES),
    Column(
        "masks_corrected", "u1", "1 if reconstructed with masks corrected by what snapshots showed"
    ),
    text_column("defects", "S96", "names of the defects of the data, separated by commas"),
    *(
        Column(f"{name}_crc32", "u4", f"CRC-32 of the stored {name}, in C order, little-endian")
        for name in FRAME_FLAGS
    ),
    Column("state", "u1", "flags: 1 raw counts are stored, 2 video is stored", required=True),
)

# Columns with the state of the masks and the data, from which the outcome of a solve follows.
EVIDENCE = ("defects", *(column.name for _, column in HEALTH_QUANTITIES))

_BY_NAME = {column.name: column for column in COLUMNS}
START = _BY_NAME["start"]

# Columns written after all others, in this order, since a kill may come between any two: a row has
# the content that its state declares and is complete once it has an outcome, so everything they
# refer to must be in the file first.
_WRITTEN_LAST = {"state": 1, "outcome": 2}

# Prefix of the columns of chunk data, as in ``chunk_ExposureTime``.
CHUNK_PREFIX = "chunk_"


# Columns of a snapshot's stored data, which may be in several segments.
STORED = ("state", *(f"{name}_crc32" for name in FRAME_FLAGS))


def columns_of(info: SeriesInfo) -> tuple[Column, ...]:
    """Return the columns of a series' recording: the standard ones,
    and one for each chunk value.
    """
    chunks = (
        Column(
            CHUNK_PREFIX + name,
            "f8",
            f"{name} from the chunk data of the frame, NaN if missing",
            unit,
            np.nan,
        )
        for name, unit in info.chunks.items()
    )
    width = f"S{correction_length(info.n_frames)}"
    columns = (
        dataclasses.replace(column, dtype=width) if column.name == "masks_at" else column
        for column in COLUMNS[:-1]
    )
    return (*columns, *chunks, COLUMNS[-1])


def chunk_cells(chunks: Mapping[str, Value], info: SeriesInfo) -> dict[str, float]:
    """Return the cells of a frame's chunk data."""
    return {
        CHUNK_PREFIX + name: float(value)
        for name, value in chunks.items()
        if name in info.chunks and isinstance(value, bool | int | float)
    }


def recorded_chunks(row: Mapping[str, Any]) -> dict[str, Value]:
    """Return the chunk data of a row."""
    return {
        name.removeprefix(CHUNK_PREFIX): float(value)
        for name, value in row.items()
        if name.startswith(CHUNK_PREFIX) and not np.isnan(value)
    }


OUTCOME_CODES = {"reconstructed": 1, "raw_only": 2, "dropped": 3, "not_kept": 4}
OUTCOME_NAMES = {code: name for name, code in OUTCOME_CODES.items()}
Cell = bool | int | float | bytes
"""A value of one column."""

_Block = dict[str, Array]


def _range(dtype: np.dtype[Any]) -> tuple[float, float] | None:
    """Return the least and the largest number that a column holds; None if it holds text."""
    if dtype.kind == "S":
        return None
    if dtype.kind == "f":
        return -float(np.finfo(dtype).max), float(np.finfo(dtype).max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _within(value: Any, limits: tuple[float, float] | None) -> Any:
    """Return a value as its column can hold it: numbers out of range become the nearest in range,
    NaN stays.
    """
    if limits is None:
        return value
    least, largest = limits
    if value < least:
        return least
    return largest if value > largest else value


def cell_text(cell: bytes) -> str:
    """Return the text of a column's cell; bytes that are not ASCII, in a damaged file, are
    replaced.
    """
    return cell.decode("ascii", "replace")


def reconstruction_cells(reconstruction: Reconstruction) -> dict[str, Cell]:
    """Return the cells that describe how a snapshot was reconstructed."""
    report = reconstruction.report
    health = report.health
    evidence: dict[str, Cell] = {}
    if health is not None:
        evidence = _report_cells(health, HEALTH_QUANTITIES)
        evidence["defects"] = ",".join(health.defect_names).encode("ascii", "replace")
    return {
        "outcome": OUTCOME_CODES["reconstructed"],
        "host_time_ns": reconstruction.times.acquired_ns,
        "dropped_before": reconstruction.dropped_before,
        "redelivered": reconstruction.redelivered,
        "finished_ns": reconstruction.times.finished_ns,
        "node": reconstruction.node.encode("ascii", "replace"),
        "masks_corrected": bool(report.masks_at.partition("~")[0]),
        **_report_cells(report, SOLVE_QUANTITIES),
        **evidence,
    }


def _report_cells(report: SolveReport | CalibrationHealth, quantities: Recorded) -> dict[str, Cell]:
    return {
        column.name: _cell(getattr(report, quantity.name), column)
        for quantity, column in quantities
    }


def _cell(value: bool | float | str | None, column: Column) -> Cell:
    if isinstance(value, str):  # text longer than its column is truncated by NumPy
        return column.code_of(value) if column.words else value.encode("ascii", "replace")
    return column.fill if value is None else value


_OPTIONAL = {field.name for field in dataclasses.fields(SolveReport) if field.default is None}


def solve_report(cell_of: Callable[[str], Any]) -> SolveReport:
    """Return the report that the cells of a row, by column, describe, without calibration health.

    Raises ValueError if the row is damaged: it has no start.
    """
    report: dict[str, Any] = {}
    for quantity, column in SOLVE_QUANTITIES:
        cell = cell_of(column.name)
        if quantity.name == "start":
            report["start"] = Start(column.word_of(cell))
        elif isinstance(cell, bytes):
            report[quantity.name] = cell_text(cell)
        elif quantity.name in _OPTIONAL:
            report[quantity.name] = None if math.isnan(cell) else cell
        else:
            report[quantity.name] = bool(cell) if column.is_flag else cell
    return SolveReport(**report)


def create_columns(file: h5py.File, info: SeriesInfo) -> None:
    """Create the columns of a series in a file."""
    group = file.create_group("rows")
    columns = columns_of(info)
    width = len(columns) + 1
    sums = file.create_dataset(
        _CHECKSUMS,
        (0, width),
        "u4",
        maxshape=(None, width),
        chunks=(1, width),
        fillvalue=_UNKNOWN,
    )
    sums.attrs["long_name"] = f"CRC-32 of {BLOCK_ROWS} rows of each column, and of these"
    # A fixed length: HDF5 keeps the other texts of attributes where it has no checksums.
    sums.attrs["columns"] = np.bytes_("\n".join(sorted(column.name for column in columns)).encode())
    for column in columns:
        node = group.create_dataset(
            column.name,
            (0,),
            column.dtype,
            maxshape=(None,),
            chunks=(BLOCK_ROWS,),
            fillvalue=column.fill,
        )
        node.attrs["long_name"] = column.meaning
        if column.units:
            node.attrs["units"] = column.units


def write_rows(file: h5py.File, rows: Mapping[str, Array]) -> None:
    """Write whole columns, as far as the file has them, and their checksums."""
    sums = []
    for name in _summed_columns(file):
        node = file["rows"][name]
        values = rows.get(name, np.full(len(rows["state"]), node.fillvalue, node.dtype))
        node.resize(len(values), 0)
        node[:] = values
        sums.append(_block_checksums(name, np.asarray(values, node.dtype)))
    file[_CHECKSUMS].resize(len(sums[0]), 0)
    for index, block in enumerate(zip(*sums, strict=True)):
        file[_CHECKSUMS][index] = _sealed(block)


def _sealed(sums: Sequence[int] | Array) -> Array:
    """Return the checksums of a block, followed by their own."""
    values = np.asarray(sums, np.uint32)
    return np.append(values, np.uint32(isal_zlib.crc32(np.ascontiguousarray(values))))


def _summed_columns(file: h5py.File) -> list[str]:
    names: list[str] = bytes(file[_CHECKSUMS].attrs["columns"]).decode().split("\n")
    return names


def _block_checksums(name: str, values: Array) -> list[int]:
    """Return the checksums of a column's blocks, of which the last is filled up."""
    fill = _BY_NAME[name].fill if name in _BY_NAME else np.nan
    blocks = np.full((-(-len(values) // BLOCK_ROWS), BLOCK_ROWS), fill, values.dtype)
    blocks.reshape(-1)[: len(values)] = values
    return [isal_zlib.crc32(block) for block in blocks]


def has_checksums(file: h5py.File) -> bool:
    """Return whether the rows of a file have checksums, unlike those of earlier versions."""
    return _CHECKSUMS in file


def damaged_blocks(file: h5py.File, rows: Mapping[str, Array], first: int) -> dict[str, set[int]]:
    """Return the blocks of rows that do not fit their checksums, by the name of their column.

    For ``rows``, from block ``first`` on, as they are in a file that was closed; those of earlier
    versions have no checksums.
    """
    if not has_checksums(file):
        return {}
    n_rows = len(rows["state"])
    blocks = range(first, first - (-n_rows // BLOCK_ROWS))
    try:
        stored = read_dataset(
            require_dataset(file, _CHECKSUMS, 2), slice(blocks.start, blocks.stop)
        )
    except FileFormatError:
        return {_CHECKSUMS: set(blocks)}
    # A file that was closed after a failed write lacks those of its last blocks.
    is_known = (stored != _UNKNOWN).any(axis=1)
    is_sound = np.array([np.array_equal(block, _sealed(block[:-1])) for block in stored], np.bool_)
    damaged = {_CHECKSUMS: np.flatnonzero(is_known & ~is_sound)}
    for name, known in zip(_summed_columns(file), stored.T[:-1], strict=True):
        if name not in rows:
            continue
        sums = np.asarray(_block_checksums(name, rows[name]), np.uint32)
        n_blocks = min(len(sums), len(known))
        differs = sums[:n_blocks] != known[:n_blocks]
        damaged[name] = np.flatnonzero(differs & is_sound[:n_blocks])
    return {name: set((places + first).tolist()) for name, places in damaged.items() if len(places)}


def read_rows(file: h5py.File, *, only_outcomes: bool, part: slice) -> dict[str, Array]:
    """Read a part of all columns by name, or only ``state`` and ``outcome``, cut to one length."""
    # State first: the writer flushes it last, so the other columns, read later, contain all it
    # refers to.
    state = _read_column(file, COLUMNS[-1], part, 0)
    columns = [column for column in COLUMNS[:-1] if column.name == "outcome" or not only_outcomes]
    rows = {column.name: _read_column(file, column, part, len(state)) for column in columns}
    if not only_outcomes:
        rows |= {name: read_dataset(file[f"rows/{name}"], part) for name in _chunk_columns(file)}
    rows["state"] = state
    shortest = min(map(len, rows.values()))
    return {name: values[:shortest] for name, values in rows.items()}


def reconcile(rows: Mapping[str, Array]) -> None:
    """Make the outcomes of a file with video consistent with its states.

    A kill, or a live reader, may come between the two writes. A snapshot is reconstructed if and
    only if its video is stored; otherwise a row that a kill left inconsistent would be counted and
    never sent again.
    """
    outcome = rows["outcome"]
    reconstructed = OUTCOME_CODES["reconstructed"]
    stored = (rows["state"] & RowState.VIDEO) != 0
    outcome[~stored & (outcome == reconstructed)] = 0
    outcome[stored] = reconstructed


def read_states(file: h5py.File) -> Array:
    """Read the states of all rows, piece by piece.

    HDF5 takes ten times the memory and twice the time for all at once, and no other thread can
    write meanwhile: measured with 10 million rows.
    """
    node = _node_of(file, COLUMNS[-1])
    assert node is not None  # required
    states = np.empty(len(node), node.dtype)
    for start in range(0, len(states), _PIECE_ROWS):
        part = slice(start, start + _PIECE_ROWS)
        states[part] = read_dataset(node, part)
    return states


def _chunk_columns(file: h5py.File) -> list[str]:
    names = [name for name in file["rows"] if name.startswith(CHUNK_PREFIX)]
    return [name for name in names if require_dataset(file, f"rows/{name}", 1).dtype.kind == "f"]


def _read_column(file: h5py.File, column: Column, part: slice, rows: int) -> Array:
    node = _node_of(file, column)
    return np.full(rows, column.fill, column.dtype) if node is None else read_dataset(node, part)


def _node_of(file: h5py.File, column: Column) -> h5py.Dataset | None:
    """Return the dataset of a column; None if it is not required and missing."""
    name = f"rows/{column.name}"
    if not column.required and name not in file:
        return None
    node = require_dataset(file, name, 1)
    if node.dtype.kind != np.dtype(column.dtype).kind:
        raise FileFormatError(
            f"{place(node)} has the wrong type", expected=column.dtype, got=node.dtype
        )
    return node


class RowTable:
    """Write columns in blocks that are kept in memory, so that a row needs no HDF5 call.

    Rows arrive nearly in order, but may be set again or late: a block that has left memory is read
    back.

    The file was made by `create_columns` for the same series.
    """

    def __init__(self, file: h5py.File, info: SeriesInfo) -> None:
        self._columns = sorted(
            columns_of(info), key=lambda column: _WRITTEN_LAST.get(column.name, 0)
        )
        self._datasets: dict[str, h5py.Dataset] = {
            column.name: file["rows"][column.name] for column in self._columns
        }
        self._sums: h5py.Dataset = file[_CHECKSUMS]
        self._ranges = {column.name: _range(np.dtype(column.dtype)) for column in self._columns}
        self._blocks = OrderedDict[int, _Block]()
        self._dirty: dict[int, set[str]] = {}
        self.rows = 0
        self._extent = 0

    def set(self, row: int, **values: Any) -> None:
        """Set columns of a row; visible to readers after the next `flush`."""
        index, offset = divmod(row, BLOCK_ROWS)
        block = self._block(index)
        # All or nothing: a row must not be left half set.
        cells = {name: _within(value, self._ranges[name]) for name, value in values.items()}
        for name, cell in cells.items():
            block[name][offset] = cell
        self._dirty.setdefault(index, set()).update(cells)
        self.rows = max(self.rows, row + 1)

    def get(self, row: int, name: str) -> Any:
        """Return the value of a column in a row."""
        index, offset = divmod(row, BLOCK_ROWS)
        return self._block(index)[name][offset]

    def _block(self, index: int) -> _Block:
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = self._load(index)
        self._blocks.move_to_end(index)
        return block

    def _load(self, index: int) -> _Block:
        first = index * BLOCK_ROWS
        if index < self._sums.shape[0]:
            self._sums[index] = _UNKNOWN  # it is about to change
        block: _Block = {}
        for column in self._columns:
            values = np.full(BLOCK_ROWS, column.fill, column.dtype)
            stored = (
                self._datasets[column.name][first : first + BLOCK_ROWS] if first < self.rows else ()
            )
            values[: len(stored)] = stored
            block[column.name] = values
        return block

    def flush(self) -> None:
        """Write the changes so that readers, and a process after a crash,
        see complete rows only.
        """
        if not self._dirty:
            return
        extent = -(-self.rows // GROWTH_ROWS) * GROWTH_ROWS
        # All columns grow before any is written: if a kill leaves one shorter, the others are empty
        # beyond its end.
        if self._extent < extent:
            for node in self._datasets.values():
                node.id.set_extent((extent,))
                node.flush()
            self._extent = extent
        changed = set[str]().union(*self._dirty.values())
        for name in (column.name for column in self._columns if column.name in changed):
            node = self._datasets[name]
            for index in sorted(self._dirty):
                # A block is a chunk: written in one system call, bypassing the HDF5 cache.
                if name in self._dirty[index]:
                    node.id.write_direct_chunk((index * BLOCK_ROWS,), self._blocks[index][name])
            node.flush()
        self._dirty.clear()
        while len(self._blocks) > _BLOCKS_KEPT:
            self._sum_block(oldest := next(iter(self._blocks)))
            del self._blocks[oldest]

    def _sum_block(self, index: int) -> None:
        """Write the checksums of a block that leaves the memory, or stays as it is."""
        if self._sums.shape[0] <= index:
            self._sums.resize(index + 1, 0)
        block = self._blocks[index]
        self._sums[index] = _sealed([isal_zlib.crc32(block[name]) for name in sorted(block)])

    def trim(self) -> None:
        """Truncate the columns to the existing rows, and write the last checksums."""
        for index in self._blocks:
            self._sum_block(index)
        for node in self._datasets.values():
            if node.shape[0] > self.rows:
                node.resize(self.rows, 0)
