"""``sci-stream solve``: reconstruct the snapshots of a file, without a rig, into a video file or
array.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from sci_stream.arrays.api import mean_psnr_db
from sci_stream.arrays.solver import ArrayOptions, ArraySolver, Progress
from sci_stream.calibration.evidence.defect import Defect
from sci_stream.errors import InputError
from sci_stream.field_types import finite_or_none
from sci_stream.file_guard import complete_output
from sci_stream.files.measurement_file import Measurements
from sci_stream.files.video_output import FOLDERS, VideoStack, format_of, write_video
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import F32
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.quantities import live_values
from sci_stream.recon.backend.device import describe_device
from sci_stream.reports import SolveReport

Video = F32
_OF_DEFECT = ("name", "text", "fatal", "corrected", "shift_px")


@dataclass(frozen=True)
class SolveOptions(ArrayOptions):
    """Options of the solver, and of the output.

    ``first`` and ``last`` are snapshots, counted from 0, inclusive; ``form`` is the name of a
    `VideoFormat`, by default that of the suffix; ``fps`` of a film; ``gamma`` of pictures: 1 shows
    the values as they are, 2.2 suits linear light; ``replace`` an existing file, but none of the
    ``sources``. With ``channels``, each three snapshots are red, green and blue of one moment: each
    is solved by itself, without a warm start, and three make a video in colour.
    """

    first: int = 0
    last: int | None = None
    form: str = ""
    fps: float = 25.0
    gamma: float = 1.0
    replace: bool = False
    sources: Sequence[Path] = ()
    channels: bool = False


@dataclass(eq=False)
class SolvedFile:
    """Result: ``reports`` of each snapshot; ``assumed`` as of `Measurements`, the rest as of
    `Reconstructed`.
    """

    out: Path | None
    solver: str
    device: str
    n_frames: int
    white: float
    assumed: tuple[str, ...] = ()
    reports: list[SolveReport] = field(default_factory=list)
    defects: list[Defect] = field(default_factory=list)

    @property
    def psnr_db(self) -> float | None:
        """Mean PSNR over all frames, dB; None without truth."""
        return mean_psnr_db(self.reports)

    @property
    def correction(self) -> str:
        """Correction of the masks for the last snapshot, in words."""
        return MaskCorrection.from_text(self.reports[-1].masks_at).words if self.reports else ""

    def to_json(self) -> dict[str, JsonValue]:
        """Return plain values; infinite PSNR is null."""
        return {
            "out": None if self.out is None else str(self.out),
            "snapshots": len(self.reports),
            "frames": len(self.reports) * self.n_frames,
            "white": self.white,
            "assumed": list(self.assumed),
            "solver": self.solver,
            "device": self.device,
            "psnr_db": finite_or_none(self.psnr_db),
            "faults": [one.text for one in self.defects],
            "defects": [{key: getattr(one, key) for key in _OF_DEFECT} for one in self.defects],
            "solves": [
                {
                    **live_values(report),
                    "start": report.start_reason,
                    "seconds": report.solve_ns / 1e9,
                    "masks_at": report.masks_at,
                    "correction": MaskCorrection.from_text(report.masks_at).words,
                }
                for report in self.reports
            ],
        }


class _WithheldError(Exception):
    """A video would be made up: nothing is written."""


def solve_file(
    measurements: Measurements,
    out: Path | None,
    options: SolveOptions,
    progress: Progress = lambda _done, _total: None,
) -> SolvedFile:
    """Reconstruct snapshots in order and write the video; the output appears under its name once
    complete.

    ``out`` is of any `VideoFormat`; values are float32. None makes only the reports.
    ``progress`` is called after each iteration with the number done and the total.

    Raises `InputError` if the arrays, options or the suffix of ``out`` are invalid; `StorageError`
    if ``out`` exists and is not to be replaced, is a source, or cannot be written.
    """
    form = None if out is None else format_of(out, options.form)  # refuse a suffix before the work
    solver = ArraySolver(
        measurements.masks,
        replace(options, on_mismatch="snapshot", warm_start=not options.channels),
    )
    y = measurements.y
    if isinstance(y, np.ndarray):  # the snapshots of a recording are checked when they are read
        y = solver.take(y)
    seqs = _chosen(len(y), options)
    if options.channels and len(seqs) % 3:
        raise InputError(
            "The channels of a colour are incomplete",
            expected="three snapshots of each moment: red, green and blue",
            got=f"{len(seqs)} snapshots",
        )
    solver.begin(y, seqs, measurements.truth)
    calibration = solver.calibration
    done = SolvedFile(
        out,
        solver.solver.name,
        describe_device(solver.device),
        calibration.n_frames,
        solver.white,
        measurements.assumed,
    )

    def videos() -> Iterator[Video]:
        done.defects = solver.defects
        if solver.withholds:
            raise _WithheldError
        for video, report in solver.videos(progress):
            done.defects = solver.defects
            if solver.withholds:
                raise _WithheldError
            done.reports.append(report)
            yield video

    stack = VideoStack(
        snapshots=_in_colour(videos()) if options.channels else videos(),
        seqs=seqs[: len(seqs) // 3] if options.channels else seqs,
        shape=(calibration.n_frames, *calibration.shape, *([3] if options.channels else [])),
        dtype=np.dtype(np.float32),
        name="video" if out is None else out.stem,
        bayer=calibration.bayer,
        notes={
            "frames_per_snapshot": str(calibration.n_frames),
            "bayer": str(calibration.bayer or "none"),
        },
        first=y[seqs[0]],
        defects=solver.defects,
        report=lambda: json.dumps(done.to_json()),
    )
    try:
        if out is None or form is None:
            for _ in stack.snapshots:
                pass
        else:
            tone = ToneSettings().changed({"gamma": options.gamma})
            with complete_output(
                out,
                replace=options.replace,
                folder=FOLDERS.get(form, ""),
                sources=options.sources,
            ) as partial:
                write_video(partial, stack, form, tone=tone, fps=options.fps)
    except _WithheldError:
        done.out = None
    return done


def _in_colour(videos: Iterator[Video]) -> Iterator[Video]:
    """Yield videos (B, H, W, 3) of each three that are red, green and blue."""
    for channels in zip(videos, videos, videos, strict=True):
        yield np.stack(channels, axis=-1)


def _chosen(count: int, options: SolveOptions) -> range:
    last = count - 1 if options.last is None else options.last
    if not 0 <= options.first <= last < count:
        raise InputError(
            "These snapshots do not exist",
            expected=f"0 to {count - 1}",
            got=f"{options.first} to {last}",
        )
    return range(options.first, last + 1)
