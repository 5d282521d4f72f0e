"""The columns of a recording: one value per row, row = seq − first_seq, written in blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np

from sci_stream.model import Array, CalibrationHealth, JsonObject, Reconstruction, SeriesInfo
from sci_stream.optics.mask_errors import MOST_MASKS, correction_length
from sci_stream.parameters import Value
from sci_stream.storage.recording.layout import GROWTH_ROWS

# A block is one HDF5 chunk of a column. Eight blocks (4096 rows) in memory cover late and repeated rows; a row beyond
# them costs reading its block again.
BLOCK_ROWS = 512
# Late results fall into recent blocks; older ones are read again from the file.
_BLOCKS_KEPT = 8


@dataclass(frozen=True, slots=True)
class Column:
    """One column: name, type, value of unwritten rows, meaning, unit."""

    name: str
    dtype: str
    fill: Any
    meaning: str
    units: str = ""
    later: bool = False
    """Whether older recordings may lack the column; they then read as unwritten."""


def _health(name: str, meaning: str, dtype: str = "f4", fill: float = np.nan, units: str = "") -> Column:
    return Column(name, dtype, fill, meaning, units, later=True)


_HEALTH_COLUMNS = (
    _health("mask_shift_x_px", "shift of the masks to the right since calibration; NaN if not measured", units="pixel"),
    _health("mask_shift_y_px", "shift of the masks downwards since calibration; NaN if not measured", units="pixel"),
    _health("mask_match", "fraction of the measurement explained by the masks, 0-1; NaN if not measured"),
    _health("mask_contrast", "modulation by the masks relative to calibration; NaN if not measured"),
    _health("mask_order", "0 unknown, 1 forward, 2 reversed, 3 rotated, 4 shuffled", "u1", 0),
    _health("masks_corrected", "1 if reconstructed with masks corrected by what snapshots showed", "u1", 0),
    _health("below_black_fraction", "pixels darker than the dark frame; NaN if not measured"),
    _health("brightness", "mean of the video estimated from the measurement, 0-1; NaN if not measured"),
    _health("camera_gain", "exposure and amplification relative to calibration; NaN if unknown"),
    _health("mask_shift_sd_px", "standard deviation of the shift; NaN if not measured", units="pixel"),
    _health("mask_error_log_odds", "log odds for errors of single masks, corrected from 5 on; NaN if not estimated"),
)

COLUMNS = (
    Column("outcome", "u1", 0, "0 none yet, 1 reconstructed, 2 raw_only, 3 dropped"),
    Column("reason", "S24", b"", "reason why it was dropped or left raw"),
    Column("epoch", "i4", -1, "starts of the camera before this snapshot; frame ids compare only within one"),
    Column("camera_frame_id", "i8", -1, "frame id of the camera, -1 if none"),
    Column("camera_time_ns", "i8", -1, "time of the camera's clock, -1 if none", "ns"),
    Column("host_time_ns", "i8", 0, "Unix time at which the host received the snapshot", "ns"),
    Column("dropped_before", "i4", 0, "frames lost by the camera just before this one"),
    Column("redelivered", "i4", 0, "number of times it was sent again"),
    Column("iterations", "i4", 0, "number of iterations"),
    Column("start", "u1", 0, "0 none, 1 cold, 2 warm"),
    Column("start_reason", "S24", b"", "reason for the start"),
    Column("budget_limited", "u1", 0, "1 if there was no time for the requested iterations"),
    Column("psnr_db", "f4", np.nan, "PSNR against the ground truth, NaN if unknown", "dB"),
    Column("residual", "f4", np.nan, "relative residual of the estimate"),
    Column("saturated_fraction", "f4", np.nan, "fraction of pixels excluded from the data term"),
    Column("noise", "f4", np.nan, "estimated noise of the measurement, relative to it; NaN if unknown", later=True),
    Column("mismatch", "f4", np.nan, "part of the noise that errors of the masks cause; NaN if unknown", later=True),
    Column("solve_ns", "i8", 0, "duration of the reconstruction", "ns"),
    Column("finished_ns", "i8", 0, "Unix time at which it was reconstructed", "ns"),
    Column("node", "S32", b"", "name of the reconstruct node"),
    *_HEALTH_COLUMNS,
    Column("solver", "S32", b"", "id of the solver settings, see solvers in ledger", later=True),
    Column(
        "masks_at", f"S{correction_length(0)}", b"", "correction of the masks used, empty as calibrated", later=True
    ),
    Column("state", "u1", 0, "flags: 1 raw counts are stored, 2 video is stored"),
)

# Columns written after all others, in this order, since a kill may come between any two: a row has the content that
# its state declares and is complete once it has an outcome, so everything they refer to must be in the file first.
_WRITTEN_LAST = {"state": 1, "outcome": 2}

# Prefix of the columns of chunk data, as in ``chunk_ExposureTime``.
CHUNK_PREFIX = "chunk_"


def columns_of(info: SeriesInfo) -> tuple[Column, ...]:
    """Return the columns of a series' recording: the standard ones, and one for each chunk value."""
    chunks = (
        Column(CHUNK_PREFIX + name, "f8", np.nan, f"{name} from the chunk data of the frame, NaN if missing", unit)
        for name, unit in info.chunks.items()
    )
    width = f"S{correction_length(info.n_frames)}"
    columns = (replace(column, dtype=width) if column.name == "masks_at" else column for column in COLUMNS[:-1])
    return (*columns, *chunks, COLUMNS[-1])


def chunk_cells(chunks: Mapping[str, Value], info: SeriesInfo) -> dict[str, float]:
    """Return the cells of a frame's chunk data."""
    return {
        CHUNK_PREFIX + name: float(value)
        for name, value in chunks.items()
        if name in info.chunks and isinstance(value, bool | int | float)
    }


def recorded_chunks(row: JsonObject) -> dict[str, Value]:
    """Return the chunk data of a row."""
    return {
        name.removeprefix(CHUNK_PREFIX): float(value)
        for name, value in row.items()
        if name.startswith(CHUNK_PREFIX) and not np.isnan(value)
    }


OUTCOME_CODES = {"reconstructed": 1, "raw_only": 2, "dropped": 3}
OUTCOME_NAMES = {code: name for name, code in OUTCOME_CODES.items()}
START_CODES = {"cold": 1, "warm": 2}
START_NAMES = {code: name for name, code in START_CODES.items()}
ORDER_CODES = {"unknown": 0, "forward": 1, "reversed": 2, "rotated": 3, "shuffled": 4}
ORDER_NAMES = {code: name for name, code in ORDER_CODES.items()}

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
    """Return a value as its column can hold it: numbers out of range become the nearest in range, NaN stays."""
    if limits is None or not (value < limits[0] or value > limits[1]):
        return value
    return min(max(value, limits[0]), limits[1])


def ascii_cell(text: str, width: int) -> bytes:
    """Return text in ASCII, truncated to a fixed-length column."""
    return text.encode("ascii", "replace")[:width]


def cell_text(cell: bytes) -> str:
    """Return the text of a column's cell; bytes that are not ASCII, in a damaged file, are replaced."""
    return cell.decode("ascii", "replace")


def reconstruction_cells(reconstruction: Reconstruction) -> dict[str, Cell]:
    """Return the cells that describe how a snapshot was reconstructed."""
    report = reconstruction.report
    return {
        "outcome": OUTCOME_CODES["reconstructed"],
        "host_time_ns": reconstruction.times.acquired_ns,
        "dropped_before": reconstruction.dropped_before,
        "redelivered": reconstruction.redelivered,
        "iterations": report.iterations,
        "start": START_CODES[report.start],
        "start_reason": ascii_cell(report.start_reason, 24),
        "budget_limited": report.budget_limited,
        "psnr_db": np.nan if report.psnr_db is None else report.psnr_db,
        "residual": report.residual,
        "saturated_fraction": report.saturated_fraction,
        "noise": np.nan if report.noise is None else report.noise,
        "mismatch": np.nan if report.mismatch is None else report.mismatch,
        "solve_ns": report.solve_ns,
        "finished_ns": reconstruction.times.finished_ns,
        "node": ascii_cell(reconstruction.node, 32),
        **(_health_cells(report.health) if report.health is not None else {}),
        "solver": ascii_cell(report.solver, 32),
        "masks_at": ascii_cell(report.masks_at, correction_length(MOST_MASKS)),
        "masks_corrected": bool(report.masks_at),
    }


def _health_cells(health: CalibrationHealth) -> dict[str, Cell]:
    figures = {
        "mask_shift_x_px": health.shift_x_px,
        "mask_shift_y_px": health.shift_y_px,
        "mask_match": health.match,
        "mask_contrast": health.contrast,
        "brightness": health.brightness,
        "camera_gain": health.gain,
        "mask_shift_sd_px": health.shift_sd_px,
        "mask_error_log_odds": health.error_log_odds,
    }
    return {
        **{name: np.nan if value is None else value for name, value in figures.items()},
        "mask_order": ORDER_CODES.get(health.order, 0),
        "below_black_fraction": health.below_black_fraction,
    }


def create_columns(group: h5py.Group, info: SeriesInfo) -> None:
    """Create the columns of a series in an empty group."""
    for column in columns_of(info):
        node = group.create_dataset(
            column.name, (0,), column.dtype, maxshape=(None,), chunks=(BLOCK_ROWS,), fillvalue=column.fill
        )
        describe_column(node, column)


def describe_column(node: h5py.Dataset, column: Column) -> None:
    """Describe a column with NeXus attributes."""
    node.attrs["long_name"] = column.meaning
    if column.units:
        node.attrs["units"] = column.units


class RowTable:
    """Write columns in blocks that are kept in memory, so that a row needs no HDF5 call.

    Rows arrive nearly in order, but may be set again or late: a block that has left memory is read back.

    The group was made by `create_columns` for the same series.
    """

    def __init__(self, group: h5py.Group, info: SeriesInfo) -> None:
        self._columns = sorted(columns_of(info), key=lambda column: _WRITTEN_LAST.get(column.name, 0))
        self._datasets: dict[str, h5py.Dataset] = {column.name: group[column.name] for column in self._columns}
        self._ranges = {column.name: _range(np.dtype(column.dtype)) for column in self._columns}
        self._blocks: OrderedDict[int, _Block] = OrderedDict()
        self._dirty: set[int] = set()
        self.rows = 0

    def set(self, row: int, **values: Any) -> None:
        """Set columns of a row; visible to readers after the next `flush`."""
        index, offset = divmod(row, BLOCK_ROWS)
        block = self._block(index)
        # All or nothing: a row must not be left half set.
        cells = {name: _within(value, self._ranges[name]) for name, value in values.items()}
        for name, cell in cells.items():
            block[name][offset] = cell
        self._dirty.add(index)
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
        block: _Block = {}
        for column in self._columns:
            values = np.full(BLOCK_ROWS, column.fill, column.dtype)
            stored = self._datasets[column.name][first : first + BLOCK_ROWS] if first < self.rows else ()
            values[: len(stored)] = stored
            block[column.name] = values
        return block

    def flush(self) -> None:
        """Write the changes so that readers, and a process after a crash, see complete rows only."""
        if not self._dirty:
            return
        extent = -(-self.rows // GROWTH_ROWS) * GROWTH_ROWS
        # All columns grow before any is written: if a kill leaves one shorter, the others are empty beyond its end.
        for node in self._datasets.values():
            if node.shape[0] < extent:
                node.resize(extent, 0)
                node.flush()
        for column in self._columns:
            node = self._datasets[column.name]
            for index in sorted(self._dirty):
                # A block is a chunk: written in one system call, bypassing the HDF5 cache.
                node.id.write_direct_chunk((index * BLOCK_ROWS,), self._blocks[index][column.name])
            node.flush()
        self._dirty.clear()
        while len(self._blocks) > _BLOCKS_KEPT:
            self._blocks.popitem(last=False)

    def trim(self) -> None:
        """Truncate the columns to the existing rows."""
        for node in self._datasets.values():
            if node.shape[0] > self.rows:
                node.resize(self.rows, 0)
