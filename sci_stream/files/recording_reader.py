"""Read a recording: finished, still being written, or left behind by a crash."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
import numpy.typing as npt

from sci_stream.errors import FileFormatError
from sci_stream.files.calibration_file import read_calibration
from sci_stream.files.hdf5 import check_mark, open_for_reading, read_attribute, read_text
from sci_stream.files.recording_layout import FORMAT, SCHEMA_VERSION, RowState, read_info
from sci_stream.files.recording_rows import COLUMNS, OUTCOME_NAMES, START_NAMES
from sci_stream.model import Array, SeriesInfo, SolveReport, Start
from sci_stream.optics.calibration import Calibration


class Recording:
    """A recording opened to read; a context manager.

    What a live writer flushes is seen after `refresh`. Not thread-safe.

    Parameters
    ----------
    path
        The file of one segment.

    Raises
    ------
    FileFormatError
        If there is no such file, it is foreign, of a newer schema, or incomplete.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_for_reading(path, "recording")
        try:
            check_mark(self._file, FORMAT, SCHEMA_VERSION)
            self.info: SeriesInfo = read_info(self._file)
            self.first_seq: int = read_attribute(self._file, "first_seq", int)
            self._columns = self._find_columns()
            self._ledger = self._dataset("ledger", 1)
            self._frames = {
                name: self._dataset(name, ndim) for name, ndim in (("raw", 3), ("video", 4)) if name in self._file
            }
            self.refresh()
        except BaseException:
            self._file.close()
            raise

    def _dataset(self, name: str, ndim: int) -> h5py.Dataset:
        node = self._file.get(name)
        if not isinstance(node, h5py.Dataset) or node.ndim != ndim:
            raise FileFormatError(
                f"The recording {self.path} is incomplete", expected=f"a {ndim}-D dataset {name!r}", got=node
            )
        return node

    def _find_columns(self) -> dict[str, h5py.Dataset]:
        return {column.name: self._dataset(f"rows/{column.name}", 1) for column in COLUMNS}

    def refresh(self) -> None:
        """Take note of what a live writer has flushed since."""
        rows: dict[str, Array] = {}
        # State first: whatever it speaks of was written before it.
        for name in ("state", *(name for name in self._columns if name != "state")):
            node = self._columns[name]
            node.refresh()
            rows[name] = self._read(node, ())
        n_rows = len(rows["state"])
        self._rows = {name: values[:n_rows] for name, values in rows.items()}
        for node in (*self._frames.values(), self._ledger):
            node.refresh()

    def _read(self, node: h5py.Dataset, index: Any) -> Array:
        try:
            return np.asarray(node[index])
        except OSError as error:
            raise FileFormatError(
                f"The dataset {node.name} of {self.path} is damaged", got=str(error).splitlines()[0]
            ) from error

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration recorded with the series, verified by its hash. Raises as `load_calibration`."""
        group = self._file.get("calibration")
        if not isinstance(group, h5py.Group):
            raise FileFormatError(f"The recording {self.path} is incomplete", expected="a group 'calibration'")
        return read_calibration(group)

    @property
    def rig_toml(self) -> str:
        """The rig file's text."""
        return read_text(self._file, "rig_toml")

    @property
    def rows(self) -> Mapping[str, Array]:
        """Every column by name, one value a row, row = seq − `first_seq`; see `recording_rows.COLUMNS`."""
        return self._rows

    def _ledger_document(self) -> dict[str, Any]:
        text = self._read(self._ledger, ()).tobytes().rstrip(b"\0")
        try:
            document = json.loads(text) if text else {}
        except ValueError:
            return {}  # a live writer was caught in the middle of replacing it
        return document if isinstance(document, dict) else {}

    @property
    def ledger(self) -> dict[str, Any] | None:
        """The last account stored, None if there is none: the final one if `clean`."""
        ledger = self._ledger_document().get("ledger")
        return ledger if isinstance(ledger, dict) else None

    @property
    def clean(self) -> bool:
        """Whether the recording was ended in order, with its final ledger."""
        return self._ledger_document().get("clean") is True

    def _seqs(self, chosen: npt.NDArray[np.bool_]) -> list[int]:
        return [int(row) + self.first_seq for row in np.flatnonzero(chosen)]

    @property
    def raw_seqs(self) -> list[int]:
        """Sequence numbers of which raw counts are stored, ascending."""
        return self._seqs((self._rows["state"] & RowState.RAW) != 0)

    @property
    def video_seqs(self) -> list[int]:
        """Sequence numbers of which the video is stored, ascending."""
        return self._seqs((self._rows["state"] & RowState.VIDEO) != 0)

    @property
    def settled_seqs(self) -> list[int]:
        """Sequence numbers that have an outcome, ascending."""
        return self._seqs(self._rows["outcome"] != 0)

    def raw(self, seq: int) -> Array:
        """Return the raw counts of a snapshot, (H, W) in DN, owned by the caller.

        Raises
        ------
        KeyError
            If there are none.
        FileFormatError
            If they are damaged.
        """
        return self._frame("raw", seq, RowState.RAW)

    def video(self, seq: int) -> Array:
        """Return the video of a snapshot, (B, H, W) float16 on the 0–1 scale. Raises as `raw`."""
        return self._frame("video", seq, RowState.VIDEO)

    def _frame(self, name: str, seq: int, flag: RowState) -> Array:
        row = seq - self.first_seq
        if not 0 <= row < len(self._rows["state"]) or not self._rows["state"][row] & flag:
            raise KeyError(f"snapshot {seq} has no {name} in {self.path}")
        return self._read(self._frames[name], row)

    def _value(self, name: str, seq: int) -> Any:
        row = seq - self.first_seq
        if not 0 <= row < len(self._rows[name]):
            raise KeyError(f"snapshot {seq} has no row in {self.path}")
        return self._rows[name][row].item()

    def camera_frame_id(self, seq: int) -> int | None:
        """Return the camera's own number of a snapshot, None if it has none."""
        value = int(self._value("camera_frame_id", seq))
        return None if value < 0 else value

    def camera_time_ns(self, seq: int) -> int | None:
        """Return the time of a snapshot on the camera's clock, None if it has none."""
        value = int(self._value("camera_time_ns", seq))
        return None if value < 0 else value

    def outcome(self, seq: int) -> tuple[str, str] | None:
        """Return what became of a snapshot and why, ``("dropped", "overrun")``; None if nothing is known of it."""
        try:
            name = OUTCOME_NAMES.get(int(self._value("outcome", seq)))
        except KeyError:
            return None
        return None if name is None else (name, self._value("reason", seq).decode("ascii"))

    def report(self, seq: int) -> tuple[SolveReport, str, int]:
        """Return how a reconstructed snapshot was solved, by which node, and how often it had been redelivered."""

        def value(name: str) -> Any:
            return self._value(name, seq)

        psnr_db = float(value("psnr_db"))
        report = SolveReport(
            iterations=int(value("iterations")),
            start=Start(START_NAMES[int(value("start"))]),
            start_reason=value("start_reason").decode("ascii"),
            budget_limited=bool(value("budget_limited")),
            solve_ns=int(value("solve_ns")),
            residual=float(value("residual")),
            saturated_fraction=float(value("saturated_fraction")),
            psnr_db=None if math.isnan(psnr_db) else psnr_db,
        )
        return report, value("node").decode("ascii"), int(value("redelivered"))

    def close(self) -> None:
        """Close the file. May be called again."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
