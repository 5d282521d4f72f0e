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
from sci_stream.model import Array
from sci_stream.storage.hdf5 import check_mark, open_for_reading
from sci_stream.storage.recording.columns import CHUNK_PREFIX, COLUMNS, OUTCOME_CODES, Column
from sci_stream.storage.recording.layout import FORMAT, SCHEMA_VERSION, RowState

_FRAMES = {"raw": 3, "video": 4}
# A process may have 1024 open files by default; a node also needs sockets.
_MOST_OPEN = 64
# HDF5 keeps every source file of a virtual dataset open, and silently returns zeros for files that it cannot open:
# virtual datasets are reopened after this many reads.
_READS_OF_VIRTUAL = 64

Identity = tuple[int, int]
"""Device and inode: identifies a file under any of its names."""


class RecordingFile:
    """A recording's file open for reading, from `share`, returned with `release`. Thread-safe.

    ``rows`` are its columns by name, all of one length, as of the last refresh.
    """

    rows: Mapping[str, Array]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users = 0
        self.lock = threading.RLock()
        self._reads = 0
        self._asleep = False
        self._open()
        self.identity = self._identity()
        _note_open(self)

    def _open(self) -> None:
        self._hdf5 = open_for_reading(self.path, "recording")
        try:
            check_mark(self._hdf5, FORMAT, SCHEMA_VERSION)
            self._check_segments()
            # State first: the writer flushes it last, so the other columns, read later, contain all it refers to.
            state = self._read(self._dataset("rows/state", 1), ())
            rows = {column.name: self._column(column, len(state)) for column in COLUMNS}
            rows |= self._chunk_columns() | {"state": state}
            shortest = min(len(values) for values in rows.values())
            self.rows = {name: values[:shortest] for name, values in rows.items()}
            self._frames = self._find_frames()
            self._settle_torn_rows()
            self._dtypes = {name: np.dtype(node.dtype) for name, node in self._frames.items()}
            self._ledger = self._dataset("ledger", 1)
        except BaseException:
            self._hdf5.close()
            raise

    def _settle_torn_rows(self) -> None:
        """Make outcomes consistent with states: a kill, or a live reader, may come between the two writes.

        Where video is stored, a snapshot counts as reconstructed if and only if its video is stored. Otherwise a row
        left inconsistent by a kill would be counted and never sent again.
        """
        if "video" not in self._frames or "segments" in self._hdf5.attrs:  # a segment of several may store no video
            return
        outcome, reconstructed = self.rows["outcome"], OUTCOME_CODES["reconstructed"]
        has_video = (self.rows["state"] & RowState.VIDEO) != 0
        outcome[~has_video & (outcome == reconstructed)] = 0
        outcome[has_video] = reconstructed

    def _find_frames(self) -> dict[str, h5py.Dataset]:
        return {name: self._dataset(name, ndim) for name, ndim in _FRAMES.items() if name in self._hdf5}

    def _check_segments(self) -> None:
        """Raise if files behind the virtual datasets are missing: HDF5 would return zeros for them."""
        names = [str(name) for name in self._hdf5.attrs.get("segments", ())]
        missing = [name for name in names if not self.path.with_name(name).exists()]
        if missing:
            raise FileFormatError(
                f"Segments of {self.path} are missing",
                expected=f"{len(names)} segments",
                got=f"{len(missing)} missing, such as {missing[0]}",
                hint="Keep the files of a recording together.",
            )

    def _identity(self) -> Identity:
        found = os.fstat(self._hdf5.id.get_vfd_handle())
        return found.st_dev, found.st_ino

    @contextmanager
    def hdf5(self) -> Iterator[h5py.File]:
        """Lend the HDF5 file, which is not closed or refreshed meanwhile.

        Raises
        ------
        FileFormatError
            If the file was removed or replaced.
        """
        with self.lock:
            if self._asleep:
                self._hdf5 = open_for_reading(self.path, "recording")
                self._asleep = False
                self._check_identity()
                self._frames, self._ledger = self._find_frames(), self._dataset("ledger", 1)
            if not self._hdf5:
                raise FileFormatError(f"{self.path} could not be reopened", hint="Check that it still exists.")
            _note_open(self)
            yield self._hdf5

    def sleep(self) -> bool:
        """Close the file until its next use; return False, doing nothing, while it is in use."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            self._hdf5.close()
            self._asleep = True
        finally:
            self.lock.release()
        return True

    def close(self) -> None:
        """Close the file permanently."""
        _forget(self)
        with self.lock:
            self._hdf5.close()

    def _check_identity(self) -> None:
        if self._identity() != self.identity:
            self._hdf5.close()
            raise FileFormatError(f"{self.path} was replaced by another file", hint="Open it again.")

    def _column(self, column: Column, rows: int) -> Array:
        if column.later and f"rows/{column.name}" not in self._hdf5:
            return np.full(rows, column.fill, column.dtype)
        return self._read(self._dataset(f"rows/{column.name}", 1), ())

    def _chunk_columns(self) -> dict[str, Array]:
        names = [name for name in self._hdf5["rows"] if name.startswith(CHUNK_PREFIX)]
        return {name: self._read(self._dataset(f"rows/{name}", 1), ()) for name in names}

    def _dataset(self, name: str, ndim: int) -> h5py.Dataset:
        node = self._hdf5.get(name)
        if not isinstance(node, h5py.Dataset) or node.ndim != ndim:
            raise FileFormatError(
                f"The recording {self.path} is incomplete", expected=f"a {ndim}-D dataset {name!r}", got=node
            )
        return node

    def reopen(self) -> None:
        """Reopen the file to see what its writer has flushed since.

        Raises
        ------
        FileFormatError
            If the file was removed or replaced; nothing can be read until it is back.
        """
        with self.lock:
            self._hdf5.close()
            self._asleep = False
            self._open()
            self._check_identity()
            _note_open(self)

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
            return self._read(self._frames[name], (row, *part))

    def ledger(self) -> bytes:
        """Return the ledger without its padding."""
        with self.hdf5():
            return self._read(self._ledger, ()).tobytes().rstrip(b"\0")

    def _read(self, node: h5py.Dataset, index: Any) -> Array:
        try:
            return np.asarray(node[index])
        except OSError as error:
            raise FileFormatError(
                f"The dataset {node.name} of {self.path} is damaged", got=str(error).splitlines()[0]
            ) from error


_shared: dict[Identity, RecordingFile] = {}
_sharing = threading.Lock()
# Open files, least recently read first. Its lock is acquired last, and no other lock under it.
_awake: OrderedDict[int, RecordingFile] = OrderedDict()
_waking = threading.Lock()


def _note_open(file: RecordingFile) -> None:
    with _waking:
        _awake[id(file)] = file
        _awake.move_to_end(id(file))
        for other in list(_awake.values()):
            if len(_awake) <= _MOST_OPEN:
                break
            if other is not file and other.sleep():
                del _awake[id(other)]


def _forget(file: RecordingFile) -> None:
    with _waking:
        _awake.pop(id(file), None)


def share(path: Path) -> RecordingFile:
    """Return the shared open file of ``path``, refreshed; `release` it after use.

    Raises
    ------
    FileFormatError
        If the file is missing, of another format, of a newer schema, or incomplete.
    """
    with _sharing:
        try:
            found = path.stat()
        except OSError:
            shared = None
        else:
            shared = _shared.get((found.st_dev, found.st_ino))
        if shared is None:
            shared = RecordingFile(path)
            _shared[shared.identity] = shared
        else:
            shared.reopen()
        shared.users += 1
        return shared


def release(shared: RecordingFile) -> None:
    """Return a shared file; the last user closes it."""
    with _sharing:
        shared.users -= 1
        if shared.users == 0:
            del _shared[shared.identity]
            shared.close()
