"""The recordings that the live page lists."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sci_stream.model import JsonObject
from sci_stream.storage.recording import Recording
from sci_stream.storage.recording.segments import DAMAGE

_SUFFIXES = (".h5", ".mp4", ".mkv")
# The list opens each file: a folder of years would take minutes.
_MOST_RECORDINGS = 200


@dataclass(frozen=True, slots=True)
class RecordingEntry:
    """A recorded file. ``state`` is open, clean, continued, unfinished, unreadable or movie."""

    name: str
    bytes: int
    modified_s: float
    state: str
    series: str = ""
    ledger: JsonObject | None = None


def list_recordings(folder: Path, open_name: str = "") -> list[RecordingEntry]:
    """Return the newest 200 recorded files of a folder, newest first, with the ledger of each recording."""
    found = []
    for path in recorded_files(folder)[:_MOST_RECORDINGS]:
        try:
            stat = path.stat()
        except OSError:
            continue  # removed meanwhile
        size, modified_s = stat.st_size, stat.st_mtime
        if path.name == open_name:
            found.append(RecordingEntry(path.name, size, modified_s, "open"))
        elif path.suffix != ".h5":
            found.append(RecordingEntry(path.name, size, modified_s, "movie"))
        else:
            series, state, text = _described(path, modified_s, size)
            found.append(RecordingEntry(path.name, size, modified_s, state, series, json.loads(text)))
    return found


@lru_cache(maxsize=4 * _MOST_RECORDINGS)
def _described(path: Path, _modified_s: float, _size: int) -> tuple[str, str, str]:
    """Return series, state and ledger (JSON) of a recording; read again only once it has changed."""
    try:
        with Recording(path) as recording:
            state = "clean" if recording.clean else "continued" if recording.finished else "unfinished"
            return recording.info.series, state, json.dumps(recording.ledger)
    except DAMAGE:
        return "", "unreadable", "null"


def recorded_files(folder: Path) -> list[Path]:
    """Return the recorded files of a folder, newest first."""
    try:
        found = [path for path in folder.iterdir() if path.suffix in _SUFFIXES and not path.name.startswith(".")]
    except OSError:
        return []  # no folder yet
    return sorted(filter(Path.is_file, found), key=_modified_s, reverse=True)


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # removed meanwhile
