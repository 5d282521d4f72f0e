"""Write a recording: HDF5 that is readable while it grows, after a kill, and after the disk ran
full.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from sci_stream.clock import unix_ns
from sci_stream.delivery.ledger import LedgerCounts
from sci_stream.errors import InputError, SciStreamError, StorageError
from sci_stream.file_guard import lock
from sci_stream.model import Array, JsonObject, Reconstruction, SeriesInfo, Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import write_calibration
from sci_stream.recording.columns import (
    EVIDENCE,
    OUTCOME_CODES,
    Cell,
    RowTable,
    chunk_cells,
    create_columns,
    reconstruction_cells,
)
from sci_stream.recording.hdf5 import LIBVER, build_image, open_file
from sci_stream.recording.layout import (
    ERROR_STEP,
    FRAME_FLAGS,
    GROWTH_ROWS,
    VIDEO_U16_STEP,
    Compression,
    Layout,
    LedgerDocument,
    create_layout,
    ledger_document,
    raw_dtype,
)
from sci_stream.recording.nexus import create_nexus
from sci_stream.recording.segments import (
    MAX_SEGMENTS,
    WrittenRows,
    free_bytes,
    new_segment,
    require_space,
    segment_numbers,
    segment_path,
)
from sci_stream.wire.codec import sendable
from sci_stream.wire.payload import checksum

_LOG = logging.getLogger(__name__)
MAX_EMPTY_ROWS = 1 << 20
"""Rows without content that a segment may have: readers hold all rows in memory, about 300 bytes
each. Snapshots in
flight leave such rows; a row far beyond all others is that of a snapshot that does not exist."""


class RecordingWriter(AbstractContextManager["RecordingWriter"]):
    """Write one segment of a series. Not thread-safe: HDF5 is used from one thread.

    After `flush` the data is in the operating system's page cache: it survives the death of this
    process, not a power loss. Rows that were not flushed are lost with the process; the flush
    interval bounds that loss.

    An existing file is never modified: ``<stem>_001.h5`` and so on are tried (see `path`), and rows
    in earlier segments of the same series count as written. ``raw``, ``video``, ``picture`` of an
    analysis and estimated ``error`` select the stored data; the columns are always written. Row 0
    is ``first_seq``, by default the first snapshot from ``settled_below`` up without an outcome in
    earlier segments; those before it have one in the ledger, perhaps without a row. ``video_dtype``
    is float16, float32, or uint16 for 0 to 2 in equal steps. ``parent``, the source of a derived
    recording, is stored as JSON.

    Raises `StorageError` if the file cannot be created; `InputError` if no reader would accept the
    description of the series.
    """

    def __init__(
        self,
        path: Path,
        info: SeriesInfo,
        calibration: Calibration,
        *,
        raw: bool = True,
        video: bool = True,
        picture: bool = False,
        error: bool = False,
        compression: Compression = Compression.NONE,
        first_seq: int | None = None,
        settled_below: int = 0,
        video_dtype: npt.DTypeLike = np.float16,
        parent: JsonObject | None = None,
    ) -> None:
        self.info = info = sendable(info)
        self.notes: JsonObject = {}
        self.settled_below = settled_below
        self._calibration = calibration
        self._first_path = path
        self._written = WrittenRows()
        small = np.dtype(np.uint8)
        types = {
            "raw": raw_dtype(info),
            "video": np.dtype(video_dtype),
            "picture": small,
            "error": small,
        }
        stored = {"raw": raw, "video": video, "picture": picture, "error": error}
        frames = {name: dtype for name, dtype in types.items() if stored[name]}
        self._layout = Layout(first_seq=0, frames=frames, compression=compression, parent=parent)
        self._create(0, first_seq)

    def _create(self, segment: int, first_seq: int | None = None) -> None:
        """Create the segment of this number, or the next after all that exist, and open it.

        A number that a deleted file had stays free, or later segments would not be read.
        """
        self.bytes_written = 0
        self.rows_written = 0
        self._room_bytes = 0
        self._failure: str | None = None
        self._closed = False
        taken = [number for number in segment_numbers(self._first_path) if number >= segment]
        for number in taken:
            self._written.add_segment(segment_path(self._first_path, number), self.info.series)
        for number in range(taken[-1] + 1 if taken else segment, MAX_SEGMENTS):
            self.path, self.segment = segment_path(self._first_path, number), number
            try:
                # Late results may belong to snapshots whose raw counts are in an earlier segment,
                # so the default first row is the first snapshot without an outcome, not the next
                # one to arrive.
                earliest = max(self.settled_below, self._written.first or 0)
                self.first_seq = (
                    self._written.settled.first_missing(earliest)
                    if first_seq is None
                    else first_seq
                )
                with ExitStack() as opened:
                    with new_segment(self.path) as hidden:
                        self._open(hidden, opened)
                    opened.pop_all()
                break
            except FileExistsError:
                self._written.add_segment(self.path, self.info.series)
            except OSError as error:
                raise StorageError(
                    f"The recording {self.path} cannot be created",
                    got=error.strerror or error,
                    hint="Its folder must exist, be writable and have free space.",
                ) from error
        else:
            raise StorageError(
                f"The recording {self.path} has too many segments",
                expected=f"at most {MAX_SEGMENTS}",
                hint="Move them away.",
            )
        if self._written.first is None:
            self._written.first = self.first_seq
        self._size = 0

    def _open(self, hidden: Path, opened: ExitStack) -> None:
        """Make the new file under its hidden name, and open it for writing with live readers."""
        layout = dataclasses.replace(self._layout, first_seq=self.first_seq)
        # Written as plain bytes: creating it through HDF5 on a full disk crashed the process in
        # close.
        hidden.write_bytes(
            build_image(lambda file: create_recording(file, self.info, self._calibration, layout))
        )
        with self._guard("started"):
            # No chunk cache: it took 1 MiB for each of some sixty datasets, and each block of rows
            # that is read back stayed there for good.
            self._file = opened.enter_context(open_file(hidden, "r+", libver=LIBVER, rdcc_nbytes=0))
            self._rows = RowTable(self._file, self.info)
            self._frames = {name: self._file[name] for name in self._layout.frames}
            self._extents = dict.fromkeys(self._frames, 0)
            self._filtered = {
                name
                for name, node in self._frames.items()
                if node.id.get_create_plist().get_nfilters()
            }
            self._ledger: h5py.Dataset = self._file["ledger"]
            # After this no object can be created, only datasets extended; hence the reserved ledger
            # and the empty columns.
            self._file.swmr_mode = True
        # HDF5 has released its own lock. Readers share this one, and a killed process has none:
        # `repair` looks for it.
        with suppress(OSError):
            lock(self._file.id.get_vfd_handle(), shared=True)

    @contextmanager
    def _guard(self, doing: str) -> Iterator[None]:
        if self._failure is not None:
            raise StorageError(f"The recording {self.path} has failed before", got=self._failure)
        try:
            yield
        except SciStreamError:
            raise
        except (
            OSError,
            RuntimeError,
        ) as error:  # h5py raises either one on a full disk, depending on the call
            self._failure = str(error).splitlines()[0]
            free = free_bytes(self.path)
            raise StorageError(
                f"The recording {self.path} cannot be {doing}",
                got=f"{self._failure} ({free / 2**20:.0f} MiB free)",
                hint="Flushed data is readable; free some space or record to another disk.",
            ) from error

    @property
    def has_failed(self) -> bool:
        """Whether a write has failed: the file can only be closed, best once its disk works."""
        return self._failure is not None

    # Writing continues without an error after a file was deleted or its disk unmounted: only the
    # directory shows it.
    def displaced(self) -> str:
        """Return why the file at `path` is not the one that is being written, ``""`` if it is."""
        try:
            now, written = self.path.stat(), os.fstat(self._file.id.get_vfd_handle())
        except OSError as error:
            return (
                f"{self.path} was moved, deleted or unmounted while it was recorded "
                f"({error.strerror})"
            )
        if not os.path.samestat(now, written):
            return f"{self.path} was replaced by another file while it was recorded"
        if now.st_size < self._size:
            return f"{self.path} was truncated by another program while it was recorded"
        self._size = now.st_size
        return ""

    def next_segment(self) -> RecordingWriter:
        """Open the segment that continues this one, which must be closed then.

        Raises `StorageError` if the file cannot be created; this segment can still be written.
        """
        following = copy.copy(self)
        following.notes = dict(self.notes)
        following._create(self.segment + 1)
        return following

    def write_raw(self, snapshot: Snapshot, *, is_outcome: bool = False) -> bool:
        """Write a raw snapshot; return False, writing nothing, if its row already has raw counts.

        ``is_outcome``: it is ``raw_only``, and no video follows.

        Raises `StorageError` if writing fails. The writer can then only be closed; flushed data is
        readable; `InputError` if the snapshot does not fit the series.
        """
        seq = snapshot.id.seq
        if seq in self._written.raw:
            return False
        row = self._row(seq)
        counts = fit_counts(snapshot.counts, self.info, self._layout.frames.get("raw"), self.path)
        self._take_space(counts.nbytes)
        with self._guard("written"):
            more = {"outcome": OUTCOME_CODES["raw_only"]} if is_outcome else {}
            self._put(
                row,
                snapshot,
                {"raw": counts},
                host_time_ns=snapshot.host_time_ns,
                dropped_before=snapshot.dropped_before,
                **more,
            )
            if is_outcome:
                self._written.settled.add(seq)
        return True

    def write_reconstruction(self, reconstruction: Reconstruction) -> bool:
        """Write a reconstruction, with all that is stored of it; raw counts if it has them and its
        row has none yet.

        Returns False, writing nothing, if the snapshot already has an outcome. Raises as
        `write_raw`.
        """
        seq = reconstruction.id.seq
        if seq in self._written.settled:
            return False
        row = self._row(seq)
        stored = self._layout.frames
        frames = {"video": fit_video(reconstruction.video, self.info, stored.get("video"))}
        if reconstruction.counts is not None and seq not in self._written.raw:
            frames["raw"] = fit_counts(
                reconstruction.counts, self.info, stored.get("raw"), self.path
            )
        if "picture" in stored and reconstruction.picture is not None:
            frames["picture"] = reconstruction.picture
        if "error" in stored and reconstruction.counts is not None:
            frames["error"] = _stored_error(reconstruction, self._calibration)
        self._take_space(sum(data.nbytes for name, data in frames.items() if name in stored))
        with self._guard("written"):
            self._put(row, reconstruction, frames, **reconstruction_cells(reconstruction))
        self._written.settled.add(seq)
        return True

    def write_evidence(self, seq: int, row: Mapping[str, Any]) -> None:
        """Copy the state of the masks from a row of another recording, which a replay repeats.

        Raises as `write_raw`.
        """
        with self._guard("written"):
            self._rows.set(self._row(seq), **{name: row[name] for name in EVIDENCE})

    def write_outcome(self, seq: int, outcome: str, reason: str = "") -> bool:
        """Write the outcome of a snapshot without video; return False if it already has an outcome.

        Raises ValueError if the outcome is none of `OUTCOME_CODES`; `StorageError` as `write_raw`
        does.
        """
        if outcome not in OUTCOME_CODES:
            raise ValueError(f"outcome must be one of {sorted(OUTCOME_CODES)}, got {outcome!r}")
        if seq in self._written.settled:
            return False
        row = self._row(seq)
        with self._guard("written"):
            self._rows.set(
                row, outcome=OUTCOME_CODES[outcome], reason=reason.encode("ascii", "replace")
            )
        self._written.settled.add(seq)
        return True

    def _take_space(self, n_bytes: int) -> None:
        """Refuse data before the disk is full, which is looked at once for all that is flushed.

        Raises `StorageError`.
        """
        if n_bytes > self._room_bytes:
            self._room_bytes = require_space(self.path, n_bytes)
        self._room_bytes -= n_bytes

    def _row(self, seq: int) -> int:
        if seq < self.first_seq:
            raise InputError(
                f"Snapshot {seq} precedes the recording {self.path}",
                expected=f"seq from {self.first_seq} up",
            )
        row = seq - self.first_seq
        if row >= self._rows.rows + MAX_EMPTY_ROWS:
            raise StorageError(
                f"Snapshot {seq} is too far ahead of the recording {self.path}",
                expected=f"at most {MAX_EMPTY_ROWS} empty rows before it",
                got=f"row {row} after {self._rows.rows}",
                hint="Switch the recording on again: a segment begins with the first snapshot "
                "without an outcome.",
            )
        return row

    def _put(
        self, row: int, source: Snapshot | Reconstruction, frames: Mapping[str, Array], **more: Cell
    ) -> None:
        """Write a row: the frames that are stored, where they come from, and further cells."""
        state = int(self._rows.get(row, "state"))
        for name, data in frames.items():
            if name not in self._frames:
                continue
            self._write_frames(name, row, data)
            self.bytes_written += data.nbytes
            state |= FRAME_FLAGS[name].value
            more[f"{name}_crc32"] = checksum(data)
            if name == "raw":
                self._written.raw.add(self.first_seq + row)
        self.rows_written += int(self._rows.get(row, "epoch") < 0)
        self._rows.set(
            row,
            epoch=source.id.epoch,
            camera_frame_id=-1 if source.camera_frame_id is None else source.camera_frame_id,
            camera_time_ns=-1 if source.camera_time_ns is None else source.camera_time_ns,
            state=state,
            **chunk_cells(source.chunks, self.info),
            **more,
        )

    def _write_frames(self, name: str, row: int, data: Array) -> None:
        """Write a row of a dataset of frames, contiguous and of its dtype; in any order."""
        node = self._frames[name]
        if self._extents[name] <= row:
            self._extents[name] = (row // GROWTH_ROWS + 1) * GROWTH_ROWS
            node.resize(self._extents[name], 0)
        if name in self._filtered:
            # Direct chunks bypass the filters, so compressed rows take the ordinary path.
            node[row] = data
            return
        for frame in itertools.product(*map(range, data.shape[:-2])):
            # Direct chunks go past the HDF5 chunk cache, at memory speed
            # (docs/decisions/recordings.md).
            node.id.write_direct_chunk((row, *frame, 0, 0), data[frame])

    def flush(self) -> None:
        """Pass all written data to the operating system, frames before the rows that refer to them.

        Raises `StorageError` as `write_raw` does.
        """
        self._room_bytes = 0
        with self._guard("flushed"):
            for frames in self._frames.values():
                frames.flush()
            self._rows.flush()

    def write_ledger(
        self, ledger: LedgerCounts | None, *, clean: bool = False, continued: str | None = None
    ) -> None:
        """Store the ledger of the series and the `notes`, replacing earlier ones.

        ``clean`` marks a clean end; ``continued`` names the segment that continues the series.
        """
        document: LedgerDocument = {"clean": clean, "time_ns": unix_ns(), "ledger": ledger}
        if continued is not None:
            document["continued"] = continued
        padded = ledger_document(document, self.notes)
        with self._guard("written"):
            # One chunk in one system call: a reader or a kill sees the old ledger or the new one,
            # rarely a mixture, which readers treat as no ledger.
            self._ledger.id.write_direct_chunk((0,), padded)
            self._ledger.flush()

    def close(self, ledger: LedgerCounts | None = None, *, continued: str | None = None) -> None:
        """Flush, store the final ledger, truncate the datasets to their rows and close.

        May be called again.

        ``continued`` names the segment that continues the series, for all but the last.

        Raises `StorageError` if writing fails; the file is closed as far as HDF5 can.
        """
        if self._closed:
            return
        self._closed = True
        try:
            # After a failed write the file is in an unknown state: it is closed without further
            # writes and read to its last flush.
            if self._failure is None:
                self.flush()
                if continued is not None or ledger is not None:
                    self.write_ledger(ledger, clean=continued is None, continued=continued)
                with self._guard("closed"):
                    self._rows.trim()
                    for frames in self._frames.values():
                        frames.resize(self._rows.rows, 0)
        finally:
            self._close_file()

    def _close_file(self) -> None:
        try:
            self._file.close()
        except (OSError, RuntimeError) as error:
            _LOG.warning(
                "Recording %s not closed cleanly, readable up to its last flush: %s",
                self.path,
                error,
            )
            if self._failure is None:
                raise StorageError(
                    f"The recording {self.path} cannot be closed", got=error
                ) from error

    def __exit__(self, *_: object) -> None:
        self.close()


def create_recording(
    file: h5py.File, info: SeriesInfo, calibration: Calibration, layout: Layout
) -> None:
    """Create everything except rows in an empty file."""
    create_layout(file, info, layout)
    write_calibration(file.create_group("calibration"), calibration)
    create_columns(file, info)
    create_nexus(file, info, calibration)


def _stored_error(reconstruction: Reconstruction, calibration: Calibration) -> Array:
    from sci_stream.imaging.estimated_error import error_estimate  # noqa: PLC0415 - OpenCV, which others do without

    steps: Array = error_estimate(reconstruction, calibration) / np.float32(ERROR_STEP)
    stored: Array = np.rint(np.nan_to_num(steps, nan=255).clip(0, 255)).astype(np.uint8)
    return stored


def fit_counts(counts: Array, info: SeriesInfo, dtype: np.dtype[Any] | None, path: Path) -> Array:
    """Return raw counts as stored in ``path``, contiguous and in ``dtype`` (None: unchanged).

    Raises `InputError` if they do not have the size of the series, or a value would change.
    """
    shape = (info.height_px, info.width_px)
    if counts.shape != shape:
        raise InputError(
            "A raw snapshot does not fit the series", expected=f"{shape} pixels", got=counts.shape
        )
    if dtype is None or counts.dtype == dtype:
        return _contiguous(counts)
    with np.errstate(invalid="ignore"):
        fitted = counts.astype(dtype)
    if not np.array_equal(fitted, counts):
        raise InputError(
            f"Raw counts of {counts.dtype} do not fit the recording {path} without loss",
            expected=f"values of {dtype}",
            got=f"{counts.min()} to {counts.max()}",
            hint="Bit depth and pixel format of the camera must describe the delivered counts.",
        )
    return fitted


def fit_video(video: Array, info: SeriesInfo, dtype: np.dtype[Any] | None = None) -> Array:
    """Return a video as stored: (B, H, W), contiguous, float16 by default; uint16 in steps of
    `VIDEO_U16_STEP`.

    Raises `InputError` if it does not have the size of the series.
    """
    shape = (info.n_frames, info.height_px, info.width_px)
    if video.shape != shape:
        raise InputError(
            "A video does not fit the series", expected=f"(B, H, W) = {shape}", got=video.shape
        )
    if dtype == np.uint16:
        steps = np.nan_to_num(np.asarray(video, np.float32)) / np.float32(VIDEO_U16_STEP)
        stored: Array = np.rint(steps.clip(0, 65535)).astype(np.uint16)
        return stored
    if video.dtype == (dtype or np.float16):
        return _contiguous(video)
    return np.ascontiguousarray(video, dtype=dtype or np.float16)


def _contiguous(array: Array) -> Array:
    """Return an array itself, with its checksum if it was received, or a contiguous copy."""
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
