"""Repair a segment left by a crash by writing a clean copy. The original is kept."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import h5py
import numpy as np

from sci_stream.clock import unix_ns
from sci_stream.delivery.ledger import DropReason, LedgerCounts
from sci_stream.errors import FileFormatError, StorageError
from sci_stream.file_guard import complete_output, lock
from sci_stream.model import Array, Flags
from sci_stream.recording.columns import OUTCOME_CODES, columns_of, write_rows
from sci_stream.recording.hdf5 import LIBVER, open_file, open_for_reading
from sci_stream.recording.inspection import outcomes
from sci_stream.recording.layout import (
    FRAME_FLAGS,
    Layout,
    LedgerDocument,
    RowState,
    ledger_document,
)
from sci_stream.recording.reader import Recording
from sci_stream.recording.segments import earlier_segments, first_segment, require_space
from sci_stream.recording.series import merge_rows
from sci_stream.recording.writer import create_recording

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Repaired:
    """Result of a repair: the clean file in the original place, the original as ``original``, and
    the ledger of the series up to its end.
    """

    path: Path
    original: Path
    snapshots: int
    ledger: LedgerCounts


def repair_recording(
    path: Path, progress: Progress = lambda _done, _total: None
) -> Repaired | None:
    """Write a clean copy of everything that was flushed before a crash, and put it in place of the
    original.

    Every frame is read back and compared before the files are exchanged; the original is kept as
    ``<name>.crashed``. Snapshots with raw counts but without an outcome become ``raw_only``; those
    without any data ``dropped["lost_in_crash"]``.

    ``progress`` is called with the number of rows done and the total. Returns None if the file was
    closed cleanly and needs no repair.

    Raises `FileFormatError` if the file is not a recording, or data that its rows declare cannot be
    read; `StorageError` if it is being recorded, or open in another program, or the copy cannot be
    written.
    """
    with Recording(path) as old:
        if old.damage:
            raise FileFormatError(
                f"{path} was not left by a crash, but is damaged",
                got="; ".join(old.damage),
                hint="sci-stream inspect --verify lists the damage. Take another copy.",
            )
        if old.closed:
            return None
    _require_unused(path)
    original = path.with_name(f"{path.name}.crashed")
    if original.exists():
        raise StorageError(f"{original} exists", hint="An earlier repair left it: move it away.")
    with Recording(path) as old, complete_output(path, replace=True) as partial:
        earlier, later = _other_segments(old)
        columns = _settled_columns(old, earlier, later)
        used = len(columns["state"])
        ledger = _ledger(old, columns, earlier)
        following = old.continued
        if following is None and later:
            following = later[0].path.name
        require_space(partial, path.stat().st_size)
        with (
            open_for_reading(path, "recording") as source,
            open_file(partial, "w", libver=LIBVER) as out,
        ):
            frames = {name: source[name].dtype for name in FRAME_FLAGS if name in source}
            layout = Layout(old.first_seq, frames, old.compression, old.parent)
            create_recording(out, old.info, old.calibration, layout)
            write_rows(out, columns)
            _copy_frames(out, source, columns["state"], used, progress)
            document: LedgerDocument = {"time_ns": unix_ns(), "ledger": ledger, "repaired": True}
            if following is None:
                document["clean"] = True
            else:
                document["continued"] = following
            out["ledger"][:] = ledger_document(document, old.notes)
        _verify(partial, old)
        # Two renames, the original first: a crash in between leaves both files, and neither is
        # overwritten.
        path.rename(original)
    return Repaired(path, original, used, ledger)


def _require_unused(path: Path) -> None:
    """Raise unless no program has the file open: its writer holds a lock, and so do readers."""
    try:
        with path.open("r+b" if os.access(path, os.W_OK) else "rb") as file:
            has_locks = lock(file.fileno())
        if not has_locks:
            raise OSError(errno.ENOLCK, "the disk has no file locks, by which a writer shows")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be repaired while it may be in use",
            expected="a file that no other program has open",
            got=error.strerror,
            hint="End the recording and its viewers first. Where a disk has no file locks, repair "
            "a copy on another.",
        ) from error


def _settled_columns(
    old: Recording, earlier: list[Recording], later: list[Recording]
) -> dict[str, Array]:
    """Return the columns, cut to the rows in use, with an outcome for every snapshot.

    A snapshot with raw counts in an earlier segment but without an outcome in any gets its outcome
    here: the earlier segment may have been closed cleanly while the snapshot was in flight, and is
    not changed any more.
    """
    known_elsewhere, raw_elsewhere, settled_elsewhere = _rows_of_other_segments(old, earlier, later)
    columns = {
        name: _extended(old, name, values, len(known_elsewhere))
        for name, values in old.rows.items()
    }
    outcome = columns["outcome"]
    state = columns["state"]
    known = (columns["epoch"] >= 0) | (outcome != 0)
    has_raw = (state & RowState.RAW) != 0
    open_rows = (outcome == 0) & ~settled_elsewhere
    raw_only = open_rows & (has_raw | raw_elsewhere)
    # Snapshots before the first row of this segment are in earlier segments.
    lost = (
        open_rows & ~raw_only & ~known_elsewhere & np.logical_or.accumulate(known | known_elsewhere)
    )
    used = _past_last(known | raw_only)
    outcome[raw_only] = OUTCOME_CODES["raw_only"]
    # A replay has snapshots of which its source has raw counts, and no others.
    lost[used if old.parent is None else 0 :] = False
    outcome[lost] = OUTCOME_CODES["dropped"]
    columns["reason"][lost] = DropReason.LOST_IN_CRASH.encode()
    return {name: values[:used] for name, values in columns.items()}


def _ledger(old: Recording, columns: dict[str, Array], earlier: list[Recording]) -> LedgerCounts:
    """Return the ledger of the series up to the end of this segment, whose columns are settled."""
    first_seq, rows = merge_rows([*earlier, old])
    settled = np.flatnonzero(columns["outcome"])
    for name in ("outcome", "reason"):
        rows[name][settled + old.first_seq - first_seq] = columns[name][settled]
    counts = outcomes(rows)
    counted = {name: counts[name] for name in ("reconstructed", "raw_only", "not_kept", "dropped")}
    ledger = {
        "acquired": counts["settled"],
        **counted,
        "in_flight": 0,
        "closed": True,
        "repaired": True,
    }
    return cast(LedgerCounts, ledger)


def _past_last(chosen: Flags) -> int:
    rows = np.flatnonzero(chosen)
    return int(rows[-1]) + 1 if len(rows) else 0


def _extended(old: Recording, name: str, values: Array, rows: int) -> Array:
    """Return a copy of a column, extended with unwritten rows."""
    fill = next((column.fill for column in columns_of(old.info) if column.name == name), 0)
    extended = np.full(rows, fill, values.dtype)
    extended[: len(values)] = values
    return extended


def _other_segments(old: Recording) -> tuple[list[Recording], list[Recording]]:
    """Return the segments before this one, and those after it; their rows stay in memory."""
    segments = []
    for segment in earlier_segments(first_segment(old.path), old.info.series):
        with segment:
            segments.append(segment)
    earlier = list(itertools.takewhile(lambda segment: segment.path != old.path, segments))
    return earlier, segments[len(earlier) + 1 :]


def _rows_of_other_segments(
    old: Recording, earlier: list[Recording], later: list[Recording]
) -> Flags:
    """Return (3, rows): which rows are known, have raw counts, and have an outcome in other
    segments.

    For the last segment up to the last raw counts of earlier ones.
    """
    others = [*earlier, *later]
    rows = len(old.rows["state"])
    if not others:
        return np.zeros((3, rows), np.bool_)
    first_seq, merged = merge_rows(others)
    settled = merged["outcome"] != 0
    raw = (merged["state"] & RowState.RAW) != 0
    offset = first_seq - old.first_seq
    if not later:
        rows = max(rows, offset + _past_last(raw))
    aligned = np.zeros((3, rows), np.bool_)
    for into, flag in zip(aligned, ((merged["epoch"] >= 0) | settled, raw, settled), strict=True):
        at = np.flatnonzero(flag) + offset
        into[at[(at >= 0) & (at < rows)]] = True
    return aligned


def _copy_frames(
    out: h5py.File, source: h5py.File, state: Array, used: int, progress: Progress
) -> None:
    """Copy chunks without unpacking them."""
    stored = [
        (source[name], out[name], flag) for name, flag in FRAME_FLAGS.items() if name in source
    ]
    for _, node, _ in stored:
        node.resize(used, 0)
    for row in range(used):
        for old, new, flag in stored:
            if state[row] & flag:
                chunks = (
                    size // part for size, part in zip(old.shape[1:], old.chunks[1:], strict=True)
                )
                for chunk in np.ndindex(*chunks):
                    at = (row, *chunk)  # one, or one for each frame
                    # Neither decoded nor encoded, so bit-identical; `_verify` decodes both
                    # afterwards.
                    mask, content = old.id.read_direct_chunk(at)
                    new.id.write_direct_chunk(at, content, mask)
        progress(row + 1, used)


def _verify(copy: Path, old: Recording) -> None:
    with Recording(copy) as new:
        for name in FRAME_FLAGS:
            for seq in old.seqs_with(name):
                if not np.array_equal(old.frame(name, seq), new.frame(name, seq), equal_nan=True):
                    raise FileFormatError(f"Snapshot {seq} of {old.path} differs between two reads")
