"""The open file behind recordings: one for each file, however many in the process read it.

HDF5 keeps one copy of a file's metadata in a process. To see what a live writer has added, the file is closed and
opened again: ``H5Drefresh``, made for this, leaves a dataset that is open twice giving row 0 for every row (HDF5 2.0).
Opening again helps only if nobody else in the process keeps the file open; hence it is shared.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from sci_stream.errors import FileFormatError
from sci_stream.files.hdf5 import check_mark, open_for_reading
from sci_stream.files.recording_layout import FORMAT, SCHEMA_VERSION
from sci_stream.files.recording_rows import COLUMNS, Column
from sci_stream.model import Array

_FRAMES = {"raw": 3, "video": 4}

Identity = tuple[int, int]
"""Device and inode: the same for every name of a file."""


class RecordingFile:
    """A recording's file open for reading; got from `share`, given back to `release`. May be used from any thread.

    ``hdf5`` is the file itself, valid until the next `reopen`; ``rows`` its columns by name, all of one length, as
    they were when it was last opened.
    """

    hdf5: h5py.File
    rows: Mapping[str, Array]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users = 0
        self.lock = threading.RLock()
        self._open()
        self.identity = self._identity()

    def _open(self) -> None:
        self.hdf5 = open_for_reading(self.path, "recording")
        try:
            check_mark(self.hdf5, FORMAT, SCHEMA_VERSION)
            # State first: whatever it speaks of was written before it, and is opened after it.
            state = self._read(self._dataset("rows/state", 1), ())
            rows = {column.name: self._column(column, len(state)) for column in COLUMNS}
            self.rows = {name: values[: len(state)] for name, values in rows.items()} | {"state": state}
            self._frames = {name: self._dataset(name, ndim) for name, ndim in _FRAMES.items() if name in self.hdf5}
            self._dtypes = {name: np.dtype(node.dtype) for name, node in self._frames.items()}
            self._ledger = self._dataset("ledger", 1)
        except BaseException:
            self.hdf5.close()
            raise

    def _identity(self) -> Identity:
        found = os.fstat(self.hdf5.id.get_vfd_handle())
        return found.st_dev, found.st_ino

    def _column(self, column: Column, rows: int) -> Array:
        if column.later and f"rows/{column.name}" not in self.hdf5:
            return np.full(rows, column.fill, column.dtype)
        return self._read(self._dataset(f"rows/{column.name}", 1), ())

    def _dataset(self, name: str, ndim: int) -> h5py.Dataset:
        node = self.hdf5.get(name)
        if not isinstance(node, h5py.Dataset) or node.ndim != ndim:
            raise FileFormatError(
                f"The recording {self.path} is incomplete", expected=f"a {ndim}-D dataset {name!r}", got=node
            )
        return node

    def reopen(self) -> None:
        """Look at the file anew, to see what its writer has flushed since.

        Raises
        ------
        FileFormatError
            If it is there no more or is another file now; nothing can be read then until it is back.
        """
        with self.lock:
            self.hdf5.close()
            self._open()
            if self._identity() != self.identity:
                self.hdf5.close()
                raise FileFormatError(f"Another file has taken the place of {self.path}", hint="Open it anew.")

    def stored(self, name: str) -> np.dtype[Any] | None:
        """Return the type of ``"raw"`` or ``"video"``, None if it is not stored."""
        return self._dtypes.get(name)

    def frame(self, name: str, row: int, part: tuple[int | slice, ...] = ()) -> Array:
        """Read a row of ``"raw"`` or ``"video"``, or a part of it."""
        with self.lock:
            self._check_open()
            return self._read(self._frames[name], (row, *part))

    def ledger(self) -> bytes:
        """Read the account, without its padding."""
        with self.lock:
            self._check_open()
            return self._read(self._ledger, ()).tobytes().rstrip(b"\0")

    def _check_open(self) -> None:
        if not self.hdf5:
            raise FileFormatError(f"{self.path} could not be opened again", hint="Is it still there?")

    def _read(self, node: h5py.Dataset, index: Any) -> Array:
        try:
            return np.asarray(node[index])
        except OSError as error:
            raise FileFormatError(
                f"The dataset {node.name} of {self.path} is damaged", got=str(error).splitlines()[0]
            ) from error


_shared: dict[Identity, RecordingFile] = {}
_sharing = threading.Lock()


def share(path: Path) -> RecordingFile:
    """Return this process's open file for ``path``, looked at anew; `release` it after use.

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
            with shared.lock:
                shared.hdf5.close()
