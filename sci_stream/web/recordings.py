"""Recordings on the live page: their list and their pictures, read without whole tables of rows."""

from __future__ import annotations

import json
import math
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from pydantic import JsonValue

from sci_stream.errors import FileFormatError, InputError
from sci_stream.file_guard import complete_output, read_small
from sci_stream.imaging.rendering import encode_jpeg, render, render_counts, shrink
from sci_stream.model import Reconstruction
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.layout import frame_shape
from sci_stream.recording.reader import DAMAGE, Recording

_SUFFIXES = (".h5", ".mp4", ".mkv")
# The list opens each file: a folder of years would take minutes.
_MAX_RECORDINGS = 200
# A reader keeps one byte a row: 10 MB after four days at 30 snapshots a second.
_MAX_READERS = 4
# A snapshot of 2048×2048 px with 24 frames; larger ones would take memory that the rig needs.
_MAX_SNAPSHOT_BYTES = 256 << 20
_THUMBNAIL_PX = 96
MAX_NOTE = 500
"""Characters of a note on a recording."""


@dataclass(frozen=True)
class RecordingEntry:
    """A recorded file. ``state`` is open, clean, continued, unfinished, unreadable or movie."""

    name: str
    bytes: int
    modified_s: float
    state: str
    series: str = ""
    ledger: dict[str, JsonValue] | None = None
    parent: str = ""
    """The recording that it is a replay of."""
    events: int = 0
    note: str = ""


class Recordings:
    """The recorded files in a rig's ``folder``. Thread-safe.

    Links are neither listed nor followed: they could show any file of this user. ``open_name``
    returns the name of the file that is being written.
    """

    def __init__(self, folder: Path, open_name: Callable[[], str]) -> None:
        self._folder = folder
        self._open_name = open_name
        self._readers = OrderedDict[tuple[Path, int, int, int], Recording]()
        self._reading = threading.Lock()
        self._thumbnail = lru_cache(_MAX_RECORDINGS)(self._make_thumbnail)

    def entries(self) -> list[RecordingEntry]:
        """Return the newest 200 recorded files of the folder, newest first, with the ledger of each
        recording.
        """
        files = sorted(self._files(), key=lambda file: file[1].st_mtime, reverse=True)
        open_name = self._open_name()
        entries = []
        for path, status in files[:_MAX_RECORDINGS]:
            if path.name == open_name:
                entry = RecordingEntry(path.name, 0, 0.0, "open")
            else:
                entry = _described(path, status.st_mtime_ns, status.st_size)
            entries.append(
                replace(
                    entry,
                    bytes=status.st_size,
                    modified_s=status.st_mtime,
                    note=_note_on(path),
                )
            )
        return entries

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the recorded files; none if there is no folder yet."""
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                path = Path(entry.path)
                with suppress(OSError):  # removed meanwhile
                    if _is_recorded(path) and entry.is_file(follow_symlinks=False):
                        yield path, entry.stat(follow_symlinks=False)

    def path_of(self, name: str) -> Path:
        """Return the path of a recorded file.

        Raises `InputError` if there is none, or it is being written.
        """
        path = self._folder / name
        # A name of several parts, such as "../secret", is no recording.
        if path.name != name or not _is_recorded(path) or not _is_regular(path):
            raise InputError(
                f"There is no recording {name!r}", hint="The list shows what there is."
            )
        if name == self._open_name():
            raise InputError(f"{name} is still being written", hint="Stop the recording first.")
        return path

    def write_note(self, name: str, note: str) -> None:
        """Keep a note on a recording, in a text file beside it; an empty one removes it.

        Raises `InputError` as `path_of`; `StorageError` if the note cannot be written.
        """
        note_path = _note_path(self.path_of(name))
        if not note:
            note_path.unlink(missing_ok=True)
            return
        with complete_output(note_path, replace=True) as partial:
            partial.write_text(note, encoding="utf-8")

    def snapshot(self, name: str, index: int) -> tuple[Reconstruction, int]:
        """Return a snapshot of a recording by its place, its series named as the file, and the
        number of snapshots.

        Raises `InputError` if there is none, or it is too large; `FileFormatError` if the file is
        not a recording.
        """
        with self._reader(name) as recording:
            total = recording.count("video")
            if not 0 <= index < total:
                expected = f"0 to {total - 1}" if total else "a recording with video"
                raise InputError(f"{name} has no such snapshot", expected=expected, got=index)
            shown = recording.reconstruction(recording.seq_at("video", index))
        return replace(shown, id=replace(shown.id, series=name)), total

    def thumbnail(self, name: str) -> bytes:
        """Return a small picture from the middle of a recording, as JPEG.

        Raises as `snapshot`.
        """
        return self._thumbnail(name, self.path_of(name).stat().st_mtime_ns)

    def _make_thumbnail(self, name: str, _modified_ns: int) -> bytes:
        with self._reader(name) as recording:
            stored = "video" if recording.count("video") else "raw"
            total = recording.count(stored)
            if not total:
                raise InputError(f"{name} has no picture")
            seq = recording.seq_at(stored, total // 2)
            if stored == "raw":
                picture = render_counts(recording.raw(seq))
            else:
                picture = render(recording.video(seq, (slice(0, 1),)), recording.info.bayer)[0]
        return encode_jpeg(shrink(picture, _THUMBNAIL_PX))

    def calibration(self, name: str) -> Calibration:
        """Return the calibration of a recording. Raises as `snapshot`."""
        with self._reader(name) as recording:
            return recording.calibration

    @contextmanager
    def _reader(self, name: str) -> Iterator[Recording]:
        """Provide the reader of a recording for one request; it is open no longer than that."""
        path = self.path_of(name)
        with self._reading:
            status = path.stat()
            key = path, status.st_ino, status.st_mtime_ns, status.st_size
            if key not in self._readers:
                self._readers[key] = Recording(path, by_row=True)
            self._readers.move_to_end(key)
            while len(self._readers) > _MAX_READERS:
                self._readers.popitem(last=False)
            recording = self._readers[key]
            try:
                _require_small(recording)
                yield recording
            finally:
                recording.suspend()


def _is_recorded(path: Path) -> bool:
    return path.suffix in _SUFFIXES and not path.name.startswith(".")


def _note_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.note.txt")


def _note_on(path: Path) -> str:
    note_path = _note_path(path)
    if not _is_regular(note_path):
        return ""
    try:
        content = read_small(note_path, "a note", 4 * MAX_NOTE)
    except FileFormatError:  # removed meanwhile, or no note of this page
        return ""
    return content.decode("utf-8", "replace")


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):  # no text that a path can be
        return False


def _require_small(recording: Recording) -> None:
    info = recording.info
    dtypes = {name: recording.stored_dtype(name) for name in ("raw", "video", "picture")}
    n_bytes = sum(
        math.prod(frame_shape(name, info)) * dtype.itemsize
        for name, dtype in dtypes.items()
        if dtype is not None
    )
    if n_bytes > _MAX_SNAPSHOT_BYTES:
        raise InputError(
            f"The snapshots of {recording.path.name} are too large for the page",
            expected=f"at most {_MAX_SNAPSHOT_BYTES >> 20} MiB each",
            got=f"{n_bytes >> 20} MiB",
            hint="Export them: sci-stream export.",
        )


@lru_cache(maxsize=4 * _MAX_RECORDINGS)
def _described(path: Path, _modified_ns: int, _size: int) -> RecordingEntry:
    """Describe a file without its size and time; read again once it has changed."""
    if path.suffix != ".h5":
        return RecordingEntry(path.name, 0, 0.0, "movie")
    try:
        with Recording(path, by_row=True) as recording:
            unclean = "continued" if recording.finished else "unfinished"
            events = recording.notes.get("events")
            return RecordingEntry(
                path.name,
                0,
                0.0,
                state="clean" if recording.clean else unclean,
                series=recording.info.series,
                ledger=json.loads(json.dumps(recording.ledger)),
                parent=str((recording.parent or {}).get("file", "")),
                events=len(events) if isinstance(events, list) else 0,
            )
    except DAMAGE:
        return RecordingEntry(path.name, 0, 0.0, "unreadable")
