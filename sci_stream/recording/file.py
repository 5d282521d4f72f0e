"""The open HDF5 file behind recordings, shared by all readers of this process.

HDF5 keeps one copy of a file's metadata per process. To see the additions of a live writer, the file is closed and
reopened: ``H5Drefresh``, made for this, leaves a dataset that is open twice giving row 0 for every row (HDF5 2.0).
Reopening works only if the process has the file open once; hence it is shared.

A long recording has more segments than a process may have open files: files that were not read recently are closed
and reopened on demand.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from sci_stream.errors import FileFormatError
from sci_stream.file_guard import reading
from sci_stream.model import Array
from sci_stream.quantities import Column
from sci_stream.recording.columns import CHUNK_PREFIX, COLUMNS, OUTCOME_CODES
from sci_stream.recording.hdf5 import check_mark, is_open_for_writing, open_for_reading, place, read_dataset
from sci_stream.recording.layout import RECORDING_FORMAT, RECORDING_VERSION, RowState, read_info

_FRAMES = {"raw": (3, "u1 u2 f4"), "video": (4, "f2 f4 u2")}
(_STATE,) = (column for column in COLUMNS if column.name == "state")

# A process may have 1024 open files by default; a node also needs sockets.
_MAX_OPEN = 64
# HDF5 keeps every source file of a virtual dataset open, and silently returns zeros for files that it cannot open:
# virtual datasets are reopened after this many reads.
_READS_OF_VIRTUAL = 64

Identity = tuple[int, int]
"""Device and inode: identifies a file under any of its names."""


class RecordingFile:
    """A recording's file open for reading, from `share`, returned with `release`. Thread-safe.

    ``rows`` are its columns by name, all of one length, and ``writing`` whether it was open for writing or left so by
    a crash, as of the last refresh.
    """

    rows: Mapping[str, Array]
    writing: bool

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users = 0
        self.lock = threading.RLock()
        self._reads = 0
        self._suspended = False
        self._checked = False
        self._segment_names: tuple[str, ...] = ()
        self._open()
        self._checked = True  # `_check_identity` holds each later opening to the same file
        self.identity = self._identity()
        _note_open(self)

    def _open(self) -> None:
        self._hdf5 = open_for_reading(self.path, "recording", virtual=self._find_segments, trusted=self._checked)
        try:
            check_mark(self._hdf5, RECORDING_FORMAT, RECORDING_VERSION)
            # State first: the writer flushes it last, so the other columns, read later, contain all it refers to.
            state = self._column(_STATE, 0)
            rows = {column.name: self._column(column, len(state)) for column in COLUMNS if column is not _STATE}
            rows |= self._chunk_columns() | {"state": state}
            shortest = min(len(values) for values in rows.values())
            self.rows = {name: values[:shortest] for name, values in rows.items()}
            self._frames = self._find_frames()
            self._settle_torn_rows()
            self._dtypes = {name: np.dtype(node.dtype) for name, node in self._frames.items()}
            self.writing = is_open_for_writing(self.path)
            self._ledger = self._dataset("ledger", 1)
        except BaseException:
            self._hdf5.close()
            raise

    def _settle_torn_rows(self) -> None:
        """Make outcomes consistent with states: a kill, or a live reader, may come between the two writes.

        Where video is stored, a snapshot counts as reconstructed if and only if its video is stored. Otherwise a row
        left inconsistent by a kill would be counted and never sent again.
        """
        if "video" not in self._frames or self._segment_names:  # a segment of several may store no video
            return
        outcome, reconstructed = self.rows["outcome"], OUTCOME_CODES["reconstructed"]
        has_video = (self.rows["state"] & RowState.VIDEO) != 0
        outcome[~has_video & (outcome == reconstructed)] = 0
        outcome[has_video] = reconstructed

    def _find_frames(self) -> dict[str, h5py.Dataset]:
        frames = {name: self._dataset(name, ndim) for name, (ndim, _) in _FRAMES.items() if name in self._hdf5}
        for name, node in frames.items():
            if node.dtype not in [np.dtype(kind) for kind in _FRAMES[name][1].split()]:
                raise FileFormatError(f"{place(node)} has the wrong type", expected=_FRAMES[name][1], got=node.dtype)
        return frames

    def _find_segments(self, file: h5py.File) -> tuple[str, ...]:
        self._segment_names = _checked_segments(self.path, file)
        return self._segment_names

    def _identity(self) -> Identity:
        status = os.fstat(self._hdf5.id.get_vfd_handle())
        return status.st_dev, status.st_ino

    @contextmanager
    def hdf5(self) -> Iterator[h5py.File]:
        """Lend the HDF5 file, which is not closed or refreshed meanwhile.

        Raises
        ------
        FileFormatError
            If the file was removed or replaced.
        """
        with self.lock:
            if self._suspended:
                self._hdf5 = open_for_reading(self.path, "recording", trusted=True)
                self._suspended = False
                self._check_identity()
                self._frames, self._ledger = self._find_frames(), self._dataset("ledger", 1)
            if not self._hdf5:
                raise FileFormatError(f"{self.path} could not be reopened", hint="Check that it still exists.")
            _note_open(self)
            with reading(self.path, "a recording"):
                yield self._hdf5

    def suspend(self) -> bool:
        """Close the file until its next use; return False, doing nothing, while it is in use."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            self._hdf5.close()
            self._suspended = True
        finally:
            self.lock.release()
        return True

    def close(self) -> None:
        """Close the file permanently."""
        with _open_files_lock:
            _open_files.pop(id(self), None)
        with self.lock:
            self._hdf5.close()

    def _check_identity(self) -> None:
        if self._identity() != self.identity:
            self._hdf5.close()
            raise FileFormatError(f"{self.path} was replaced by another file", hint="Open it again.")

    def _column(self, column: Column, rows: int) -> Array:
        if not column.required and f"rows/{column.name}" not in self._hdf5:
            return np.full(rows, column.fill, column.dtype)
        node = self._dataset(f"rows/{column.name}", 1)
        if node.dtype.kind != np.dtype(column.dtype).kind:
            raise FileFormatError(f"{place(node)} has the wrong type", expected=column.dtype, got=node.dtype)
        return read_dataset(node)

    def _chunk_columns(self) -> dict[str, Array]:
        names = [name for name in self._hdf5["rows"] if name.startswith(CHUNK_PREFIX)]
        nodes = [self._dataset(f"rows/{name}", 1) for name in names]
        return {name: read_dataset(node) for name, node in zip(names, nodes, strict=True) if node.dtype.kind == "f"}

    def _dataset(self, name: str, ndim: int) -> h5py.Dataset:
        node = self._hdf5.get(name)
        if not isinstance(node, h5py.Dataset) or node.ndim != ndim:
            raise FileFormatError(
                f"The recording {self.path} is incomplete", expected=f"a {ndim}-D dataset {name!r}", got=node
            )
        return node

    def reopen(self) -> None:
        """Reopen the file to see the data that its writer has flushed since.

        Raises
        ------
        FileFormatError
            If the file was removed or replaced; nothing can be read until it is back.
        """
        with self.lock:
            self._hdf5.close()
            self._suspended = False
            self._open()
            self._check_identity()
            _note_open(self)

    @property
    def frame_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of a row of ``"raw"`` and ``"video"``, if they are stored."""
        return {name: node.shape[1:] for name, node in self._frames.items()}

    def stored(self, name: str) -> np.dtype[Any] | None:
        """Return the type of ``"raw"`` or ``"video"``, None if it is not stored."""
        return self._dtypes.get(name)

    def frame(self, name: str, row: int, part: tuple[int | slice, ...] = ()) -> Array:
        """Read a row of ``"raw"`` or ``"video"``, or a part of it."""
        with self.hdf5():
            self._reads += 1
            if self._reads % _READS_OF_VIRTUAL == 0 and self._frames[name].is_virtual:
                self._frames = {}  # first: HDF5 does not close a dataset that is still referenced
                self._frames = self._find_frames()
            return read_dataset(self._frames[name], (row, *part))

    def ledger(self) -> bytes:
        """Return the ledger without its padding."""
        with self.hdf5():
            return read_dataset(self._ledger).tobytes().rstrip(b"\0")


def _checked_segments(path: Path, file: h5py.File) -> tuple[str, ...]:
    """Return the names of the segments that a file shows as one recording; () for a segment.

    Raises
    ------
    FileFormatError
        If one is missing (HDF5 would return zeros for it), lies in another folder, is of another series, or refers to
        other files itself.
    """
    if "segments" not in file.attrs:
        return ()
    names = tuple(str(name) for name in np.atleast_1d(file.attrs["segments"]))
    series = read_info(file).series
    if not all(name.endswith(".h5") and Path(name).name == name for name in names):
        raise FileFormatError(f"{path} shows files that are no segments", expected="names of .h5 files", got=names)
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise FileFormatError(
            f"Segments of {path} are missing",
            expected=f"{len(names)} segments",
            got=f"{len(missing)} missing, such as {missing[0]}",
            hint="Keep the files of a recording together.",
        )
    for name in names:
        with open_for_reading(path.with_name(name), "recording") as segment:
            check_mark(segment, RECORDING_FORMAT, RECORDING_VERSION)
            if (other := read_info(segment).series) != series:
                raise FileFormatError(f"{name} is not a segment of {path}", expected=f"series {series}", got=other)
    return names


_shared: dict[Identity, RecordingFile] = {}
_shared_lock = threading.Lock()
# Open files, least recently read first. Its lock is acquired last, and no other lock under it.
_open_files: OrderedDict[int, RecordingFile] = OrderedDict()
_open_files_lock = threading.Lock()


def _note_open(file: RecordingFile) -> None:
    with _open_files_lock:
        _open_files[id(file)] = file
        _open_files.move_to_end(id(file))
        for other in list(_open_files.values()):
            if len(_open_files) <= _MAX_OPEN:
                break
            if other is not file and other.suspend():
                del _open_files[id(other)]


def share(path: Path) -> RecordingFile:
    """Return the shared open file of ``path``, refreshed; `release` it after use.

    Raises
    ------
    FileFormatError
        If the file is missing, of another format, of a newer schema, or incomplete.
    """
    with _shared_lock:
        try:
            status = path.stat()
        except OSError:
            shared = None
        else:
            shared = _shared.get((status.st_dev, status.st_ino))
        if shared is None:
            shared = RecordingFile(path)
            _shared[shared.identity] = shared
        else:
            shared.reopen()
        shared.users += 1
        return shared


def release(shared: RecordingFile) -> None:
    """Return a shared file; the last user closes it."""
    with _shared_lock:
        shared.users -= 1
        if shared.users == 0:
            del _shared[shared.identity]
            shared.close()
