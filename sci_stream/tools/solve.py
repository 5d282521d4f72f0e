"""``sci-stream solve``: reconstruct the snapshots of a file, without a rig, into a video file or array."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from sci_stream.errors import InputError
from sci_stream.file_guard import complete_output
from sci_stream.files.image_stacks import Stack, write_tiff, write_zarr
from sci_stream.files.measurement_file import Measurements
from sci_stream.files.video_file import MovieFile, write_gif
from sci_stream.imaging.rendering import encode_png, render, render_counts
from sci_stream.imaging.tone import ToneSettings
from sci_stream.model import Array
from sci_stream.optics.calibration import Calibration
from sci_stream.quantities import live_values
from sci_stream.recon.array_interface import ArrayOptions, ArraySolver, Progress, as_series, real_array
from sci_stream.recon.backend.device import describe_device
from sci_stream.reports import SolveReport

U8 = npt.NDArray[np.uint8]
Video = npt.NDArray[np.float32]

_GAP_PX = 4


@dataclass(frozen=True, slots=True)
class SolveOptions(ArrayOptions):
    """Options of the solver, and of the output.

    ``first`` and ``last`` are snapshots, counted from 0, inclusive; ``fps`` of a film; ``gamma`` of pictures: 1 shows
    the values as they are, 2.2 suits linear light; ``replace`` an existing file.
    """

    first: int = 0
    last: int | None = None
    fps: float = 25.0
    gamma: float = 1.0
    replace: bool = False


@dataclass(slots=True, eq=False)
class SolvedFile:
    """Result: ``reports`` of each snapshot; PSNR, scale and ``faults`` as of `sci_stream.Reconstructed`."""

    out: Path | None
    denoiser: str
    device: str
    n_frames: int
    white: float
    reports: list[SolveReport] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def psnr_db(self) -> float | None:
        """Mean PSNR over all frames, dB; None without truth."""
        scores = [report.psnr_db for report in self.reports if report.psnr_db is not None]
        return float(np.mean(scores)) if scores else None

    def to_json(self) -> dict[str, JsonValue]:
        """Return plain values; infinite PSNR is null."""
        return {
            "out": None if self.out is None else str(self.out),
            "snapshots": len(self.reports),
            "frames": len(self.reports) * self.n_frames,
            "white": self.white,
            "denoiser": self.denoiser,
            "device": self.device,
            "psnr_db": _finite(self.psnr_db),
            "faults": [*self.faults],
            "solves": [
                {**live_values(report), "start": report.start_reason, "seconds": report.solve_ns / 1e9}
                for report in self.reports
            ],
        }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def solve_file(
    measurements: Measurements,
    out: Path | None,
    options: SolveOptions,
    progress: Progress = lambda _done, _total: None,
) -> SolvedFile:
    """Reconstruct snapshots in order and write the video; the output appears under its name once complete.

    Parameters
    ----------
    measurements
        From `sci_stream.files.measurement_file.load_measurement`.
    out
        Output: ``.mp4``, ``.mkv``, ``.gif`` (pictures); ``.tif``, ``.zarr``, ``.npy``, ``.h5`` (values, float32); or,
        for one snapshot, ``.png``: the snapshot and its frames in one picture. None: only the reports.
    options
        See `SolveOptions`.
    progress
        Called after each iteration with the number done and the total.

    Raises
    ------
    InputError
        If the arrays, options or the suffix of ``out`` are invalid.
    StorageError
        If ``out`` exists and is not to be replaced, or cannot be written.
    """
    y = measurements.y
    if isinstance(y, np.ndarray):  # the snapshots of a recording are checked when they are read
        y = as_series(real_array(y, "y"))
    seqs = _chosen(len(y), options)
    write = None if out is None else _writer(out, len(seqs))
    solver = ArraySolver(measurements.masks, options)
    solver.require_fit(y[0])
    truth = None if measurements.truth is None else solver.truth(measurements.truth, len(y))
    calibrated = isinstance(measurements.masks, Calibration)
    solver.scale(np.empty((0, 0, 0)) if calibrated else real_array(np.asarray(y), "y"), truth)
    n_frames = solver.calibration.n_frames
    done = SolvedFile(out, solver.denoiser_name, describe_device(solver.device), n_frames, solver.white)
    total = len(seqs) * solver.settings.iterations
    iterations = itertools.count(1)

    def videos() -> Iterator[Video]:
        for seq in seqs:
            true = None if truth is None else truth[seq]
            snapshot = real_array(y[seq], f"snapshot {seq}")
            video, report = solver.solve(seq, snapshot, true, lambda: progress(next(iterations), total))
            done.reports.append(report)
            yield video
        done.faults.extend(solver.faults.values())

    if out is None or write is None:
        for _ in videos():
            pass
    else:
        job = _SolveJob(videos(), len(seqs), solver.calibration, options, y[seqs[0]], done, out)
        with complete_output(out, replace=options.replace) as partial:
            write(job, partial)
    return done


def _chosen(count: int, options: SolveOptions) -> range:
    last = count - 1 if options.last is None else options.last
    if not 0 <= options.first <= last < count:
        raise InputError("These snapshots do not exist", expected=f"0 to {count - 1}", got=f"{options.first} to {last}")
    return range(options.first, last + 1)


@dataclass(frozen=True, slots=True)
class _SolveJob:
    """The videos, as they are solved, and their properties."""

    videos: Iterable[Video]
    count: int
    calibration: Calibration
    options: SolveOptions
    snapshot: Array
    result: SolvedFile
    out: Path

    @property
    def suffix(self) -> str:
        """Suffix of the output, which has another name until it is complete."""
        return self.out.suffix.lower()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, B, H, W)."""
        return (self.count, self.calibration.n_frames, *self.calibration.shape)

    def pictures(self) -> Iterator[U8]:
        """Yield each frame as a picture, (H, W) or (H, W, 3)."""
        tone = ToneSettings().changed({"gamma": self.options.gamma})
        for video in self.videos:
            yield from render(video, self.calibration.bayer, tone)


def _writer(out: Path, count: int) -> Callable[[_SolveJob, Path], None]:
    writer = _WRITERS.get(out.suffix.lower())
    if writer is None:
        raise InputError(
            f"Cannot determine the format of {out}",
            expected=f"a name ending in {', '.join(_WRITERS)}",
            got=out.suffix or "no suffix",
        )
    if writer is _write_png and count > 1:
        raise InputError(
            f"A picture shows one snapshot, and there are {count}",
            hint="Choose one with --first and --last, or write a film: -o OUT.mp4.",
        )
    return writer


def _write_film(job: _SolveJob, path: Path) -> None:
    with MovieFile(path, job.options.fps, container=job.suffix) as movie:
        for picture in job.pictures():
            movie.write(picture)


def _write_gif(job: _SolveJob, path: Path) -> None:
    write_gif(path, job.pictures(), job.options.fps)


def _write_stack(job: _SolveJob, path: Path) -> None:
    count, n_frames, height, width = job.shape
    stack = Stack(
        frames=(frame for video in job.videos for frame in video),
        count=count * n_frames,
        shape=(height, width),
        dtype=np.dtype(np.float32),
        name=job.out.stem,
        labels=[],
        interval_s=None,
        notes={
            "frames_per_snapshot": str(n_frames),
            "bayer": "none" if job.calibration.bayer is None else job.calibration.bayer.value,
        },
    )
    (write_zarr if job.suffix == ".zarr" else write_tiff)(path, stack)


def _write_npy(job: _SolveJob, path: Path) -> None:
    video = np.lib.format.open_memmap(path, "w+", np.float32, job.shape)
    for index, frames in enumerate(job.videos):
        video[index] = frames
    video.flush()


def _write_hdf5(job: _SolveJob, path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["NX_class"], file.attrs["default"] = "NXroot", "entry"
        entry = file.create_group("entry")
        entry.attrs["NX_class"], entry.attrs["default"] = "NXentry", "video"
        group = entry.create_group("video")
        group.attrs["NX_class"], group.attrs["signal"] = "NXdata", "data"
        data = group.create_dataset("data", job.shape, np.float32, chunks=(1, 1, *job.shape[2:]))
        data.attrs["long_name"], data.attrs["interpretation"] = "reconstructed video (0-1)", "image"
        for index, frames in enumerate(job.videos):
            data[index] = frames
        file["video"] = data
        file["report"] = json.dumps(job.result.to_json())


def _write_png(job: _SolveJob, path: Path) -> None:
    """Write the coded snapshot and its frames side by side, in rows of about the shape of a screen."""
    coded = render_counts(job.snapshot, job.options.gamma)
    frames = list(job.pictures())
    if frames[0].ndim == 3:
        coded = np.repeat(coded[..., np.newaxis], 3, axis=2)
    tiles = [coded, *frames]
    columns = math.ceil(math.sqrt(len(tiles) * 1.6 * coded.shape[0] / coded.shape[1]))
    columns = min(len(tiles), max(1, columns))
    rows = -(-len(tiles) // columns)
    height, width = coded.shape[0] + _GAP_PX, coded.shape[1] + _GAP_PX
    canvas = np.full((rows * height - _GAP_PX, columns * width - _GAP_PX, *coded.shape[2:]), 255, np.uint8)
    for index, tile in enumerate(tiles):
        row, column = divmod(index, columns)
        canvas[row * height :, column * width :][: tile.shape[0], : tile.shape[1]] = tile
    path.write_bytes(encode_png(canvas))


_WRITERS: dict[str, Callable[[_SolveJob, Path], None]] = {
    ".mp4": _write_film,
    ".mkv": _write_film,
    ".gif": _write_gif,
    ".tif": _write_stack,
    ".tiff": _write_stack,
    ".zarr": _write_stack,
    ".npy": _write_npy,
    ".h5": _write_hdf5,
    ".hdf5": _write_hdf5,
    ".png": _write_png,
}
