"""An append-only journal of the events of a series, one JSON object per line, next to its
recording.

It survives damage to the recording: it is plain text, synced to disk batch by batch, and a
truncated last line loses that line only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sci_stream.clock import unix_ns
from sci_stream.errors import StorageError
from sci_stream.model import Json


class Journal:
    """Append events to a file. Used from one thread.

    The file is created if missing, appended to otherwise.

    Raises `StorageError` if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[str] = []
        try:
            # Unbuffered: a batch reaches the kernel in one write, so that a crash can truncate its
            # last line only.
            # Not through a symbolic link, which could be planted to make it append to another file.
            number = os.open(
                path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
            )
            self._file = os.fdopen(number, "ab+", buffering=0)
            self._end_torn_line()
        except OSError as error:
            raise StorageError(f"The journal {path} cannot be opened", got=error) from error

    def _end_torn_line(self) -> None:
        size = self._file.seek(0, os.SEEK_END)
        if size:
            self._file.seek(size - 1)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def append(self, event: str, fields: Mapping[str, Json] | None = None) -> None:
        """Add an event to the batch; nothing is written before `sync`."""
        line = {"event": event, "time_ns": unix_ns(), **(fields or {})}
        self._pending.append(json.dumps(line, separators=(",", ":"), default=str))

    def sync(self) -> None:
        """Write the batch and sync it to disk; do nothing if the batch is empty.

        Raises `StorageError` if writing fails; the batch is kept and written by the next call.
        """
        if not self._pending:
            return
        batch = ("\n".join(self._pending) + "\n").encode()
        end = None
        try:
            end = self._file.seek(0, os.SEEK_END)
            # An unbuffered file may write less than asked for on a full disk, without an exception.
            written = self._file.write(batch)
            if written != len(batch):
                raise OSError(f"{written} of {len(batch)} bytes written")
            # The recording relies on the page cache for speed; the journal is small enough to
            # survive a power failure too.
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                if end is not None:
                    self._file.truncate(end)  # the next call would append to a fragment
            raise StorageError(f"The journal {self.path} cannot be written", got=error) from error
        self._pending.clear()

    def close(self) -> None:
        """Write pending lines and close. May be called again."""
        if self._file.closed:
            return
        try:
            self.sync()
        finally:
            self._file.close()
