"""A recorded series as arrays, across its segments: the result of ``sci_stream.open``."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from sci_stream.delivery.ledger import LedgerCounts
from sci_stream.delivery.trigger_ring import Event, ring_time
from sci_stream.errors import FileFormatError, InputError
from sci_stream.file_guard import require_memory
from sci_stream.model import Array, JsonObject, SeriesInfo
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.columns import CHUNK_PREFIX, STORED, columns_of
from sci_stream.recording.layout import FRAME_FLAGS, frame_shape, raw_dtype, scale_of
from sci_stream.recording.reader import Recording, Settings
from sci_stream.recording.segments import existing_segments, open_segment

if TYPE_CHECKING:
    from sci_stream.imaging.tone import ToneSettings

_EVENTS = TypeAdapter(list[Event])
_STEPS = TypeAdapter(list[tuple[int, int]])
_Part = tuple[int | slice, ...]
_Read = Callable[[int, _Part], Array]


class FrameStack(Sequence[Array]):
    """The stored raw counts or videos, as a read-only array of shape (N, …) that is read from disk
    when indexed.

    Index 0 is the first stored snapshot, ``seqs[0]``; missing ones are left out. NumPy's basic
    indexing works (``a[3]``, ``a[-1, ..., 100:200]``, ``a[::10]``), as do ``a[[1, 5]]`` and masks
    on the first axis; ``np.asarray(a)`` reads everything.

    ``seqs`` are (N,) sequence numbers, ascending; ``read`` reads an element, or a part of it, by
    its number.
    """

    def __init__(
        self, seqs: npt.NDArray[np.int64], shape: tuple[int, ...], dtype: np.dtype[Any], read: _Read
    ) -> None:
        self.seqs = seqs
        self.shape = (len(self.seqs), *shape)
        self.dtype = dtype
        self.ndim = len(self.shape)
        self._read = read

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array in memory."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def between(self, first: int | None, last: int | None) -> list[int]:
        """Return the stored sequence numbers from ``first`` to ``last``, both included; None for no
        limit.
        """
        return [
            seq
            for seq in self.seqs.tolist()
            if (first or 0) <= seq and (last is None or seq <= last)
        ]

    def __getitem__(self, key: Any) -> Any:
        """Read; see the class."""
        first, *rest = key if isinstance(key, tuple) else (key,)
        if first is Ellipsis:
            missing = self.ndim - len(rest)
            first = slice(None)
            rest = [slice(None)] * (missing - 1) + rest
        part = tuple(rest)
        if isinstance(first, slice):
            chosen = self.seqs[first]
        elif np.ndim(first) == 1:
            chosen = self.seqs[np.asarray(first)]
        else:
            return self._one(int(self.seqs[operator.index(first)]), part)
        if not len(chosen):
            return np.empty((0, *self.shape[1:]), self.dtype)[(slice(None), *part)]
        return np.stack([self._one(int(seq), part) for seq in chosen])

    def _one(self, seq: int, part: tuple[Any, ...]) -> Array:
        simple = all(
            isinstance(p, int) or (isinstance(p, slice) and (p.step or 1) > 0) for p in part
        )
        return self._read(seq, part) if simple else self._read(seq, ())[part]

    def __iter__(self) -> Iterator[Array]:
        return (self._read(int(seq), ()) for seq in self.seqs)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Read everything."""
        if copy is False:
            raise ValueError("frames on disk cannot be converted to an array without a copy")
        return np.asarray(self[:], dtype)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.shape} {self.dtype}, {self.nbytes / 1e6:.1f} MB, on "
            "disk>"
        )


class RecordedSeries(AbstractContextManager["RecordedSeries"]):
    """A recorded series, open for reading; a context manager.

    Only its table is in memory: `raw` and `video` are read when indexed. For a recording in several
    segments, name the first one to read all of it, a later one to read that one only. A recording
    that is being written, or was left by a crash, is read up to its last flush.

    Raises `FileFormatError` if the file is missing, of another format, of a newer schema, or
    incomplete.

    Examples
    --------
    >>> import sci_stream
    >>> with sci_stream.open("recordings/run.h5") as recording:  # doctest: +SKIP
    ...     video = recording.video[0]  # (B, H, W), 0–1, linear light
    ...     pictures = recording.rgb()[0]  # (B, H, W, 3) uint8, demosaiced, for a screen
    ...     pixel = recording.raw[:, 100, 200]  # one pixel's counts over all snapshots, DN
    ...     slow = recording.table["solve_ns"] > 50e6  # how each was made, a row a snapshot
    ...     phi = recording.calibration.phi  # (B, H, W) masks
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._stack = ExitStack()
        try:
            first = self._stack.enter_context(Recording(self.path))
            self.segments: list[Recording] = [first]
            self.info: SeriesInfo = first.info
            """Description of the series, from its start."""
            self.parent: JsonObject | None = first.parent
            """Source of a recording made by ``sci-stream replay``; None for a recording of a
            camera."""
            for later in existing_segments(self.path)[1:]:
                if (segment := open_segment(later, first.info.series)) is not None:
                    self.segments.append(self._stack.enter_context(segment))
            self._merge()
        except BaseException:
            self._stack.close()
            raise

    def _merge(self) -> None:
        first_seq, rows = merge_rows(self.segments)
        self.first_seq: int = first_seq
        self.rows: Mapping[str, Array] = rows

    def refresh(self) -> None:
        """Read the data that a live writer has flushed since.

        To see new segments, open the series again.
        """
        for segment in self.segments:
            segment.refresh()
        self._merge()

    @property
    def calibration(self) -> Calibration:
        """The calibration recorded with the series, verified by its hash."""
        return self.segments[0].calibration

    @property
    def period_ns(self) -> float | None:
        """Period of the snapshots: the camera's, else the median of their intervals; None if
        unknown.
        """
        if self.info.frame_period_ns:
            return self.info.frame_period_ns
        host_ns = self.rows["host_time_ns"]
        steps = np.diff(np.sort(host_ns[host_ns > 0]))
        return float(np.median(steps)) if len(steps) else None

    @property
    def ledger(self) -> LedgerCounts | None:
        """The last stored ledger, final if `finished`; None if there is none."""
        return next((s.ledger for s in reversed(self.segments) if s.ledger is not None), None)

    @property
    def notes(self) -> JsonObject:
        """Notes of the sink on the series, such as the ``solvers`` by node."""
        return {name: value for segment in self.segments for name, value in segment.notes.items()}

    @property
    def solvers(self) -> dict[str, Settings]:
        """Settings of the solvers by their ids, as reconstruct nodes reported them."""
        return {
            name: solver for segment in self.segments for name, solver in segment.solvers.items()
        }

    @functools.cached_property
    def events(self) -> list[Event]:
        """Events of a triggered recording, the last 128 of each segment; the journal has all."""
        try:
            noted = [
                _EVENTS.validate_python(segment.notes.get("events", []))
                for segment in self.segments
            ]
        except ValueError as error:
            raise FileFormatError(f"The events in {self.path} are damaged", got=error) from None
        return list({event.number: event for events in noted for event in events}.values())

    def seqs_of_event(self, number: int) -> list[int]:
        """Return the snapshots with raw counts that an event covers.

        Raises `InputError` if there is no such event.
        """
        event = next((event for event in self.events if event.number == number), None)
        if event is None:
            known = ", ".join(str(event.number) for event in self.events) or "none"
            raise InputError(f"{self.path} has no event {number}", expected=f"one of {known}")
        host_ns = self.rows["host_time_ns"]
        try:
            steps = _STEPS.validate_python(self.notes.get("clock_steps", []))
        except ValueError as error:
            raise FileFormatError(f"The times in {self.path} are damaged", got=error) from None
        return [
            seq
            for seq in self.raw.seqs.tolist()
            if event.covers(ring_time(steps, seq, int(host_ns[seq - self.first_seq])))
        ]

    @property
    def finished(self) -> bool:
        """Whether every segment was closed cleanly, the last one with the final ledger, and none is
        missing, or known to be damaged.
        """
        # By number: the files may have other names since. ``""`` is that of a stopped replay.
        follows = all(
            not segment.continued
            or segment.continued.rpartition("_")[2] == following.path.name.rpartition("_")[2]
            for segment, following in pairwise(self.segments)
        )
        return (
            follows
            and self.segments[-1].clean
            and all(segment.finished for segment in self.segments)
        )

    def stored_dtype(self, name: str) -> np.dtype[Any] | None:
        """Return the type of ``"raw"``, ``"video"``, … in the files, None if it is not stored."""
        return next(filter(None, (segment.stored_dtype(name) for segment in self.segments)), None)

    def stack(self, name: str) -> FrameStack:
        """Return the stored ``"raw"``, ``"video"``, ``"picture"`` or ``"error"``."""
        stored = self.stored_dtype(name) or (
            raw_dtype(self.info) if name == "raw" else np.dtype(np.float16)
        )
        dtype = stored if scale_of(name, stored) == 1 else np.dtype(np.float32)
        seqs = np.flatnonzero((self.rows["state"] & FRAME_FLAGS[name]) != 0) + self.first_seq
        return FrameStack(
            seqs, frame_shape(name, self.info), dtype, functools.partial(self.frame_of, name)
        )

    @property
    def raw(self) -> FrameStack:
        """Raw counts as (N, H, W), DN."""
        return self.stack("raw")

    @property
    def video(self) -> FrameStack:
        """Reconstructed video as (N, B, H, W), 0–1, linear light; a Bayer mosaic if ``info.bayer``
        is set.

        float16 by default, or float32 (``[record] video_dtype``).
        """
        return self.stack("video")

    @property
    def picture(self) -> FrameStack:
        """Pictures that an analysis drew, as (N, H, W, 3) uint8 RGB."""
        return self.stack("picture")

    @property
    def error(self) -> FrameStack:
        """Estimated error of the video, 0–0.255, (N, B, h, w): of blocks of 4 × 4 pixels; of a
        mosaic, a mosaic.
        """
        return self.stack("error")

    def require_raw(self) -> FrameStack:
        """Return `raw`; close the recording and raise `FileFormatError` if it is empty."""
        if not len(self.raw):
            self.close()
            raise FileFormatError(
                f"The recording {self.path} holds no raw snapshots", hint="See its video instead."
            )
        return self.raw

    def rgb(self, tone: ToneSettings | None = None) -> FrameStack:
        """Return the video as pictures, (N, B, H, W, 3) uint8 RGB, demosaiced and rendered when
        indexed.

        The default ``tone`` suits linear light on a screen. Mono video has three equal channels.
        """
        from sci_stream.imaging.rendering import render  # noqa: PLC0415 - OpenCV, which a recording does without

        shape = (*frame_shape("video", self.info), 3)

        def read(seq: int, part: _Part) -> Array:
            pictures = render(self.frame_of("video", seq), self.info.bayer, tone)
            if pictures.ndim == 3:
                pictures = np.repeat(pictures[..., np.newaxis], 3, axis=-1)
            return pictures[part]

        return FrameStack(self.video.seqs, shape, np.dtype(np.uint8), read)

    def has(self, name: str, seq: int) -> bool:
        """Return whether `stack` has a snapshot."""
        return any(segment.has(name, seq) for segment in self.segments)

    def frame_of(self, name: str, seq: int, part: _Part = ()) -> Array:
        """Return what `stack` has of a snapshot by its sequence number.

        Raises KeyError if it is not stored.
        """
        segment = next((segment for segment in self.segments if segment.has(name, seq)), None)
        if segment is None:
            raise KeyError(f"snapshot {seq} has no {name} in {self.path}")
        return segment.frame(name, seq, part)

    @property
    def table(self) -> npt.NDArray[np.void]:
        """Capture and solve of each known snapshot: a structured array, one row per snapshot.

        Columns: ``seq`` and those of `sci_stream.recording.columns.COLUMNS`;
        ``pandas.DataFrame(table)`` accepts it. ``iterations`` is 0 for a snapshot that was dropped.

        Raises `FileFormatError` if rows are damaged; `rows` has them as they are.
        """
        known = np.flatnonzero((self.rows["epoch"] >= 0) | (self.rows["outcome"] != 0))
        for segment in self.segments:
            segment.require_rows()
        columns: list[tuple[str, Any]] = [
            (name, values.dtype) for name, values in self.rows.items()
        ]
        table = np.zeros(len(known), [("seq", "i8"), *columns])
        table["seq"] = known + self.first_seq
        for name, values in self.rows.items():
            table[name] = values[known]
        return table

    def row(self, seq: int) -> dict[str, Any]:
        """Return the columns of one snapshot as plain values.

        Raises KeyError if it lies outside the recording; `FileFormatError` if it is damaged.
        """
        index = seq - self.first_seq
        if not 0 <= index < len(self.rows["state"]):
            raise KeyError(f"snapshot {seq} has no row in {self.path}")
        for segment in self.segments:
            segment.require_rows(seq)
        return {name: values[index].item() for name, values in self.rows.items()}

    def close(self) -> None:
        """Close the files. May be called again."""
        self._stack.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.info.series!r}: {len(self.raw)} raw snapshots, "
            f"{len(self.video)} videos of {self.info.n_frames} frames, {self.raw.shape[1:]}>"
        )


def open_recording(path: str | Path) -> RecordedSeries:
    """Open a recording as arrays; see `RecordedSeries`."""
    return RecordedSeries(path)


# Columns that identify a snapshot; all others, except the state, describe its outcome.
_IDENTITY = ("epoch", "camera_frame_id", "camera_time_ns", "host_time_ns", "dropped_before")


def merge_rows(segments: Sequence[Recording]) -> tuple[int, dict[str, Array]]:
    """Return the sequence number of row 0, and every column across all segments.

    Where several segments describe a snapshot, the latest takes precedence; stored data adds up.
    """
    first_seq = min(segment.first_seq for segment in segments)
    stop = max(segment.first_seq + len(segment.rows["state"]) for segment in segments)
    columns = columns_of(segments[0].info)
    bytes_each = sum(np.dtype(column.dtype).itemsize for column in columns)
    require_memory((stop - first_seq) * bytes_each, f"The table of {segments[0].path}")
    merged: dict[str, Array] = {
        column.name: np.full(stop - first_seq, column.fill, column.dtype) for column in columns
    }
    for segment in segments:
        rows = segment.rows
        offset = segment.first_seq - first_seq
        place = slice(offset, offset + len(rows["state"]))
        identified = rows["epoch"] >= 0
        settled = rows["outcome"] != 0
        for name, values in merged.items():
            if name in STORED:
                values[place] |= rows[name]
            else:
                chosen = (
                    identified if name in _IDENTITY or name.startswith(CHUNK_PREFIX) else settled
                )
                if name in rows:  # a damaged file may lack a column
                    values[place][chosen] = rows[name][chosen]
    return first_seq, merged
