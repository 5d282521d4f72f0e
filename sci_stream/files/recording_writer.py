"""Write a recording: HDF5 that is readable while it grows, after a kill, and after the disk ran full."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
import numpy.typing as npt

from sci_stream.errors import InputError, SciStreamError, StorageError
from sci_stream.files.calibration_file import write_calibration
from sci_stream.files.hdf5 import LIBVER, build_image
from sci_stream.files.recording_layout import (
    GROWTH_ROWS,
    LEDGER_BYTES,
    Compression,
    RowState,
    create_layout,
    raw_dtype,
)
from sci_stream.files.recording_rows import OUTCOME_CODES, RowTable, ascii_cell, create_columns, reconstruction_cells
from sci_stream.files.recording_segments import create_segment, free_bytes
from sci_stream.model import Array, Reconstruction, SeriesInfo, Snapshot
from sci_stream.optics.calibration import Calibration

_LOG = logging.getLogger(__name__)
_CLOSING_BYTES = 4 << 20
"""Room left on the disk for HDF5 to write its indices and close."""


class RecordingWriter:
    """Write one segment of a series. Not thread-safe: HDF5 is used from one thread.

    What has been written is in the operating system's hands after `flush`: it survives the death of this process,
    not the loss of power. Rows never flushed are lost with the process; that is the promised bound.

    Parameters
    ----------
    path
        Where to. An existing file is never touched: ``<stem>_001.h5`` and so on are tried; see `path`. Rows that
        earlier segments of the same series hold count as written.
    info, calibration
        Stored inside.
    raw, video
        Which of the two to store; the columns are always kept.
    compression
        Of raw snapshots and video.
    first_seq
        Sequence number of row 0.
    dtype
        Of raw counts; by default what the series' bit depth and pixel format say.

    Raises
    ------
    StorageError
        If the file cannot be made.
    """

    def __init__(
        self,
        path: Path,
        info: SeriesInfo,
        calibration: Calibration,
        *,
        raw: bool = True,
        video: bool = True,
        compression: Compression = Compression.NONE,
        first_seq: int = 0,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        self.info = info
        self.first_seq = first_seq
        self.bytes_written = 0
        self.rows_written = 0
        self._failure: str | None = None
        self._closed = False
        self._compression = compression
        counts_dtype = raw_dtype(info) if dtype is None else np.dtype(dtype)

        def lay_out(file: h5py.File) -> None:
            create_layout(
                file,
                info,
                first_seq=first_seq,
                raw=counts_dtype if raw else None,
                video=video,
                compression=compression,
            )
            write_calibration(file.create_group("calibration"), calibration)
            create_columns(file.create_group("rows"))

        self.path, known = create_segment(path, info.series, build_image(lay_out))
        self._has_raw, self._has_outcome = known.raw, known.settled
        with self._guard("started"):
            self._file = h5py.File(self.path, "r+", libver=LIBVER)
            self._rows = RowTable(self._file["rows"])
            self._raw: h5py.Dataset | None = self._file.get("raw")
            self._video: h5py.Dataset | None = self._file.get("video")
            self._ledger: h5py.Dataset = self._file["ledger"]
            self._file.swmr_mode = True

    @contextmanager
    def _guard(self, doing: str) -> Iterator[None]:
        if self._failure is not None:
            raise StorageError(f"The recording {self.path} has failed", got=self._failure)
        try:
            yield
        except SciStreamError:
            raise
        except (OSError, RuntimeError) as error:  # h5py raises either, by the call in which the disk refuses
            self._failure = str(error).splitlines()[0]
            free = free_bytes(self.path)
            raise StorageError(
                f"The recording {self.path} cannot be {doing}",
                got=f"{self._failure} ({free / 1e6:.0f} MB free)",
                hint="What was flushed before is readable; free some space or record to another disk.",
            ) from error

    def write_raw(self, snapshot: Snapshot) -> bool:
        """Write a raw snapshot; return False, writing nothing, if its row has one already.

        Raises
        ------
        StorageError
            If the disk refuses. The writer can then only be closed; what was flushed is readable.
        InputError
            If the snapshot does not fit the series.
        """
        seq = snapshot.id.seq
        if seq in self._has_raw:
            return False
        row = self._row(seq)
        counts = self._fit_counts(snapshot.counts)
        self._need_space(counts)
        with self._guard("written"):
            self._identify(row, snapshot.id.epoch, snapshot.camera_frame_id, snapshot.camera_time_ns)
            self._rows.set(row, host_time_ns=snapshot.host_time_ns, dropped_before=snapshot.dropped_before)
            self._put_raw(row, seq, counts)
        return True

    def write_reconstruction(self, reconstruction: Reconstruction) -> bool:
        """Write a reconstruction, and its raw counts if it carries them and its row has none yet.

        Returns False, writing nothing, if the snapshot has an outcome already. Raises as `write_raw`.
        """
        seq = reconstruction.id.seq
        if seq in self._has_outcome:
            return False
        row = self._row(seq)
        video = self._fit_video(reconstruction.video)
        counts = None
        if reconstruction.counts is not None and seq not in self._has_raw:
            counts = self._fit_counts(reconstruction.counts)
        self._need_space(counts, video)
        with self._guard("written"):
            self._identify(row, reconstruction.id.epoch, reconstruction.camera_frame_id, reconstruction.camera_time_ns)
            if counts is not None:
                self._put_raw(row, seq, counts)
            if self._video is not None and video is not None:
                self._put(self._video, row, video)
                self._rows.set(row, state=self._rows.get(row, "state") | RowState.VIDEO)
            self._rows.set(row, **reconstruction_cells(reconstruction))
        self._has_outcome.add(seq)
        return True

    def write_outcome(self, seq: int, outcome: str, reason: str = "") -> bool:
        """Write what became of a snapshot that has no video; return False if it has an outcome already.

        Raises
        ------
        ValueError
            If the outcome is none of ``raw_only``, ``dropped``, ``reconstructed``.
        StorageError
            As `write_raw`.
        """
        if outcome not in OUTCOME_CODES:
            raise ValueError(f"outcome must be one of {sorted(OUTCOME_CODES)}, got {outcome!r}")
        if seq in self._has_outcome:
            return False
        row = self._row(seq)
        with self._guard("written"):
            self._rows.set(row, outcome=OUTCOME_CODES[outcome], reason=ascii_cell(reason, 24))
        self._has_outcome.add(seq)
        return True

    def _row(self, seq: int) -> int:
        if seq < self.first_seq:
            raise InputError(
                f"Snapshot {seq} lies before the recording {self.path}", expected=f"seq from {self.first_seq} up"
            )
        return seq - self.first_seq

    def _identify(self, row: int, epoch: int, frame_id: int | None, camera_time_ns: int | None) -> None:
        self.rows_written += int(self._rows.get(row, "epoch") < 0)
        self._rows.set(
            row,
            epoch=epoch,
            camera_frame_id=-1 if frame_id is None else frame_id,
            camera_time_ns=-1 if camera_time_ns is None else camera_time_ns,
        )

    def _need_space(self, *arrays: Array | None) -> None:
        """Refuse what will not fit before HDF5 meets a full disk: then the file can still be closed in order."""
        need = sum(array.nbytes for array in arrays if array is not None) + _CLOSING_BYTES
        free = free_bytes(self.path)
        if free < need:
            raise StorageError(
                f"The disk of the recording {self.path} is full",
                expected=f"{need / 1e6:.0f} MB free",
                got=f"{free / 1e6:.0f} MB",
                hint="What was written before is kept; free some space or record to another disk.",
            )

    def _fit_counts(self, counts: Array) -> Array:
        """Return counts in the dataset's dtype; only if no value is changed by that."""
        shape = (self.info.height_px, self.info.width_px)
        if counts.shape != shape:
            raise InputError("A raw snapshot does not fit the series", expected=f"{shape} pixels", got=counts.shape)
        if self._raw is None or counts.dtype == self._raw.dtype:
            return np.ascontiguousarray(counts)
        with np.errstate(invalid="ignore"):
            fitted = counts.astype(self._raw.dtype)
        if not np.array_equal(fitted, counts):
            raise InputError(
                f"Raw counts of {counts.dtype} do not fit the recording {self.path} without loss",
                expected=f"values of {self._raw.dtype}",
                got=f"{counts.min()} to {counts.max()}",
                hint="The camera's bit depth and pixel format must describe what it delivers.",
            )
        return fitted

    def _fit_video(self, video: Array) -> Array | None:
        shape = (self.info.n_frames, self.info.height_px, self.info.width_px)
        if video.shape != shape:
            raise InputError("A video does not fit the series", expected=f"(B, H, W) = {shape}", got=video.shape)
        return None if self._video is None else np.ascontiguousarray(video, dtype=np.float16)

    def _put_raw(self, row: int, seq: int, counts: Array) -> None:
        if self._raw is None:
            return
        self._put(self._raw, row, counts)
        self._has_raw.add(seq)
        self._rows.set(row, state=self._rows.get(row, "state") | RowState.RAW)

    def _put(self, node: h5py.Dataset, row: int, data: Array) -> None:
        if node.shape[0] <= row:
            node.resize((row // GROWTH_ROWS + 1) * GROWTH_ROWS, 0)
        if self._compression is not Compression.NONE:
            node[row] = data
        elif data.ndim == 2:
            node.id.write_direct_chunk((row, 0, 0), data)
        else:
            for frame in range(data.shape[0]):
                node.id.write_direct_chunk((row, frame, 0, 0), data[frame])
        self.bytes_written += data.nbytes

    def flush(self) -> None:
        """Hand everything written so far to the operating system, data before the rows that speak of it.

        Raises
        ------
        StorageError
            As `write_raw`.
        """
        with self._guard("flushed"):
            for node in (self._raw, self._video):
                if node is not None:
                    node.flush()
            self._rows.flush()

    def write_ledger(self, ledger: Mapping[str, Any], *, clean: bool = False) -> None:
        """Store the account of the series, in place of the one before. ``clean`` marks an orderly end."""
        document = json.dumps({"clean": clean, "time_ns": time.time_ns(), "ledger": dict(ledger)}).encode()
        if len(document) > LEDGER_BYTES:
            raise ValueError(f"a ledger must fit {LEDGER_BYTES} bytes as JSON, got {len(document)}")
        padded = np.zeros(LEDGER_BYTES, np.uint8)
        padded[: len(document)] = np.frombuffer(document, np.uint8)
        with self._guard("written"):
            self._ledger.id.write_direct_chunk((0,), padded)
            self._ledger.flush()

    def close(self, ledger: Mapping[str, Any] | None = None) -> None:
        """Flush, store the final ledger, cut the datasets to their rows and close. May be called again.

        Raises
        ------
        StorageError
            If the disk refuses; the file is closed all the same as far as HDF5 can.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._failure is None:
                self._finish(ledger)
        finally:
            self._close_file()

    def _finish(self, ledger: Mapping[str, Any] | None) -> None:
        self.flush()
        if ledger is not None:
            self.write_ledger(ledger, clean=True)
        with self._guard("closed"):
            self._rows.trim()
            for node in (self._raw, self._video):
                if node is not None and node.shape[0] != self._rows.rows:
                    node.resize(self._rows.rows, 0)

    def _close_file(self) -> None:
        try:
            self._file.close()
        except (OSError, RuntimeError) as error:
            _LOG.warning("%s is left as a crash leaves it, readable to its last flush: %s", self.path, error)
            if self._failure is None:
                raise StorageError(f"The recording {self.path} cannot be closed", got=error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
