"""Segments of a recording: files that never overwrite each other, and the rows that earlier segments contain."""

from __future__ import annotations

import glob
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import h5py

from sci_stream.delivery.interval_set import IntervalSet
from sci_stream.errors import FileFormatError, InputError, StorageError
from sci_stream.recording.reader import Recording

_LOG = logging.getLogger(__name__)
DAMAGE = (FileFormatError, OSError, RuntimeError, ValueError, KeyError)
"""Errors of reading a recording: h5py's depends on the damaged place."""
# Bounds the search for a free name in a folder that another program fills.
_MAX_SEGMENTS = 100_000
# File systems limit a name to 255 bytes; the remainder is for the segment number and suffixes.
_MAX_NAME_BYTES = 200


@dataclass(slots=True)
class WrittenRows:
    """Sequence numbers of a series in the segments so far: with raw counts, and with an outcome.

    ``first`` is the first row of the earliest segment, None without one; snapshots before it are not in the recording.
    """

    raw: IntervalSet = field(default_factory=IntervalSet)
    settled: IntervalSet = field(default_factory=IntervalSet)
    first: int | None = None

    def first_unsettled(self, otherwise: int) -> int:
        """Return the first snapshot from `first` up without an outcome; without earlier segments start at another."""
        return self.settled.first_missing(otherwise if self.first is None else self.first)


def free_bytes(path: Path) -> int:
    """Return the bytes available to this user on the disk of ``path``, whose folder exists."""
    return shutil.disk_usage(path.parent).free


def recording_path(folder: Path, series: str) -> Path:
    """Return the path of the first segment of a series' recording, ``folder / "run.h5"``.

    Raises
    ------
    InputError
        If the series' name, which may come from the network, is not a plain file name.
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
    """Return the path of the first segment of the recording that ``path`` belongs to, judged by the names."""
    match = re.fullmatch(r"(.+)_\d{3,}", path.stem)
    base = path.with_name(f"{match[1]}{path.suffix}") if match else path
    return base if base.exists() else path


def create_segment(
    path: Path,
    series: str,
    written: WrittenRows,
    build: Callable[[WrittenRows], bytes],
    begin: Callable[[Path, Path], h5py.File],
    *,
    segment: int = 0,
) -> int:
    """Create the first segment that does not exist yet, complete and open, or not at all; return its number.

    HDF5 marks a file as being written a moment before it allows concurrent readers; a writer killed between the two
    leaves a file that no reader can open. So the file is created under a hidden name and renamed once both are set.

    Parameters
    ----------
    path, series
        Path of the first segment; name of the series.
    written
        Rows in the segments before number ``segment``; those of later ones, which exist, are added.
    build
        Makes the initial bytes of the file, given the rows of earlier segments.
    begin
        Opens the file under the hidden name for writing; the second argument is its final name.
    segment
        Number to begin with.

    Raises
    ------
    StorageError
        If the file cannot be created.
    """
    for number in range(segment, _MAX_SEGMENTS):
        candidate = segment_path(path, number)
        try:
            # Existing files are never opened for writing: the end-of-file mark of a crashed one may be stale, and
            # writing could overwrite its data.
            if candidate.exists():
                raise FileExistsError
            _begin_new(candidate, build(written), begin)
            return number
        except FileExistsError:
            _add_rows(candidate, series, written)
        except OSError as error:
            raise StorageError(
                f"The recording {candidate} cannot be created",
                got=error.strerror or error,
                hint="Its folder must exist, be writable and have free space.",
            ) from error
    raise StorageError(
        f"The recording {path} has too many segments", expected=f"at most {_MAX_SEGMENTS}", hint="Move them away."
    )


def _begin_new(path: Path, image: bytes, begin: Callable[[Path, Path], h5py.File]) -> None:
    _remove_left_behind(path)
    hidden = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        # A new file: through a symbolic link of this name another one would be overwritten.
        hidden.unlink(missing_ok=True)
        with hidden.open("xb") as new:
            new.write(image)
        file = begin(hidden, path)
        try:
            _publish(hidden, path)
        except OSError:
            file.close()
            raise
    except (OSError, StorageError):
        hidden.unlink(missing_ok=True)
        raise


def _publish(hidden: Path, path: Path) -> None:
    """Rename a hidden file if the name is free; raise FileExistsError otherwise."""
    try:
        # A hard link fails if the name exists, atomically; rename() would silently replace the file of another sink.
        path.hardlink_to(hidden)
    except FileExistsError:
        raise
    except OSError:  # no hard links on this file system: another sink could create the file between the two calls
        if path.exists():
            raise FileExistsError from None
        hidden.rename(path)
    else:
        hidden.unlink()


def _remove_left_behind(path: Path) -> None:
    """Remove hidden files of a writer that was killed while it created this segment."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
        process = leftover.name.split(".")[-2]
        if process.isdecimal() and not _is_alive(int(process)):
            leftover.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        # Signal 0 only checks for existence. A recycled pid makes a leftover file survive, which is harmless.
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process belongs to another user
        return True
    return True


def _add_rows(path: Path, series: str, written: WrittenRows) -> None:
    if (segment := _open_segment(path, series, only_outcomes=True)) is None:
        return
    with segment:
        written.first = segment.first_seq if written.first is None else min(written.first, segment.first_seq)
        for seq in segment.raw_seqs:
            written.raw.add(seq)
        for seq in segment.settled_seqs:
            written.settled.add(seq)


def _open_segment(path: Path, series: str, *, only_outcomes: bool = False) -> Recording | None:
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


@dataclass(frozen=True, slots=True)
class RecordedCount:
    """Snapshots whose reconstruction can be read back from the segments of a series, and the errors of these."""

    reconstructed: int
    problems: tuple[str, ...]


def count_recorded(path: Path, series: str) -> RecordedCount:
    """Open every segment of ``path`` as a reader would, and count the reconstructed snapshots in them."""
    problems: list[str] = []
    reconstructed = IntervalSet()
    # By number and not by file: a deleted segment in the middle would go unnoticed.
    last = max((number for number in _segment_numbers(path)), default=0)
    for number in range(last + 1):
        candidate = segment_path(path, number)
        if not candidate.exists():
            problems.append(f"{candidate} is missing")
            continue
        try:
            with Recording(candidate, only_outcomes=True) as recording:
                if recording.info.series == series:
                    for seq in recording.seqs_with_outcome("reconstructed"):
                        reconstructed.add(seq)
                else:
                    problems.append(f"{candidate} holds another series, {recording.info.series}")
        except DAMAGE as error:
            problems.append(f"{candidate} cannot be read: {error}")
    return RecordedCount(len(reconstructed), tuple(problems))


def _segment_numbers(path: Path) -> Iterator[int]:
    """Yield the numbers of the existing segments after the first."""
    for other in path.parent.glob(f"{glob.escape(path.stem)}_*{path.suffix}"):
        number = other.stem.removeprefix(f"{path.stem}_")
        if number.isdecimal():
            yield int(number)


def existing_segments(path: Path) -> Iterator[Path]:
    """Yield the existing files of ``path``'s segments, in order, without opening them."""
    for segment in range(_MAX_SEGMENTS):
        candidate = segment_path(path, segment)
        if not candidate.exists():
            return
        yield candidate


def earlier_segments(path: Path, series: str) -> Iterator[Recording]:
    """Yield the existing segments of ``path`` that belong to a series, open for reading; the caller closes them."""
    for candidate in existing_segments(path):
        if (recording := _open_segment(candidate, series)) is not None:
            yield recording
