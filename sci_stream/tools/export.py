"""Export a recording to video files, OME-TIFF, OME-Zarr or PNG images."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sci_stream.errors import InputError
from sci_stream.file_guard import complete_output
from sci_stream.files.image_stacks import Stack, write_png, write_tiff, write_zarr
from sci_stream.files.video_file import MovieFile
from sci_stream.imaging.rendering import render, render_counts
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import Array
from sci_stream.recording.nexus import experiment_of
from sci_stream.recording.series import RecordedSeries

Progress = Callable[[int, int], None]


class ExportFormat(enum.StrEnum):
    """Output format."""

    MP4 = "mp4"
    MKV = "mkv"
    FFV1 = "ffv1"
    TIFF = "tiff"
    ZARR = "zarr"
    PNG = "png"


_BY_SUFFIX = {
    ".mp4": ExportFormat.MP4,
    ".mkv": ExportFormat.MKV,
    ".tif": ExportFormat.TIFF,
    ".tiff": ExportFormat.TIFF,
    ".zarr": ExportFormat.ZARR,
}
# The other formats are video files.
_STACK_WRITERS = {ExportFormat.TIFF: write_tiff, ExportFormat.ZARR: write_zarr, ExportFormat.PNG: write_png}


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Settings of an export.

    ``coded`` exports the coded snapshots instead of the video; ``pictures`` 8-bit images as on the screen where the
    format could store the values themselves (TIFF, Zarr), which video files and PNG always contain; ``first`` and
    ``last`` seq, inclusive; ``fps`` of a video file; ``tone`` of images; ``replace`` an existing file.
    """

    format: ExportFormat | None = None
    coded: bool = False
    pictures: bool = False
    first: int | None = None
    last: int | None = None
    fps: float = 25.0
    tone: ToneSettings = field(default_factory=ToneSettings)
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export: ``snapshots`` in ``frames`` in ``path``; ``left_out`` snapshots were missing."""

    path: Path
    format: ExportFormat
    snapshots: int
    frames: int
    left_out: int


def export_format_of(path: Path, requested: ExportFormat | None) -> ExportFormat:
    """Return the format: the given one, else that of the file suffix.

    Raises
    ------
    InputError
        If neither determines it.
    """
    chosen = requested or _BY_SUFFIX.get(path.suffix.lower())
    if chosen is None:
        raise InputError(
            f"Cannot determine the export format of {path}",
            expected="a name ending in .mp4, .mkv, .tif, .tiff or .zarr, or one of " + ", ".join(ExportFormat),
            got=path.suffix or "no suffix",
        )
    return chosen


def export(
    source: Path, out: Path, options: ExportOptions, progress: Progress = lambda _done, _total: None
) -> Exported:
    """Export a recording's video, or its coded snapshots; the output appears under its name once complete.

    ``out`` is a folder for Zarr and PNG. ``progress`` is called with the number of snapshots done and the total.

    Raises
    ------
    FileFormatError
        If ``source`` is not a recording.
    InputError
        If it contains nothing to export, or the format cannot be determined.
    ConfigError
        If a library for the format is not installed.
    StorageError
        If ``out`` exists and is not to be replaced, or cannot be written.
    """
    chosen = export_format_of(out, options.format)
    with complete_output(out, replace=options.replace) as partial, RecordedSeries(source) as series:
        seqs = _chosen(series, options, source)
        job = _Job(series, seqs, chosen, options, progress)
        job.write(partial)
    return Exported(out, chosen, len(seqs), len(seqs) * job.frames_each, seqs[-1] - seqs[0] + 1 - len(seqs))


def _chosen(series: RecordedSeries, options: ExportOptions, source: Path) -> list[int]:
    stored = series.raw if options.coded else series.video
    seqs = stored.between(options.first, options.last)
    if not seqs:
        what = "coded snapshots" if options.coded else "video"
        raise InputError(
            f"{source} contains no {what} to export" + ("" if not len(stored) else " in that range"),
            expected=f"seq from {stored.seqs[0]} to {stored.seqs[-1]}" if len(stored) else None,
            hint=None if options.coded or len(stored) else "sci-stream replay reconstructs it from the raw snapshots.",
        )
    return seqs


@dataclass(frozen=True, slots=True)
class _Job:
    series: RecordedSeries
    seqs: list[int]
    format: ExportFormat
    options: ExportOptions
    progress: Progress

    @property
    def frames_each(self) -> int:
        return 1 if self.options.coded else self.series.info.n_frames

    @property
    def as_pictures(self) -> bool:
        return self.options.pictures or self.format not in (ExportFormat.TIFF, ExportFormat.ZARR)

    def write(self, path: Path) -> None:
        if self.format in _STACK_WRITERS:
            _STACK_WRITERS[self.format](path, self._stack())
            return
        container = ".mp4" if self.format is ExportFormat.MP4 else ".mkv"
        lossless = self.format is ExportFormat.FFV1
        with MovieFile(path, self.options.fps, lossless=lossless, container=container) as movie:
            for frame in self._frames():
                movie.write(frame)

    def _frames(self) -> Iterator[Array]:
        series, tone = self.series, self.options.tone
        for done, seq in enumerate(self.seqs, 1):
            if self.options.coded:
                counts = series.raw_of(seq)
                yield render_counts(counts, tone.gamma) if self.as_pictures else counts
            else:
                video = series.video_of(seq)
                yield from render(video, series.info.bayer, tone) if self.as_pictures else video
            self.progress(done, len(self.seqs))

    def _stack(self) -> Stack:
        info, coded, B = self.series.info, self.options.coded, self.frames_each
        size: tuple[int, ...] = (info.height_px, info.width_px)
        dtype: np.dtype[Any] = (self.series.raw if coded else self.series.video).dtype
        frames = self._frames()
        if self.as_pictures:
            dtype = np.dtype(np.uint8)
            size = (*size, 3) if info.bayer is not None and not coded else size
        elif self.format is ExportFormat.TIFF and dtype == np.float16:
            # OME has no half precision; single precision represents every value of it.
            dtype = np.dtype(np.float32)
            frames = (frame.astype(np.float32) for frame in self._frames())
        times_s, started = _times(self.series, self.seqs, B)
        return Stack(
            frames=frames,
            count=len(self.seqs) * B,
            shape=size,
            dtype=dtype,
            name=info.series,
            labels=[f"{seq:08d}" if coded else f"{seq:08d}_{b:03d}" for seq in self.seqs for b in range(B)],
            interval_s=_interval_s(self.series, B),
            notes=_notes(self.series, self.seqs),
            pixel_um=experiment_of(info).pixel_size_um,
            times_s=times_s,
            started=started,
        )


def _interval_s(series: RecordedSeries, frames_each: int) -> float | None:
    """Return the frame interval: the period of the snapshots, divided by their frames."""
    period_ns = series.period_ns
    return None if not period_ns else float(f"{period_ns / 1e9 / frames_each:.9g}")


def _times(series: RecordedSeries, seqs: list[int], frames_each: int) -> tuple[list[float], str]:
    """Return the time of each frame after the first snapshot, s, and when that was, from the recorded host times."""
    host_ns = series.rows["host_time_ns"][np.asarray(seqs) - series.first_seq]
    if (host_ns <= 0).any():
        return [], ""
    step_s = (_interval_s(series, frames_each) or 0.0) if frames_each > 1 else 0.0
    times = (host_ns - host_ns[0])[:, np.newaxis] / 1e9 + step_s * np.arange(frames_each)
    started = datetime.fromtimestamp(int(host_ns[0]) / 1e9, UTC).isoformat(timespec="microseconds")
    return np.round(times.ravel(), 9).tolist(), started.replace("+00:00", "Z")


def _missing(seqs: list[int]) -> str:
    """Return the snapshots that are missing between the first and the last one: ``"2, 5-7"``."""
    gaps = [(before + 1, after - 1) for before, after in pairwise(seqs) if after > before + 1]
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in gaps)


def _notes(series: RecordedSeries, seqs: list[int]) -> dict[str, str]:
    info = series.info
    return {
        "series": info.series,
        "first_seq": str(seqs[0]),
        "last_seq": str(seqs[-1]),
        "missing_seqs": _missing(seqs) or "none",
        "frames_per_snapshot": str(info.n_frames),
        "bayer": "none" if info.bayer is None else info.bayer.value,
        "calibration_hash": info.calibration_hash,
    }
