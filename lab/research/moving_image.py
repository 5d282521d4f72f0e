"""Study scenes with parts that move as one, and clips without; the results are in moving-image.md.

``python lab/research/moving_image.py [MASKS] [FRAMES] [NOISE] [CAMERA]`` prints the gain of a
moving image, dB, and its share of the time of a default solve. MASKS: binary (default), grey or
shifting; FRAMES: 8; NOISE: the standard deviation of y, 0.01; CAMERA: grey (default) or mosaic.

``python lab/research/moving_image.py live [CAMERA] [SIZE] [SOLVER] [ITERATIONS]`` has series of
three snapshots, of which the last two are solved warm, as in a rig. CAMERA: grey; SIZE: 128 px;
SOLVER: auto, whose ITERATIONS are those of the settings. Belts move along one axis. Shaking steps
are up to 1.5 px a frame.

SCI_STREAM_DATA names the data: photographs of ``test/kodak24`` are moved by sinc interpolation, the
first half for tuning, the second for reporting, as a whole or one before another; clips of
``video_train/free`` are for tuning, of
``video_train/research`` for reporting, all of one hue before a mosaic. Colour films of ``video``
are cut into clips: even ones are for tuning, odd ones for reporting.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt
import torch

from sci_stream.files.media import video_frames
from sci_stream.model import F32, BayerPhase
from sci_stream.optics.bayer import sample_colours
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.budget import ImageLooks
from sci_stream.recon.denoisers.registry import chosen_denoiser, named_prior
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import GuardedSolver
from sci_stream.recon.settings import default_settings
from sci_stream_lab.training.images import read_rgb
from sci_stream_lab.training.video.clips import read_clip

CPU = torch.device("cpu")
SIZE = 128
MAX_BYTES = 60_000_000
MAX_SPEED_PX = 2.0
MAX_STEP_PX = 1.5
N_FRAMES = 8
SNAPSHOTS = 3
CLIPS_OF_FILM = 12
# Weights of the colours in grey, and the hue of grey clips before a mosaic.
GREY = np.float32([0.299, 0.587, 0.114])
HUE = np.float32([0.7, 1, 0.8])
T = TypeVar("T", bound=np.generic)


def displaced(image: F32, down: float, right: float) -> F32:
    """Return image(p − d) of a periodic image."""
    rows = np.fft.fftfreq(image.shape[0])[:, None]
    columns = np.fft.rfftfreq(image.shape[1])
    ramp = np.exp(-2j * np.pi * (rows * down + columns * right))
    return np.fft.irfft2(np.fft.rfft2(image) * ramp, s=image.shape).astype(np.float32)


def pans(data: Path, n_frames: int, half: slice) -> Iterator[tuple[str, F32]]:
    """Yield photographs that move as one, (B, SIZE, SIZE, 3)."""
    rng = np.random.default_rng(half.start)
    times = np.arange(n_frames) - (n_frames - 1) / 2
    for path in photographs(data, half):
        velocity = rng.uniform(-MAX_SPEED_PX, MAX_SPEED_PX, 2)
        frames = carried(half_size(read_rgb(path)), np.outer(times, velocity))
        yield path.stem, frames[:, 60 : 60 + SIZE, 60 : 60 + SIZE]


def apart(data: Path, n_frames: int, half: slice) -> Iterator[tuple[str, F32]]:
    """Yield a photograph before another one, which moves as well or is still, (B, SIZE, SIZE, 3).

    It is a disc that moves with it, or the right half.
    """
    rng = np.random.default_rng(half.start)
    times = np.arange(n_frames) - (n_frames - 1) / 2
    rows, columns = np.mgrid[:SIZE, :SIZE]
    paths = photographs(data, half)
    for number, (behind, before) in enumerate(zip(paths, paths[5:] + paths[:5], strict=True)):
        places = np.outer(times, rng.uniform(-MAX_SPEED_PX, MAX_SPEED_PX, 2))
        moving = np.outer(times, rng.uniform(-MAX_SPEED_PX, MAX_SPEED_PX, 2))
        if number % 4 > 1:
            moving[:] = 0
        if number % 2:
            depth = np.stack([SIZE / 2 - columns + right for _, right in places])
        else:
            middle = SIZE / 2 + places
            depth = np.stack([np.hypot(rows - y, columns - x) - 0.28 * SIZE for y, x in middle])
        share = 1 / (1 + np.exp(3 * depth[..., None]))
        crop = np.s_[:, 60 : 60 + SIZE, 60 : 60 + SIZE]
        layers = [
            carried(half_size(read_rgb(path)), where)[crop]
            for path, where in ((behind, moving), (before, places))
        ]
        frames = (1 - share) * layers[0] + share * layers[1]
        yield f"{before.stem} before {behind.stem}", frames.astype(np.float32)


def photographs(data: Path, half: slice) -> list[Path]:
    """Return the files of half of the photographs."""
    return sorted((data / "test" / "kodak24").iterdir())[half]


def carried(photograph: F32, places: npt.NDArray[np.float64]) -> F32:
    """Return a photograph (h, w, 3) at each of these places, (B, 2): (B, h, w, 3)."""
    colours = [
        np.stack([displaced(colour, *place) for place in places])
        for colour in np.moveaxis(photograph, -1, 0)
    ]
    return np.stack(colours, axis=-1).clip(0, 1)


def series(data: Path, motion: str, size: int, half: slice) -> Iterator[tuple[str, F32]]:
    """Yield photographs in steady or unsteady motion, (24, size, size, 3)."""
    rng = np.random.default_rng(half.start)
    n_frames = SNAPSHOTS * N_FRAMES
    times = np.arange(n_frames) - (n_frames - 1) / 2
    for path in photographs(data, half):
        picture = read_rgb(path)
        photograph = half_size(picture) if size <= SIZE else picture.astype(np.float32) / 255
        velocity = rng.uniform(-MAX_SPEED_PX, MAX_SPEED_PX, 2)
        if motion == "belts":
            velocity[0] = 0
        places = np.outer(times, velocity)
        if motion == "shaking":
            places = rng.uniform(-MAX_STEP_PX, MAX_STEP_PX, places.shape).cumsum(0)
            places -= places.mean(0)
        frames = carried(photograph, places)
        top, left = ((length - size) // 2 for length in frames.shape[1:3])
        yield path.stem, frames[:, top : top + size, left : left + size]


def half_size(picture: npt.NDArray[np.uint8]) -> F32:
    """Return a picture of half the size, 0–1."""
    halved = cv2.resize(picture, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    return halved.astype(np.float32) / 255


def clips(folder: Path, n_frames: int, hue: F32, size: int = SIZE) -> Iterator[tuple[str, F32]]:
    """Yield the middle of each clip that is large and long enough, (B, size, size, 3)."""
    for path in sorted(folder.glob("*.mkv")):
        clip = read_clip(path, MAX_BYTES)
        if min(clip.shape[1:]) < size or len(clip) < n_frames:
            continue
        start = (len(clip) - n_frames) // 2
        frames = np.stack([middle(frame, size) for frame in clip[start : start + n_frames]])
        yield path.stem, frames[..., None].astype(np.float32) / 255 * hue


def middle(picture: npt.NDArray[T], size: int = SIZE) -> npt.NDArray[T]:
    """Return the middle of a picture, (h, w, …)."""
    top, left = ((length - size) // 2 for length in picture.shape[:2])
    return picture[top : top + size, left : left + size]


def films(data: Path, n_frames: int, parity: int) -> Iterator[tuple[str, F32]]:
    """Yield every other clip of the colour films, (B, SIZE, SIZE, 3)."""
    for path in sorted((data / "video").iterdir()):
        pictures = [middle(half_size(picture)) for picture in video_frames(path)]
        starts = range(0, len(pictures) - n_frames, max(n_frames, len(pictures) // CLIPS_OF_FILM))
        for start in starts[parity::2]:
            yield f"{path.stem}, {start}", np.stack(pictures[start : start + n_frames])


def masks(kind: str, n_frames: int, rng: np.random.Generator, size: int = SIZE) -> F32:
    """Return masks (B, size, size) of a kind."""
    if kind == "shifting":
        pattern = np.kron(rng.random((size, size)) < 0.5, np.ones((2, 2))).astype(np.float32)
        return np.stack([pattern[b : b + size, :size] for b in range(n_frames)])
    drawn = (rng.random((n_frames, size, size)) < 0.5).astype(np.float32)
    if kind == "binary":
        return drawn
    return np.stack([cv2.GaussianBlur(mask, (0, 0), 0.6) for mask in drawn])


def psnr_db(video: npt.NDArray[np.floating[Any]], scene: F32) -> float:
    """Return the PSNR."""
    return float(-10 * np.log10(((video - scene) ** 2).mean()))


def solves(
    scene: F32,
    calibration: Calibration,
    noise: float,
    rng: np.random.Generator,
    *,
    name: str = "auto",
    iterations: str = "",
) -> Iterator[tuple[float, float, float]]:
    """Yield the PSNR of each snapshot without a moving image in dB, the gain of one, and the time
    with it, relative to the time without.
    """
    phi = calibration.phi
    name = chosen_denoiser(name, CPU, None)
    settings = dataclasses.replace(default_settings(CPU, name), warm_start=True)
    if iterations:
        settings = dataclasses.replace(settings, iterations=int(iterations))
    engine = Engine(calibration, named_prior(name, CPU, None, Precision.FLOAT32), CPU, settings)
    guarded = GuardedSolver(engine)
    for seq, frames in enumerate(np.split(scene, len(scene) // len(phi))):
        noisy = (phi * frames).sum(0) + rng.normal(0, noise, frames.shape[1:])
        looks = engine.costs.looks = ImageLooks()
        pending = guarded.begin(calibration.snapshot("study", seq, noisy.astype(np.float32)))
        video, report = pending.finish()
        before, _ = pending.without_image(video, report)
        before_db = psnr_db(before, frames)
        took_s = report.solve_ns / 1e9
        ratio = took_s / (took_s - (looks.seconds or 0.0))
        yield before_db, psnr_db(video, frames) - before_db, ratio


def live(
    data: Path, camera: str = "grey", size: str = "128", name: str = "auto", iterations: str = ""
) -> None:
    """Print a line for each series, and one for each kind of motion."""
    bayer = BayerPhase.RGGB if camera == "mosaic" else None
    hue = np.ones(3, np.float32) if bayer is None else HUE
    # Every other photograph for reporting.
    half = slice(12, 24, 2)
    scenes = {kind: series(data, kind, int(size), half) for kind in ("pans", "belts", "shaking")}
    folder = data / "video_train" / "research"
    scenes["clips"] = clips(folder, SNAPSHOTS * N_FRAMES, hue, int(size))

    def warm(scene: F32, rng: np.random.Generator) -> list[tuple[float, float, float]]:
        calibration = Calibration(masks("binary", N_FRAMES, rng, int(size)), bayer=bayer)
        return list(solves(scene, calibration, 0.01, rng, name=name, iterations=iterations))[1:]

    report(scenes, bayer, warm)


def report(
    halves: Mapping[str, Iterable[tuple[str, F32]]],
    bayer: BayerPhase | None,
    solve: Callable[[F32, np.random.Generator], list[tuple[float, float, float]]],
) -> None:
    """Print the results of ``solve`` for each scene of each half, and their means."""
    for half, scenes in halves.items():
        results = []
        for seed, (name, colours) in enumerate(scenes):
            scene = colours @ GREY if bayer is None else sample_colours(colours, bayer)
            of_scene = solve(scene, np.random.default_rng(seed))
            results += of_scene
            before_db, gain_db, _ = np.mean(of_scene, axis=0)
            print(f"{half}: {name}: {before_db:.2f} + {gain_db:.2f} dB", flush=True)
        _, gains, ratios = np.transpose(results)
        print(
            f"{half}: mean {gains.mean():+.2f} dB, least {gains.min():+.2f}, "
            f"most {gains.max():+.2f}, {ratios.mean():.2f} of the time",
            flush=True,
        )


def main() -> None:
    """Print a line for each scene, and one for each half."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    data = Path(os.environ["SCI_STREAM_DATA"])
    if sys.argv[1:2] == ["live"]:
        live(data, *sys.argv[2:])
        return
    defaults = ("binary", "8", "0.01", "grey")
    kind, frames, noise, camera = (*sys.argv[1:], *defaults[len(sys.argv) - 1 :])
    bayer = BayerPhase.RGGB if camera == "mosaic" else None
    hue = np.ones(3, np.float32) if bayer is None else HUE
    n_frames = int(frames)
    halves = {
        "pans, tuning": pans(data, n_frames, slice(0, 12)),
        "pans, reporting": pans(data, n_frames, slice(12, 24)),
        "apart, tuning": apart(data, n_frames, slice(0, 12)),
        "apart, reporting": apart(data, n_frames, slice(12, 24)),
        "clips, tuning": clips(data / "video_train" / "free", n_frames, hue),
        "clips, reporting": clips(data / "video_train" / "research", n_frames, hue),
    }
    if bayer is not None:
        halves["films, tuning"] = films(data, n_frames, 0)
        halves["films, reporting"] = films(data, n_frames, 1)

    def cold(scene: F32, rng: np.random.Generator) -> list[tuple[float, float, float]]:
        calibration = Calibration(masks(kind, n_frames, rng), bayer=bayer)
        return list(solves(scene, calibration, float(noise), rng))

    report(halves, bayer, cold)


if __name__ == "__main__":
    main()
