"""``sci-stream bench large``: memory and time of large snapshots from files, simulated as in the
paper.

A colour film is coded by one random binary mask that shifts by a pixel from frame to frame, and
summed on an RGGB mosaic. As in the paper each colour of the film is one plane of the mosaic, which
is therefore twice as high and wide as the film, with equal green planes; PSNR is that of the
mosaic, before demosaicing. Each size is solved by ``sci-stream solve`` in a process of its own,
whose peak memory the kernel reports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import torch

from sci_stream.errors import FileFormatError, StorageError
from sci_stream.files.media import video_frames
from sci_stream.model import BayerPhase
from sci_stream.optics.bayer import sample_colours
from sci_stream.recon.backend.device import (
    computes_bfloat16,
    describe_device,
    memory_in_use,
    pick_device,
)
from sci_stream.recon.backend.memory import PIXELS_PER_CHUNK, solve_bytes
from sci_stream.recon.denoisers.registry import chosen_denoiser
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.bench.result import (
    BenchResult,
    Progress,
    ResultColumn,
    ResultTable,
    Settings,
    mean,
)
from sci_stream_lab.bench.speed.solve_times import Size

F32 = npt.NDArray[np.float32]

# Of a process without any video: Python, torch and its libraries.
_PROCESS_BYTES = 350 << 20
_MIB = 2**20

# Between two looks at a process: short beside a solve, whose peak lasts for iterations.
_WATCH_S = 0.02


@dataclass(frozen=True, slots=True)
class LargeSolve:
    """Memory and time of one size, or why it was skipped.

    ``stated_mib`` is the memory expected beforehand.
    """

    size: str
    stated_mib: float
    peak_mib: float | None = None
    seconds: float | None = None
    iterations: int | None = None
    psnr_db: float | None = None
    skipped: str = ""


_COLUMNS = (
    ResultColumn("size", "size", left=True),
    ResultColumn("stated_mib", "stated MiB", ".0f", "MiB"),
    ResultColumn("peak_mib", "peak MiB", ".0f", "MiB"),
    ResultColumn("iterations", "iterations"),
    ResultColumn("seconds", "s", ".0f", "s"),
    ResultColumn("psnr_db", "PSNR dB", ".2f", "dB"),
    ResultColumn("skipped", "", left=True),
)


@dataclass(frozen=True)
class LargeResult(BenchResult):
    """A row for each size."""

    rows: tuple[LargeSolve, ...] = ()


def stated_bytes(size: Size, device: torch.device, denoiser: str) -> int:
    """Return the memory that ``sci-stream solve`` needs for a snapshot: of the host, and of the
    solve.

    The host holds the masks as they are in the file, a byte each, and as fractions, and the video;
    of a mosaic also the video in colour, as it is written.
    """
    planes, chunk, features = 4 if size.bayer else 1, PIXELS_PER_CHUNK[device.type], None
    if chosen_denoiser(denoiser, device, None) == "unrolled":
        features = torch.bfloat16 if computes_bfloat16(device) else torch.float32
    solve = solve_bytes(
        size.n_frames,
        size.height,
        size.width,
        planes=planes,
        pixels_per_chunk=chunk,
        features=features,
    )
    return _PROCESS_BYTES + (21 if size.bayer else 9) * size.pixels + solve


def bench(
    sizes: Sequence[Size],
    denoiser: str,
    iterations: int,
    device_name: str,
    progress: Progress,
    *,
    film: Path | None = None,
) -> LargeResult:
    """Simulate and solve a snapshot of each size.

    Parameters
    ----------
    sizes
        Rows and columns of the sensor. A size that needs more memory than is free is skipped with a
        message.
    denoiser, iterations, device_name
        As for ``sci-stream solve``, which shows its progress.
    film
        The scene, a colour film; None for drifting waves.

    Raises
    ------
    FileFormatError
        If the film has fewer frames than a snapshot sums.
    StorageError
        If the files cannot be written, or a solve fails.
    """
    device = pick_device(device_name)
    rows = []
    for size in sizes:
        stated, free = (
            stated_bytes(size, device, denoiser),
            memory_in_use(device).get("memory_free", sys.maxsize),
        )
        row = LargeSolve(str(size), stated / _MIB)
        if stated > free:
            why = f"{free / _MIB:.0f} MiB are free"
            progress(f"{size}: skipped, {why}; {row.stated_mib:.0f} MiB are needed")
            rows.append(dataclasses.replace(row, skipped=why))
            continue
        with tempfile.TemporaryDirectory(prefix="sci-stream-large-") as folder:
            progress(
                f"{size}: simulating a snapshot of {size.pixels} pixels; about "
                f"{row.stated_mib:.0f} MiB to solve"
            )
            _simulate(Path(folder), size, film)
            rows.append(_solve(Path(folder), size, row, (denoiser, iterations, device_name), film))
        progress(
            f"{size}: {rows[-1].seconds:.0f} s, {rows[-1].peak_mib:.0f} MiB, "
            f"{rows[-1].psnr_db:.2f} dB"
        )
    table = ResultTable(
        f"Large snapshots with {denoiser} on {describe_device(device)}",
        _COLUMNS,
        tuple(rows),
        caption="Peak memory is that of the host." if device.type == "cuda" else "",
    )
    settings: Settings = {
        "denoiser": denoiser,
        "iterations": iterations,
        "film": film.name if film else "waves",
    }
    return LargeResult(
        "large", environment(describe_device(device)), (table,), settings=settings, rows=tuple(rows)
    )


def _simulate(folder: Path, size: Size, film: Path | None) -> None:
    """Write ``masks.npy``, (B, H, W) bytes, and ``y.npy``, (H, W), frame by frame."""
    shape = (size.n_frames, size.height, size.width)
    mask = np.random.default_rng(0).integers(
        0, 2, (size.height, size.width + size.n_frames), dtype=np.uint8
    )
    y = np.zeros(shape[1:], np.float32)
    try:
        masks = np.lib.format.open_memmap(
            folder / "masks.npy", mode="w+", dtype=np.uint8, shape=shape
        )
        for b, frame in enumerate(_mosaics(size, film)):
            masks[b] = mask[:, b : b + size.width]
            y += masks[b] * frame
        masks.flush()
        np.save(folder / "y.npy", y)
    except OSError as error:
        raise StorageError("The simulated snapshot cannot be written", got=error) from error


def _mosaics(size: Size, film: Path | None) -> Iterator[F32]:
    """Yield the true frames as the sensor sees them, (H, W), 0–1; RGGB where the sensor is a
    mosaic.
    """
    height, width = (size.height // 2, size.width // 2) if size.bayer else (size.height, size.width)
    for colours in (
        _waves(height, width, size.n_frames) if film is None else _filmed(film, height, width, size)
    ):
        if not size.bayer:
            yield colours.mean(-1)
            continue
        red, green, blue = np.moveaxis(colours, -1, 0)
        mosaic = np.empty((size.height, size.width), np.float32)
        mosaic[::2, ::2], mosaic[::2, 1::2], mosaic[1::2, ::2], mosaic[1::2, 1::2] = (
            red,
            green,
            green,
            blue,
        )
        yield mosaic


def _filmed(film: Path, height: int, width: int, size: Size) -> Iterator[F32]:
    """Yield frames of a film, (h, w, 3), 0–1."""
    frames = video_frames(film)
    for b in range(size.n_frames):
        frame = next(frames, None)
        if frame is None:
            raise FileFormatError(
                f"{film} is too short", expected=f"{size.n_frames} frames", got=f"{b}"
            )
        small = cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)
        yield small[..., ::-1].astype(np.float32) / np.float32(255)


def _waves(height: int, width: int, n_frames: int) -> Iterator[F32]:
    """Yield frames of drifting waves of three colours, (h, w, 3), 0–1."""
    rows, columns = np.ogrid[:height, :width]
    for b in range(n_frames):
        waves = [
            np.sin((rows + 0.3 * b) / (5 + c)) * np.cos((columns - 0.4 * b) / (9 - c))
            for c in range(3)
        ]
        yield (0.5 + 0.4 * np.stack(waves, -1)).astype(np.float32)


def _solve(
    folder: Path, size: Size, row: LargeSolve, how: tuple[str, int, str], film: Path | None
) -> LargeSolve:
    denoiser, iterations, device = how
    command = [sys.executable, "-P", "-m", "sci_stream", "solve", str(folder / "y.npy")]
    command += [
        "--mask",
        str(folder / "masks.npy"),
        "--out",
        str(folder / "video.npy"),
        "--white",
        "1",
        "--json",
    ]
    command += ["--solver", denoiser, "--iterations", str(iterations), "--device", device]
    command += ["--bayer", "RGGB"] if size.bayer else []
    with (folder / "report.json").open("wb") as report:
        process = subprocess.Popen(
            command, stdout=report
        )  # its progress goes to our standard error
        peak_mib = _watch_memory(process)
    if process.returncode != 0:
        raise StorageError(
            f"The snapshot of {size} could not be solved", got=f"status {process.returncode}"
        )
    solved = json.loads((folder / "report.json").read_text("utf-8"))["solves"][0]
    video = np.load(folder / "video.npy", mmap_mode="r")
    frames = video.reshape(size.n_frames, size.height, size.width, *([3] if size.bayer else []))
    scores = []
    for frame, true in zip(frames, _mosaics(size, film), strict=True):
        solved_mosaic = sample_colours(frame, BayerPhase.RGGB) if size.bayer else frame
        scores.append(
            -10
            * np.log10(
                max(float(np.mean(np.square(solved_mosaic - true, dtype=np.float64))), 1e-12)
            )
        )
    return dataclasses.replace(
        row,
        peak_mib=peak_mib,
        seconds=solved["seconds"],
        iterations=solved["iterations"],
        psnr_db=mean(scores),
    )


def _watch_memory(process: subprocess.Popen[bytes]) -> float:
    """Wait for the end of a process; return the most memory that it had resident, MiB.

    Not from ``getrusage``: there a child's maximum begins with that of the process that started it.
    """
    peak_kib = 0
    while process.poll() is None:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            peak = re.search(r"VmHWM:\s+(\d+) kB", status)
            peak_kib = int(peak[1]) if peak else peak_kib
        time.sleep(_WATCH_S)
    return peak_kib / 1024
