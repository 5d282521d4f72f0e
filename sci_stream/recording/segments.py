"""Segments of a recording: files that never overwrite each other, and the rows that earlier
segments contain.
"""

from __future__ import annotations

import glob
import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from sci_stream.clock import unix_ns
from sci_stream.delivery.interval_set import IntervalSet
from sci_stream.delivery.ledger import LedgerCounts
from sci_stream.errors import InputError, StorageError
from sci_stream.recording.layout import LedgerDocument
from sci_stream.recording.reader import DAMAGE, Recording

_LOG = logging.getLogger(__name__)
# Bounds the search for a free name in a folder that another program fills.
MAX_SEGMENTS = 100_000
# Free space reserved for HDF5 to write its indices on closing.
_MAX_CLOSING_BYTES = 8 << 20
# The same on a small disk: the indices of a recording take less than this share of it.
_DISK_SHARE = 1 / 16
# File systems limit a name to 255 bytes; the remainder is for the segment number and suffixes.
_MAX_NAME_BYTES = 200


@dataclass
class WrittenRows:
    """Sequence numbers of a series in the segments so far: with raw counts, and with an outcome.

    ``first`` is the first row of the earliest segment, None without one; snapshots before it are
    not in the recording.
    """

    raw: IntervalSet = field(default_factory=IntervalSet)
    settled: IntervalSet = field(default_factory=IntervalSet)
    first: int | None = None

    def add_segment(self, path: Path, series: str) -> None:
        """Add the rows of a segment, unless it is damaged or of another series."""
        if (segment := open_segment(path, series, only_outcomes=True)) is None:
            return
        with segment:
            self.first = (
                segment.first_seq if self.first is None else min(self.first, segment.first_seq)
            )
            self.raw.update(segment.raw_seqs)
            self.settled.update(segment.settled_seqs)


def free_bytes(path: Path) -> int:
    """Return the bytes available to this user on the disk of ``path``, whose folder exists."""
    return shutil.disk_usage(path.parent).free


def disk_share(path: Path, max_bytes: int) -> int:
    """Return ``max_bytes``, or a sixteenth of the disk of ``path`` if that is less."""
    return min(max_bytes, int(shutil.disk_usage(path.parent).total * _DISK_SHARE))


def closing_bytes(path: Path) -> int:
    """Return the free space that a recording on the disk of ``path`` needs to be closed."""
    return disk_share(path, _MAX_CLOSING_BYTES)


def require_space(path: Path, n_bytes: int) -> int:
    """Refuse data before a disk is full, when HDF5 cannot close a file or ends the process.

    Returns the bytes that may be written. Raises `StorageError`.
    """
    reserve = closing_bytes(path)
    need = n_bytes + reserve
    free = free_bytes(path)
    if free < need:
        raise StorageError(
            f"The disk of {path} is full",
            expected=f"{need / 2**20:.1f} MiB",
            got=f"{free / 2**20:.1f} MiB free on its disk",
            hint="Data written before is kept; free some space, or use another disk.",
        )
    return free - reserve


def recording_path(folder: Path, series: str) -> Path:
    """Return the path of the first segment of a series' recording, ``folder / "run.h5"``.

    Raises `InputError` if the series' name, which may come from the network, is not a plain file
    name.
    """
    plain = series.isprintable() and not set(series) & set("/\\") and not series.startswith(".")
    if not series or not plain or len(series.encode()) > _MAX_NAME_BYTES:
        raise InputError(
            "The name of the series cannot be a file name",
            expected=f"a plain file name of at most {_MAX_NAME_BYTES} bytes",
            got=repr(series),
        )
    return folder / f"{series}.h5"


def segment_path(path: Path, segment: int) -> Path:
    """Return the path of a segment: ``run.h5``, ``run_001.h5``, ``run_002.h5``, …."""
    return path if segment == 0 else path.with_name(f"{path.stem}_{segment:03d}{path.suffix}")


def first_segment(path: Path) -> Path:
    """Return the path of the first segment of the recording that ``path`` belongs to, judged by the
    names.
    """
    match = re.fullmatch(r"(.+)_\d{3,}", path.stem)
    base = path.with_name(f"{match[1]}{path.suffix}") if match else path
    return base if base.exists() else path


def is_segment_of(path: Path, first: Path) -> bool:
    """Return whether both files can be read and are of one series."""
    try:
        with (
            Recording(first, only_outcomes=True) as one,
            Recording(path, only_outcomes=True) as other,
        ):
            return one.info.series == other.info.series
    except DAMAGE:
        return False


@contextmanager
def new_segment(path: Path) -> Iterator[Path]:
    """Provide a hidden path, whose file takes the name ``path`` at the end; it is removed on an
    error.

    HDF5 marks a file as being written a moment before it allows concurrent readers; a writer killed
    between the two leaves a file that no reader can open. So a segment gets its name once it is
    open for both.

    Raises `FileExistsError` if the name is taken. Existing files are never opened for writing: the
    end-of-file mark of a crashed one may be stale, and writing could overwrite its data.
    """
    if path.exists():
        raise FileExistsError
    hidden = path.with_name(f".{path.name}.new")
    hidden.unlink(missing_ok=True)  # of a writer that was killed
    try:
        yield hidden
        _publish(hidden, path)
    except (OSError, StorageError):
        hidden.unlink(missing_ok=True)
        raise


def _publish(hidden: Path, path: Path) -> None:
    """Rename a hidden file if the name is free; raise FileExistsError otherwise."""
    try:
        # A hard link fails if the name exists, atomically; rename() would silently replace the file
        # of another sink.
        path.hardlink_to(hidden)
    except FileExistsError:
        raise
    except OSError:
        # No hard links on this file system: another sink could create the file in between.
        if path.exists():
            raise FileExistsError from None
        hidden.rename(path)
    else:
        hidden.unlink()


def open_segment(path: Path, series: str, *, only_outcomes: bool = False) -> Recording | None:
    """Open a segment; None if it is of another series or, with a warning, damaged."""
    try:
        recording = Recording(path, only_outcomes=only_outcomes)
    except DAMAGE as error:
        _LOG.warning("Skipping segment %s: %s", path, error)
        return None
    if recording.info.series == series:
        return recording
    recording.close()
    return None


def finish_segments(path: Path, series: str, ledger: LedgerCounts) -> None:
    """Finish the segments that a full disk ended before the series did, now that its ledger closes.

    Each names its successor, the last has the ledger. Those that a crash left stay unfinished:
    `repair_recording` makes clean copies.
    """
    segments = list(earlier_segments(path, series, only_outcomes=True))
    for segment, following in zip_longest(segments, segments[1:]):
        document: LedgerDocument = {"time_ns": unix_ns(), "ledger": segment.ledger or ledger}
        if following is None:
            document |= {"clean": True, "ledger": ledger}
        else:
            document["continued"] = following.path.name
        with segment:
            try:
                if segment.closed_early:
                    segment.replace_ledger(document)
            except DAMAGE as error:
                _LOG.warning("%s stays unfinished, but readable: %s", segment.path, error)


def count_recorded(path: Path, series: str) -> tuple[int, int, list[str]]:
    """Open every segment of ``path`` as a reader would.

    Returns the number of reconstructed snapshots, of snapshots that are reconstructed or have raw
    counts, and errors.
    """
    problems: list[str] = []
    reconstructed = IntervalSet()
    stored = IntervalSet()
    # By number and not by file: a deleted segment in the middle would go unnoticed.
    for number in range(max(segment_numbers(path), default=0) + 1):
        candidate = segment_path(path, number)
        if not candidate.exists():
            problems.append(f"{candidate} is missing")
            continue
        try:
            with Recording(candidate, only_outcomes=True) as recording:
                if recording.info.series == series:
                    videos = recording.seqs_with_outcome("reconstructed")
                    reconstructed.update(videos)
                    stored.update(videos)
                    stored.update(recording.raw_seqs)
                else:
                    problems.append(f"{candidate} holds another series, {recording.info.series}")
        except DAMAGE as error:
            problems.append(f"{candidate} cannot be read: {error}")
    return len(reconstructed), len(stored), problems


def segment_numbers(path: Path) -> list[int]:
    """Return the numbers of ``path``'s segments that exist, in order; 0 is that of ``path``."""
    files = path.parent.glob(f"{glob.escape(path.stem)}_*{path.suffix}")
    names = (file.stem.removeprefix(f"{path.stem}_") for file in files)
    numbers = {int(name) for name in names if name.isdecimal() and int(name) < MAX_SEGMENTS}
    return [number for number in sorted({0, *numbers}) if segment_path(path, number).exists()]


def existing_segments(path: Path) -> list[Path]:
    """Return the existing files of ``path``'s segments, in order, without opening them."""
    return [segment_path(path, number) for number in segment_numbers(path)]


def earlier_segments(
    path: Path, series: str, *, only_outcomes: bool = False
) -> Iterator[Recording]:
    """Yield the existing segments of ``path`` that belong to a series, open for reading; the caller
    closes them.
    """
    for candidate in existing_segments(path):
        recording = open_segment(candidate, series, only_outcomes=only_outcomes)
        if recording is not None:
            yield recording
