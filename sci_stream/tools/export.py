"""Export a recording to any format of `sci_stream.files.video_output`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np

from sci_stream.calibration.diagnosis import WITHHELD
from sci_stream.errors import InputError
from sci_stream.file_guard import complete_output
from sci_stream.files.video_output import FOLDERS, VideoFormat, VideoStack, format_of, write_video
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import Array
from sci_stream.optics.mask_errors import MaskCorrection, in_recorded_light
from sci_stream.recording.nexus import experiment_of
from sci_stream.recording.segments import existing_segments, first_segment
from sci_stream.recording.series import RecordedSeries

Progress = Callable[[int, int], None]
_CONTENTS = {
    "raw": "coded snapshots (DN)",
    "video": "reconstructed video (0-1)",
    "error": "estimated error (0-1)",
}


@dataclass(frozen=True)
class ExportOptions:
    """Settings of an export.

    ``form`` is the name of a `VideoFormat`, by default that of the suffix; ``stored`` is exported:
    ``raw`` counts, ``video``, or its estimated ``error``; ``pictures`` 8-bit images as on the
    screen where the format could store the values themselves; ``first`` and ``last`` seq,
    inclusive; ``fps`` of a film; ``tone`` of images; ``replace`` an existing file. The video has
    even light, or ``flickers`` as the light did.
    """

    form: str = ""
    stored: str = "video"
    pictures: bool = False
    first: int | None = None
    last: int | None = None
    fps: float = 25.0
    tone: ToneSettings = field(default_factory=ToneSettings)
    replace: bool = False
    flickers: bool = False


@dataclass(frozen=True)
class Exported:
    """Result of an export: ``snapshots`` in ``frames`` in ``path``; ``left_out`` snapshots were
    missing.

    ``times_s`` of the frames count from ``started``, a time in ISO 8601; empty if unknown.
    """

    path: Path
    format: VideoFormat
    snapshots: int
    frames: int
    left_out: int
    times_s: Sequence[float] = ()
    started: str = ""


def export(
    source: Path, out: Path, options: ExportOptions, progress: Progress = lambda _done, _total: None
) -> Exported:
    """Export a recording's video, coded snapshots or estimated error; the output appears under its
    name once complete.

    ``out`` is a folder for Zarr and PNG. ``progress`` is called with the number of snapshots done
    and the total.

    Raises `FileFormatError` if ``source`` is not a recording; `InputError` if it contains nothing
    to export, or the format cannot be determined; `ConfigError` if a library for the format is not
    installed; `StorageError` if ``out`` exists and is not to be replaced, belongs to the recording,
    or cannot be written.
    """
    form = format_of(out, options.form)
    sources = existing_segments(first_segment(source))
    folder = FOLDERS.get(form, "")
    output = complete_output(out, replace=options.replace, folder=folder, sources=sources)
    with output as partial, RecordedSeries(source) as series:
        seqs = _chosen(series, options, source)
        video = _stack(series, seqs, options, progress)
        write_video(
            partial, video, form, tone=options.tone, fps=options.fps, pictures=options.pictures
        )
    left_out = seqs[-1] - seqs[0] + 1 - len(seqs)
    return Exported(
        out, form, len(seqs), video.count, left_out, tuple(video.times_s), video.started
    )


def _chosen(series: RecordedSeries, options: ExportOptions, source: Path) -> list[int]:
    stored = series.stack(options.stored)
    seqs = stored.between(options.first, options.last)
    if not seqs:
        what = _CONTENTS[options.stored].partition(" (")[0]
        if len(stored):
            raise InputError(
                f"{source} contains no {what} to export in that range",
                expected=f"seq from {stored.seqs[0]} to {stored.seqs[-1]}",
            )
        raise InputError(
            f"{source} contains no {what} to export",
            hint="sci-stream replay reconstructs it from raw snapshots."
            if options.stored == "video"
            else None,
        )
    return seqs


def _stack(
    series: RecordedSeries, seqs: list[int], options: ExportOptions, progress: Progress
) -> VideoStack:
    info = series.info
    name = options.stored
    stored = series.stack(name)
    shape = n_frames, _, width = (1, *stored.shape[1:])[-3:]

    flickers = options.flickers and name == "video"

    def snapshots() -> Iterator[Array]:
        for done, seq in enumerate(seqs, 1):
            frames = series.frame_of(name, seq).reshape(shape)
            row = seq - series.first_seq
            if flickers and series.rows["start_reason"][row] != WITHHELD.encode():
                frames = in_recorded_light(frames, series.rows["masks_at"][row].decode("ascii"))
            yield frames
            progress(done, len(seqs))

    pixel_um = experiment_of(info).pixel_size_um
    places = np.asarray(seqs) - series.first_seq
    spans_s = _spans_s(series, places, n_frames)
    times_s, started = _times(series, places, n_frames, spans_s)
    return VideoStack(
        snapshots=snapshots(),
        seqs=seqs,
        shape=shape,
        dtype=stored.dtype,
        name=info.series,
        bayer=info.bayer,
        coded=name == "raw",
        interval_s=float(f"{np.median(spans_s) / n_frames:.9g}") or None,
        content=_CONTENTS[name],
        notes={
            "series": info.series,
            "first_seq": str(seqs[0]),
            "last_seq": str(seqs[-1]),
            "missing_seqs": _missing(seqs) or "none",
            "frames_per_snapshot": str(info.n_frames),
            "bayer": str(info.bayer or "none"),
            "calibration_hash": info.calibration_hash,
        },
        times_s=times_s,
        started=started,
        pixel_um=None if pixel_um is None else pixel_um * info.width_px / width,
        first=series.frame_of("raw", seqs[0])
        if name == "video" and series.has("raw", seqs[0])
        else None,
    )


def _spans_s(series: RecordedSeries, places: Array, n_frames: int) -> Array:
    """Return the time that the frames of each snapshot take, s: its exposure, or the period of
    coded snapshots.
    """
    exposures_us = series.rows.get("chunk_ExposureTime", np.zeros(len(series.rows["state"])))[
        places
    ]
    known_ns = (series.period_ns, series.calibration.exposure_ns if n_frames > 1 else None)
    usual_ns = min((ns for ns in known_ns if ns), default=0)
    return np.where((exposures_us > 0) & (n_frames > 1), exposures_us / 1e6, usual_ns / 1e9)


def _times(
    series: RecordedSeries, places: Array, n_frames: int, spans_s: Array
) -> tuple[list[float], str]:
    """Return the time of each frame after the first snapshot, s, and when that was, from the
    recorded host times.

    Where gains of the masks were corrected, frames are not equally long.
    """
    host_ns = series.rows["host_time_ns"][places]
    if (host_ns <= 0).any():
        return [], ""
    begins = np.arange(n_frames) / n_frames
    if n_frames > 1:
        corrections = (
            MaskCorrection.from_text(text.decode("ascii"))
            for text in series.rows["masks_at"][places]
        )
        begins = np.array([correction.frame_times(n_frames) for correction in corrections])[..., 0]
    times = (host_ns - host_ns[0])[:, np.newaxis] / 1e9 + spans_s[:, np.newaxis] * begins
    started = datetime.fromtimestamp(int(host_ns[0]) / 1e9, UTC).isoformat(timespec="microseconds")
    return np.round(times.ravel(), 9).tolist(), started.replace("+00:00", "Z")


def _missing(seqs: list[int]) -> str:
    """Return the snapshots that are missing between the first and the last one: ``"2, 5-7"``."""
    gaps = [(before + 1, after - 1) for before, after in pairwise(seqs) if after > before + 1]
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in gaps)
