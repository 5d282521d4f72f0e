"""Read one segment of a recording: finished, being written, or left by a crash.

HDF5 keeps one copy of a file's metadata per process: additions of a live writer show only once the
process has closed the file everywhere and opened it again. So a process has one recording open at a
time, whichever was read last, and the number of segments is not limited by that of open files.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import h5py
import numpy as np

from sci_stream.delivery.ledger import LedgerCounts
from sci_stream.errors import CalibrationError, FileFormatError
from sci_stream.file_guard import reading
from sci_stream.model import (
    Array,
    Flags,
    JsonObject,
    Reconstruction,
    SeriesInfo,
    SnapshotId,
    StageTimes,
)
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import read_calibration
from sci_stream.recording.columns import (
    BLOCK_ROWS,
    OUTCOME_CODES,
    OUTCOME_NAMES,
    cell_text,
    damaged_blocks,
    has_checksums,
    read_rows,
    read_states,
    reconcile,
    recorded_chunks,
    solve_report,
)
from sci_stream.recording.hdf5 import (
    check_mark,
    is_open_for_writing,
    missing_bytes,
    open_for_reading,
    place,
    read_attribute,
    read_dataset,
    read_text,
    require_dataset,
)
from sci_stream.recording.layout import (
    FRAME_FLAGS,
    RECORDING_FORMAT,
    RECORDING_VERSION,
    Compression,
    LedgerDocument,
    frame_shape,
    ledger_document,
    read_info,
    read_ledger,
    scale_of,
)
from sci_stream.reports import SolveReport
from sci_stream.wire.payload import checksum

_LOG = logging.getLogger(__name__)
DAMAGE = (FileFormatError, CalibrationError, OSError, RuntimeError, ValueError, KeyError)
"""Errors of reading a recording: h5py's depends on the damaged place."""
Settings = dict[str, int | float | str]
"""Settings of a solver, by name."""

# As in the messages (`sci_stream.wire`).
_MAX_SEQ = 2**48
_BLOCK = 1 << 20
_BITSHUFFLE_ID = 32008  # of the filter in the registry of The HDF Group
_FRAME_DTYPES = {
    "raw": ("u1", "u2", "f4"),
    "video": ("f2", "f4", "u2"),
    "picture": ("u1",),
    "error": ("u1",),
}

_lock = threading.RLock()
_open: Recording | None = None


class Recording(AbstractContextManager["Recording"]):
    """One segment of a recording, open for reading; a context manager.

    `refresh` makes flushed rows of a live writer visible. Not thread-safe, but any number of
    recordings, in any threads, may read one file, and each sees the rows of its own last `refresh`.
    ``only_outcomes`` reads states and outcomes of the rows alone: a long series has gigabytes of
    others. ``by_row`` keeps no more than the states in memory, and reads the row that is asked for.

    Raises `FileFormatError` if the file is missing, of another format, of a newer schema, or
    incomplete.
    """

    def __init__(self, path: Path, *, only_outcomes: bool = False, by_row: bool = False) -> None:
        self.path = path
        self._only_outcomes = only_outcomes
        self._by_row = by_row
        self._hdf5: h5py.File | None = None
        self._identity: tuple[int, int] | None = (
            None  # device and inode, once its content has been checked
        )
        self._frames: dict[str, h5py.Dataset] = {}
        self._damaged: dict[str, set[int]] = {}
        self._block: tuple[int, dict[str, Array]] = (-1, {})
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._closed = False
        try:
            self.refresh()
            with self._file() as file:
                self.info: SeriesInfo = read_info(file)
                self.first_seq: int = read_attribute(file, "first_seq", int)
                self._dtypes = {name: np.dtype(node.dtype) for name, node in self._frames.items()}
                self._require_fitting()
        except BaseException as error:
            self.close()
            missing = missing_bytes(self.path) if self.path.is_file() else 0
            if missing and isinstance(error, FileFormatError):
                raise FileFormatError(
                    f"{self.path} cannot be read: {missing} bytes are missing at its end",
                    got=error,
                    hint="Take it from another copy.",
                ) from error
            raise

    def _require_fitting(self) -> None:
        """Raise if the parts of the file contradict each other."""
        for name, node in self._frames.items():
            expected = frame_shape(name, self.info)
            if node.shape[1:] != expected:
                raise FileFormatError(
                    f"{self.path}:/{name} does not fit its series",
                    expected=expected,
                    got=node.shape[1:],
                )
        if not 0 <= self.first_seq < _MAX_SEQ:
            raise FileFormatError(
                f"{self.path} begins at an impossible snapshot", got=self.first_seq
            )

    @contextmanager
    def _file(self) -> Iterator[h5py.File]:
        """Provide the HDF5 file, which no other thread closes meanwhile.

        Raises `FileFormatError` if the file was removed or replaced.
        """
        global _open  # noqa: PLW0603 - the one file that this process has open
        if self._closed:
            raise ValueError(f"the recording {self.path} is closed")
        with _lock:
            if _open is not self:
                if _open is not None:
                    _open.suspend()
                self._hdf5 = self._opened()
                _open = self
            assert self._hdf5 is not None
            with reading(self.path, "a recording"):
                yield self._hdf5

    def _opened(self) -> h5py.File:
        first = self._identity is None
        file = open_for_reading(self.path, "recording", trusted=not first)
        try:
            status = os.fstat(file.id.get_vfd_handle())
            identity = status.st_dev, status.st_ino
            if first:
                self._identity = identity
            elif identity != self._identity:
                raise FileFormatError(
                    f"{self.path} was replaced by another file", hint="Open it again."
                )
            check_mark(file, RECORDING_FORMAT, RECORDING_VERSION)
            self._frames = _frames(file)
        except BaseException:
            file.close()
            raise
        return file

    def replace_ledger(self, document: LedgerDocument) -> None:
        """Replace the stored ledger of a closed file in place, keeping the notes.

        A plain write of bytes that the file has already: it needs no space, and a kill leaves the
        rest of the file as it is.

        Raises OSError if it fails.
        """
        with self._file() as file:
            chunk = file["ledger"].id.get_chunk_info_by_coord((0,))
        with self.path.open("r+b") as plain:
            plain.seek(chunk.byte_offset)
            plain.write(ledger_document(document, self.notes).tobytes())
        self.refresh()

    def suspend(self) -> None:
        """Close the file until its next use: the space of one that is deleted becomes free."""
        global _open  # noqa: PLW0603 - as above
        with _lock:
            if _open is self:
                _open = None
                # First: HDF5 does not close a dataset that is still referenced.
                self._frames = {}
                assert self._hdf5 is not None
                self._hdf5.close()

    def refresh(self) -> None:
        """Read the rows and the ledger that a live writer has flushed since.

        Raises `FileFormatError` if the file was removed or replaced; nothing can be read until it
        is back.
        """
        with _lock:
            self.suspend()
            with self._file() as file:
                self._writing = is_open_for_writing(self.path)
                self.missing_bytes: int = missing_bytes(self.path)
                """Bytes that the file lacks at its end."""
                self._ledger = _ledger_document(file)
                self._damaged = {}
                self._block = (-1, {})
                self._rows = {} if self._by_row else self._read_rows(file)
                # A ledger is there from the start, except in recordings of earlier versions.
                self._lacks_ledger = not self._writing and not self._ledger and has_checksums(file)
                if self._writing:
                    self._ledger = _ledger_document(file)
            for problem in self.damage:
                _LOG.warning("%s is damaged: %s", self.path, problem)

    def _read_rows(self, file: h5py.File, block: int | None = None) -> dict[str, Array]:
        """Read the rows of a block, or all; note their damage."""
        first = block or 0
        stop = None if block is None else (block + 1) * BLOCK_ROWS
        part = slice(first * BLOCK_ROWS, stop)
        rows = read_rows(file, only_outcomes=self._only_outcomes, part=part)
        # The rows of a file that is being written, or was left by a crash, may be newer than their
        # checksums.
        if not self._writing:
            for name, blocks in damaged_blocks(file, rows, first).items():
                self._damaged[name] = self._damaged.get(name, set()) | blocks
        # Where video is stored, a snapshot counts as reconstructed if and only if its video is.
        if "video" in self._frames:
            reconcile(rows)
        return rows

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration recorded with the series, verified by its hash.

        Raises as `load_calibration`.
        """
        with self._file() as file:
            group = file.get("calibration")
            if not isinstance(group, h5py.Group):
                raise FileFormatError(
                    f"The recording {self.path} is incomplete", expected="a group 'calibration'"
                )
            return read_calibration(group)

    @property
    def disk_bytes(self) -> int:
        """Size on disk."""
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def rows(self) -> Mapping[str, Array]:
        """Every column by name, one value per row, row = seq − `first_seq`;
        see `columns.COLUMNS`.
        """
        return self._rows

    @property
    def ledger(self) -> LedgerCounts | None:
        """The last stored ledger, None if there is none; final if `clean`."""
        ledger = self._ledger.get("ledger")
        return ledger if _is_ledger(ledger) else None

    @property
    def clean(self) -> bool:
        """Whether the recording was closed cleanly, with its final ledger, and is undamaged."""
        return self._ledger.get("clean") is True and self.finished

    @property
    def damage(self) -> list[str]:
        """Known damage of a file that no writer has open, in words; `verify` reads the rest."""
        problems = [
            f"{name}: another checksum of {len(blocks)} blocks of {BLOCK_ROWS} rows"
            for name, blocks in sorted(self._damaged.items())
        ]
        if self._lacks_ledger:
            problems.append("the ledger cannot be read")
        if not self._writing and self.missing_bytes:
            problems.append(f"{self.missing_bytes} bytes are missing at its end")
        return problems

    def verify(self, progress: Callable[[int, int], None]) -> list[str]:
        """Read everything; return the damage in words, such as ``video of snapshot 7``.

        ``progress`` is called with the number of frames done and their total.
        """
        problems = self.damage
        for what, read in (
            ("the calibration", lambda: self.calibration),
            ("the parent", lambda: self.parent),
        ):
            with noted(problems, what):
                read()
        stored = [(name, seq) for name in self._dtypes for seq in self.seqs_with(name)]
        for done, (name, seq) in enumerate(stored, 1):
            with noted(problems, f"{name} of snapshot {seq}"):
                self.frame(name, seq)
            progress(done, len(stored))
        return problems

    @property
    def continued(self) -> str | None:
        """Name of the segment that continues the series; None if this is the last, or was left by a
        crash.
        """
        name = self._ledger.get("continued")
        return name if isinstance(name, str) else None

    @property
    def closed(self) -> bool:
        """Whether the file was closed in order, at the end of its series or before a following
        segment.
        """
        # A kill between the last flush and the end of closing leaves a file that other programs
        # refuse to open.
        is_ended = self._ledger.get("clean") is True or self.continued is not None
        return is_ended and not self._writing

    @property
    def closed_early(self) -> bool:
        """Whether the file was closed in order, but before it had a final ledger or a successor."""
        return not self.closed and not self._writing

    @property
    def finished(self) -> bool:
        """Whether the file is `closed`, and nothing in it is known to be damaged."""
        return self.closed and not self.damage

    @property
    def notes(self) -> JsonObject:
        """Notes of the sink on the series, such as the ``solvers`` by node."""
        known = ("clean", "time_ns", "ledger", "continued", "crc32")
        return {name: value for name, value in self._ledger.items() if name not in known}

    @property
    def solvers(self) -> dict[str, Settings]:
        """Settings of the solvers by their ids, as reconstruct nodes reported them."""
        noted = self.notes.get("solvers")
        entries = noted.items() if isinstance(noted, dict) else ()
        return {
            name: {
                key: value for key, value in solver.items() if isinstance(value, int | float | str)
            }
            for name, solver in entries
            if isinstance(solver, dict)
        }

    @property
    def parent(self) -> JsonObject | None:
        """Source of a derived recording; None for a recording of a camera."""
        with self._file() as file:
            if "parent" not in file:
                return None
            parent = json.loads(read_text(file, "parent"))
        return parent if isinstance(parent, dict) else {}

    @property
    def compression(self) -> Compression:
        """Compression of the frames."""
        with self._file():
            packed = any(
                node.id.get_create_plist().get_filter_by_id(_BITSHUFFLE_ID)
                for node in self._frames.values()
            )
        return Compression.BITSHUFFLE_LZ4 if packed else Compression.NONE

    def stored_dtype(self, name: str) -> np.dtype[Any] | None:
        """Return the type of ``"raw"``, ``"video"``, … in the file, None if it is not stored."""
        return self._dtypes.get(name)

    @property
    def _states(self) -> Array:
        if "state" not in self._rows:
            with self._file() as file:
                self._rows["state"] = read_states(file)
        return self._rows["state"]

    def _seqs(self, chosen: Flags) -> list[int]:
        return [int(row) + self.first_seq for row in np.flatnonzero(chosen)]

    @property
    def raw_seqs(self) -> list[int]:
        """Sequence numbers with stored raw counts, ascending."""
        return self.seqs_with("raw")

    @property
    def video_seqs(self) -> list[int]:
        """Sequence numbers with stored video, ascending."""
        return self.seqs_with("video")

    def seqs_with(self, name: str) -> list[int]:
        """Sequence numbers of which `has` is true, ascending."""
        return self._seqs(self._stored(name) != 0)

    def _stored(self, name: str, part: slice = slice(None)) -> Array:
        return self._states[part] & np.uint8(FRAME_FLAGS[name])

    def count(self, name: str) -> int:
        """Return the number of snapshots of which `has` is true."""
        return int(np.count_nonzero(self._stored(name)))

    def seq_at(self, name: str, index: int) -> int:
        """Return ``seqs_with(name)[index]``, of 0 or more, without a list of them all.

        Raises IndexError if there are fewer.
        """
        for start in range(0, len(self._states), _BLOCK):
            places = np.flatnonzero(self._stored(name, slice(start, start + _BLOCK)))
            if index < len(places):
                return self.first_seq + start + int(places[index])
            index -= len(places)
        raise IndexError(f"{self.path} has fewer snapshots with {name}")

    @property
    def settled_seqs(self) -> list[int]:
        """Sequence numbers with an outcome, ascending."""
        return self._seqs(self._rows["outcome"] != 0)

    def seqs_with_outcome(self, outcome: str) -> list[int]:
        """Sequence numbers with this outcome, ascending."""
        return self._seqs(self._rows["outcome"] == OUTCOME_CODES[outcome])

    def raw(self, seq: int, part: tuple[int | slice, ...] = ()) -> Array:
        """Return the raw counts of a snapshot, (H, W) in DN, or a part of them; owned by the
        caller.

        Raises KeyError if none are stored; `FileFormatError` if they are damaged, or the file was
        removed or replaced.
        """
        return self.frame("raw", seq, part)

    def video(self, seq: int, part: tuple[int | slice, ...] = ()) -> Array:
        """Return the video of a snapshot, (B, H, W) on the 0–1 scale, or a part of it.

        Raises as `raw`.

        float16 or float32 as recorded; float32 of video that is stored as uint16.
        """
        return self.frame("video", seq, part)

    def has(self, name: str, seq: int) -> bool:
        """Return whether ``"raw"``, ``"video"``, the ``"picture"`` of an analysis or the
        ``"error"`` are stored.
        """
        row = seq - self.first_seq
        return 0 <= row < len(self._states) and bool(self._states[row] & FRAME_FLAGS[name])

    def frame(self, name: str, seq: int, part: tuple[int | slice, ...] = ()) -> Array:
        """Return what `has` names, in physical values. Raises as `raw`."""
        if not self.has(name, seq):
            raise KeyError(f"snapshot {seq} has no {name} in {self.path}")
        _ = np.broadcast_to(0, frame_shape(name, self.info))[
            part
        ]  # raises IndexError, which is no damage
        row = seq - self.first_seq
        with self._file():
            whole = read_dataset(self._frames[name], (row,))
        # Recordings of earlier versions, and repaired ones of them, have no checksums.
        rows, index = self._rows_of(seq)
        expected = int(rows[f"{name}_crc32"][index])
        if not expected:
            self.require_rows(seq)  # a cleared page of checksums is no lack of them
        if expected not in {0, checksum(whole)}:
            raise FileFormatError(
                f"The {name} of snapshot {seq} in {self.path} is damaged",
                expected=f"CRC-32 {expected}",
                hint="Its disk or a copy has changed it. Take it from another copy.",
            )
        stored = whole[part].copy() if part else whole
        scale = scale_of(name, stored.dtype)
        return stored if scale == 1 else stored * np.float32(scale)

    def require_rows(self, seq: int | None = None) -> None:
        """Raise `FileFormatError` if the row of a snapshot, or any, is known to be damaged."""
        block = None if seq is None else (seq - self.first_seq) // BLOCK_ROWS
        damaged = self._damaged.items()
        names = [name for name, blocks in sorted(damaged) if block is None or block in blocks]
        if names:
            raise FileFormatError(
                f"Rows of {self.path} are damaged",
                got=f"another checksum of {', '.join(names)}",
                hint="Take them from another copy; `rows` has them as they are.",
            )

    def _rows_of(self, seq: int) -> tuple[Mapping[str, Array], int]:
        """Return rows, among them that of a snapshot, and its place in them.

        Raises KeyError if it has none.
        """
        row = seq - self.first_seq
        if not 0 <= row < len(self._states):
            raise KeyError(f"snapshot {seq} has no row in {self.path}")
        if not self._by_row:
            return self._rows, row
        block, place_in_block = divmod(row, BLOCK_ROWS)
        if self._block[0] != block:
            with self._file() as file:
                self._block = block, self._read_rows(file, block)
        return self._block[1], place_in_block

    def _value(self, name: str, seq: int) -> Any:
        rows, index = self._rows_of(seq)
        self.require_rows(seq)
        return rows[name][index].item()

    def camera_frame_id(self, seq: int) -> int | None:
        """Return the frame id that the camera gave a snapshot, None if it has none."""
        value = int(self._value("camera_frame_id", seq))
        return None if value < 0 else value

    def outcome(self, seq: int) -> tuple[str, str] | None:
        """Return outcome and reason of a snapshot, ``("dropped", "overrun")``; None if it has no
        outcome.
        """
        try:
            name = OUTCOME_NAMES.get(int(self._value("outcome", seq)))
        except KeyError:
            return None
        return None if name is None else (name, cell_text(self._value("reason", seq)))

    def report(self, seq: int) -> tuple[SolveReport, str, int]:
        """Return the report of a snapshot's solve, its node, and the number of its redeliveries."""
        try:
            report = solve_report(lambda name: self._value(name, seq))
        except ValueError as error:
            raise FileFormatError(
                f"The row of snapshot {seq} in {self.path} is damaged", got=error
            ) from None
        return report, cell_text(self._value("node", seq)), int(self._value("redelivered", seq))

    def reconstruction(self, seq: int) -> Reconstruction:
        """Return a recorded reconstruction, with its coded snapshot if that is stored.

        Raises as `video`.
        """
        video = self.video(seq)
        report, node, redelivered = self.report(seq)
        rows, _ = self._rows_of(seq)
        return Reconstruction(
            id=SnapshotId(self.info.series, self._value("epoch", seq), seq),
            video=video,
            calibration_hash=self.info.calibration_hash,
            report=report,
            times=StageTimes(
                acquired_ns=self._value("host_time_ns", seq),
                finished_ns=self._value("finished_ns", seq),
            ),
            node=node,
            device="",
            bayer=self.info.bayer,
            counts=self.raw(seq) if self.has("raw", seq) else None,
            picture=self.frame("picture", seq) if self.has("picture", seq) else None,
            camera_frame_id=self.camera_frame_id(seq),
            redelivered=redelivered,
            dropped_before=self._value("dropped_before", seq),
            chunks=recorded_chunks({name: self._value(name, seq) for name in rows}),
        )

    def close(self) -> None:
        """Close the file. May be called again."""
        self._closed = True
        self.suspend()

    def __exit__(self, *_: object) -> None:
        self.close()


def _frames(file: h5py.File) -> dict[str, h5py.Dataset]:
    frames = {
        name: require_dataset(file, name, 3 if name == "raw" else 4)
        for name in _FRAME_DTYPES
        if name in file
    }
    for name, node in frames.items():
        if node.dtype not in [np.dtype(kind) for kind in _FRAME_DTYPES[name]]:
            raise FileFormatError(
                f"{place(node)} has the wrong type",
                expected=" ".join(_FRAME_DTYPES[name]),
                got=node.dtype,
            )
    return frames


@contextmanager
def noted(problems: list[str], what: str) -> Iterator[None]:
    """Add ``what`` to the problems, with the reason, if it cannot be read."""
    try:
        yield
    except DAMAGE as error:
        problems.append(f"{what}: {error}")


def _ledger_document(file: h5py.File) -> JsonObject:
    return read_ledger(read_dataset(require_dataset(file, "ledger", 1)).tobytes())


def _is_ledger(stored: object) -> TypeGuard[LedgerCounts]:
    """Return whether a stored ledger has counts where readers print and add them up."""
    if not isinstance(stored, dict) or not isinstance(dropped := stored.get("dropped", {}), dict):
        return False
    counts = [
        stored.get(name, 0)
        for name in (
            "acquired",
            "reconstructed",
            "raw_only",
            "not_kept",
            "camera_missed",
            "in_flight",
        )
    ]
    return all(type(count) is int for count in [*counts, *dropped.values()])
