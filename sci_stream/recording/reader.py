"""Read one segment of a recording: finished, being written, or left by a crash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeGuard

import h5py
import numpy as np
import numpy.typing as npt

from sci_stream.delivery.ledger import StoredLedger
from sci_stream.errors import FileFormatError
from sci_stream.model import Array, Json, SeriesInfo
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import read_calibration
from sci_stream.recording.columns import OUTCOME_CODES, OUTCOME_NAMES, cell_text, solve_report
from sci_stream.recording.file import RecordingFile, release, share
from sci_stream.recording.hdf5 import read_attribute, read_text
from sci_stream.recording.layout import (
    FRAME_FLAGS,
    VIDEO_U16_STEP,
    RowState,
    raw_dtype,
    read_info,
)
from sci_stream.reports import SolveReport

Settings = dict[str, int | float | str]
"""Settings of a solver, by name."""

# As in the messages (`sci_stream.wire`).
_MAX_SEQ = 2**48


def _is_ledger(stored: object) -> TypeGuard[StoredLedger]:
    """Return whether a stored ledger has counts where readers print and add them up."""
    if not isinstance(stored, dict) or not isinstance(dropped := stored.get("dropped", {}), dict):
        return False
    counts = [stored.get(name, 0) for name in ("acquired", "reconstructed", "raw_only", "camera_missed", "in_flight")]
    return all(type(count) is int for count in [*counts, *dropped.values()])


class Recording:
    """One segment of a recording, open for reading; a context manager.

    `refresh` makes flushed rows of a live writer visible. Not thread-safe, but any number of recordings, in any
    threads, may read one file, and each sees the rows of its own last `refresh`.

    Raises
    ------
    FileFormatError
        If the file is missing, of another format, of a newer schema, or incomplete.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._shared: RecordingFile | None = share(path)
        self._rows = self._shared.rows
        try:
            with self._file.hdf5() as file:
                self.info: SeriesInfo = read_info(file)
                self.first_seq: int = read_attribute(file, "first_seq", int)
            self._require_fitting()
        except BaseException:
            self.close()
            raise

    def _require_fitting(self) -> None:
        """Raise if the parts of the file contradict each other."""
        info = self.info
        expected = {"raw": (info.height_px, info.width_px), "video": (info.n_frames, info.height_px, info.width_px)}
        for name, shape in self._file.frame_shapes.items():
            if shape != expected[name]:
                raise FileFormatError(
                    f"{self.path}:/{name} does not fit its series", expected=expected[name], got=shape
                )
        if not 0 <= self.first_seq < _MAX_SEQ:
            raise FileFormatError(f"{self.path} begins at an impossible snapshot", got=self.first_seq)

    @property
    def _file(self) -> RecordingFile:
        if self._shared is None:
            raise ValueError(f"the recording {self.path} is closed")
        return self._shared

    def refresh(self) -> None:
        """Read the data that a live writer has flushed since.

        Raises
        ------
        FileFormatError
            If the file was removed.
        """
        self._file.reopen()
        self._rows = self._file.rows

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration recorded with the series, verified by its hash. Raises as `load_calibration`."""
        with self._file.hdf5() as file:
            group = file.get("calibration")
            if not isinstance(group, h5py.Group):
                raise FileFormatError(f"The recording {self.path} is incomplete", expected="a group 'calibration'")
            return read_calibration(group)

    @property
    def disk_bytes(self) -> int:
        """Size on disk; for a virtual dataset over segments, including the existing segments."""
        with self._file.hdf5() as file:
            names = file.attrs.get("segments", ())
        others = (self.path.with_name(str(name)) for name in names)
        return sum(path.stat().st_size for path in (self.path, *others) if path.exists())

    @property
    def rows(self) -> Mapping[str, Array]:
        """Every column by name, one value per row, row = seq − `first_seq`; see `columns.COLUMNS`."""
        return self._rows

    def _ledger_document(self) -> dict[str, Json]:
        text = self._file.ledger()
        try:
            document = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            return {}  # read while a live writer was replacing it, or damaged
        return document if isinstance(document, dict) else {}

    @property
    def ledger(self) -> StoredLedger | None:
        """The last stored ledger, None if there is none; final if `clean`."""
        ledger = self._ledger_document().get("ledger")
        return ledger if _is_ledger(ledger) else None

    @property
    def clean(self) -> bool:
        """Whether the recording was closed cleanly, with its final ledger."""
        # A kill between the last flush and the end of closing leaves a file that other programs refuse to open.
        return self._ledger_document().get("clean") is True and not self._file.writing

    @property
    def continued(self) -> str | None:
        """Name of the segment that continues the series; None if this is the last, or was left by a crash."""
        name = self._ledger_document().get("continued")
        return name if isinstance(name, str) else None

    @property
    def finished(self) -> bool:
        """Whether the file was closed cleanly, at the end of its series or before a following segment."""
        return self.clean or (self.continued is not None and not self._file.writing)

    @property
    def notes(self) -> dict[str, Json]:
        """Notes of the sink on the series, such as the ``solvers`` by node."""
        known = ("clean", "time_ns", "ledger", "continued")
        return {name: value for name, value in self._ledger_document().items() if name not in known}

    @property
    def solvers(self) -> dict[str, Settings]:
        """Settings of the solvers by their ids, as reconstruct nodes reported them."""
        noted = self.notes.get("solvers")
        entries = noted.items() if isinstance(noted, dict) else ()
        return {
            name: {key: value for key, value in solver.items() if isinstance(value, int | float | str)}
            for name, solver in entries
            if isinstance(solver, dict)
        }

    @property
    def parent(self) -> dict[str, Json] | None:
        """Source of a derived recording; None for a recording of a camera."""
        with self._file.hdf5() as file:
            if "parent" not in file:
                return None
            parent = json.loads(read_text(file, "parent"))
        return parent if isinstance(parent, dict) else {}

    @property
    def has_raw(self) -> bool:
        """Whether raw counts are stored."""
        return self._file.stored("raw") is not None

    @property
    def has_video(self) -> bool:
        """Whether video is stored."""
        return self._file.stored("video") is not None

    @property
    def raw_dtype(self) -> np.dtype[Any]:
        """Type of the raw counts."""
        return self._file.stored("raw") or raw_dtype(self.info)

    @property
    def stored_video_dtype(self) -> np.dtype[Any]:
        """Type in which video is stored."""
        return self._file.stored("video") or np.dtype(np.float16)

    @property
    def video_dtype(self) -> np.dtype[Any]:
        """Type of the video as it is read."""
        stored = self.stored_video_dtype
        return np.dtype(np.float32) if stored == np.uint16 else stored

    def _seqs(self, chosen: npt.NDArray[np.bool_]) -> list[int]:
        return [int(row) + self.first_seq for row in np.flatnonzero(chosen)]

    @property
    def raw_seqs(self) -> list[int]:
        """Sequence numbers with stored raw counts, ascending."""
        return self._seqs((self._rows["state"] & RowState.RAW) != 0)

    @property
    def video_seqs(self) -> list[int]:
        """Sequence numbers with stored video, ascending."""
        return self._seqs((self._rows["state"] & RowState.VIDEO) != 0)

    @property
    def settled_seqs(self) -> list[int]:
        """Sequence numbers with an outcome, ascending."""
        return self._seqs(self._rows["outcome"] != 0)

    def seqs_with_outcome(self, outcome: str) -> list[int]:
        """Sequence numbers with this outcome, ascending."""
        return self._seqs(self._rows["outcome"] == OUTCOME_CODES[outcome])

    def raw(self, seq: int, part: tuple[int | slice, ...] = ()) -> Array:
        """Return the raw counts of a snapshot, (H, W) in DN, or a part of them; owned by the caller.

        Raises
        ------
        KeyError
            If none are stored.
        FileFormatError
            If they are damaged.
        """
        return self._frame("raw", seq, part)

    def video(self, seq: int, part: tuple[int | slice, ...] = ()) -> Array:
        """Return the video of a snapshot, (B, H, W) on the 0–1 scale, or a part of it. Raises as `raw`.

        float16 or float32 as recorded; float32 of video that is stored as uint16.
        """
        stored = self._frame("video", seq, part)
        return stored * np.float32(VIDEO_U16_STEP) if stored.dtype == np.uint16 else stored

    def _frame(self, name: str, seq: int, part: tuple[int | slice, ...]) -> Array:
        row = seq - self.first_seq
        if not 0 <= row < len(self._rows["state"]) or not self._rows["state"][row] & FRAME_FLAGS[name]:
            raise KeyError(f"snapshot {seq} has no {name} in {self.path}")
        return self._file.frame(name, row, part)

    def _value(self, name: str, seq: int) -> Any:
        row = seq - self.first_seq
        if not 0 <= row < len(self._rows[name]):
            raise KeyError(f"snapshot {seq} has no row in {self.path}")
        return self._rows[name][row].item()

    def camera_frame_id(self, seq: int) -> int | None:
        """Return the frame id that the camera gave a snapshot, None if it has none."""
        value = int(self._value("camera_frame_id", seq))
        return None if value < 0 else value

    def outcome(self, seq: int) -> tuple[str, str] | None:
        """Return outcome and reason of a snapshot, ``("dropped", "overrun")``; None if it has no outcome."""
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
            raise FileFormatError(f"The row of snapshot {seq} in {self.path} is damaged", got=error) from None
        return report, cell_text(self._value("node", seq)), int(self._value("redelivered", seq))

    def close(self) -> None:
        """Close the file. May be called again."""
        shared, self._shared = self._shared, None
        if shared is not None:
            release(shared)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
