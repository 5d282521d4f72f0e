"""The open file behind recordings: one for each file, however many in the process read it.

HDF5 keeps one copy of a file's metadata in a process. To see what a live writer has added, the file is closed and
opened again: ``H5Drefresh``, made for this, leaves a dataset that is open twice giving row 0 for every row (HDF5 2.0).
Opening again helps only if no one else in the process keeps the file open; hence it is shared.

A recording of days has more segments than a process may have files open: those that were not read of late are closed
meanwhile, and opened again when they are.
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
_MOST_OPEN = 64
_READS_OF_VIRTUAL = 64
"""After so many reads of virtual datasets they are reopened: HDF5 keeps every file open that one of them was read
from, and gives zeros in the place of what it cannot open."""

Identity = tuple[int, int]
"""Device and inode: the same for every name of a file."""


class RecordingFile:
    """A recording's file open for reading; got from `share`, given back to `release`. May be used from any thread.

    ``rows`` are its columns by name, all of one length, as they were when it was last looked at.
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
            # State first: whatever it speaks of was written before it, and is opened after it.
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
        """Have outcomes agree with states: a kill may come between the two, and a live reader look between them.

        Where video is stored, a snapshot is reconstructed if, and only if, its video is there. A row that says so
        without, as kills left some while outcomes were not written last, would have it counted and never sent again.
        """
        if "video" not in self._frames or "segments" in self._hdf5.attrs:  # of several files, some may store none
            return
        outcome, reconstructed = self.rows["outcome"], OUTCOME_CODES["reconstructed"]
        has_video = (self.rows["state"] & RowState.VIDEO) != 0
        outcome[~has_video & (outcome == reconstructed)] = 0
        outcome[has_video] = reconstructed

    def _find_frames(self) -> dict[str, h5py.Dataset]:
        return {name: self._dataset(name, ndim) for name, ndim in _FRAMES.items() if name in self._hdf5}

    def _check_segments(self) -> None:
        """Raise if files that this one lies over are not there: HDF5 would show zeros in their place."""
        names = [str(name) for name in self._hdf5.attrs.get("segments", ())]
        missing = [name for name in names if not self.path.with_name(name).exists()]
        if missing:
            raise FileFormatError(
                f"The files that {self.path} lies over are not all beside it",
                expected=f"{len(names)} segments",
                got=f"{len(missing)} missing, such as {missing[0]}",
                hint="Keep the files of a recording together.",
            )

    def _identity(self) -> Identity:
        found = os.fstat(self._hdf5.id.get_vfd_handle())
        return found.st_dev, found.st_ino

    @contextmanager
    def hdf5(self) -> Iterator[h5py.File]:
        """Lend the file itself, which stays open and as it is meanwhile.

        Raises
        ------
        FileFormatError
            If it is there no more or is another file now.
        """
        with self.lock:
            if self._asleep:
                self._hdf5 = open_for_reading(self.path, "recording")
                self._asleep = False
                self._check_identity()
                self._frames, self._ledger = self._find_frames(), self._dataset("ledger", 1)
            if not self._hdf5:
                raise FileFormatError(f"{self.path} could not be opened again", hint="Is it still there?")
            _note_open(self)
            yield self._hdf5

    def sleep(self) -> bool:
        """Close the file until it is needed again; return False, doing nothing, while it is in use."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            self._hdf5.close()
            self._asleep = True
        finally:
            self.lock.release()
        return True

    def close(self) -> None:
        """Close the file for good."""
        _forget(self)
        with self.lock:
            self._hdf5.close()

    def _check_identity(self) -> None:
        if self._identity() != self.identity:
            self._hdf5.close()
            raise FileFormatError(f"Another file has taken the place of {self.path}", hint="Open it again.")

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
        """Refresh the file, to see what its writer has flushed since.

        Raises
        ------
        FileFormatError
            If it is there no more or is another file now; nothing can be read then until it is back.
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
                self._frames = {}  # first: what is open twice stays open
                self._frames = self._find_frames()
            return self._read(self._frames[name], (row, *part))

    def ledger(self) -> bytes:
        """Read the account, without its padding."""
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
_awake: OrderedDict[int, RecordingFile] = OrderedDict()
"""Files that are open, the one read longest ago first. Its lock is taken last, and no other is waited for under it."""
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
    """Return this process's open file for ``path``, refreshed; `release` it after use.

    Raises
    ------
    FileFormatError
        If there is no such file, it is foreign, of a newer schema, or incomplete.
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
    """Give an open file back; the last one to do so closes it."""
    with _sharing:
        shared.users -= 1
        if shared.users == 0:
            del _shared[shared.identity]
            shared.close()
