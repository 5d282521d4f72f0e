"""Reconstruction of colour scenes with true RGB: panning photographs, clips and simulated
scenes.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import torch

from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import make_prior
from sci_stream.files.media import video_frames
from sci_stream.imaging.demosaic import demosaic_values
from sci_stream.model import BayerPhase
from sci_stream.optics.bayer import colour_sites, sample_colours
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import LocalDenoiser, Solver
from sci_stream.recon.algorithms.noise_level import Sigma
from sci_stream.recon.algorithms.unrolled import UnrolledSolver
from sci_stream.recon.backend.device import pick_device
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import SolverSettings
from sci_stream_lab.bench.datasets import Footage, filmed_scene, truth_of
from sci_stream_lab.bench.quality.colour_difference import delta_e_2000, lab
from sci_stream_lab.bench.reality.scenes import DATA_VARIABLE
from sci_stream_lab.bench.result import Progress, ResultColumn, mean
from sci_stream_lab.training.images import Image, read_rgb

F32 = npt.NDArray[np.float32]

SCENES = ("fast", "fan", "balloon")
"""Simulated scenes that are measured."""
PANS = ((1.5, 0.7), (0.6, -0.4), (3.0, 0.0), (0.0, 1.2), (2.2, 1.1))
"""Speeds, (x, y) in pixels per frame, of panning photographs in turn."""

_PAN_PX = 192
# Part of a photograph at either end that pans into view.
_MARGIN_PX = 20
# Scenes of all kinds take about as long as demosaicing of the 24 photographs of Kodak.
_MAX_PANS = 4
LEAST_PX = _PAN_PX + 2 * _MARGIN_PX
"""Least height and width of a photograph that pans."""
_FRAMES = 8
_SNAPSHOTS = 3
# Of full scale, as of a machine-vision camera in good light.
_NOISE = 0.005
_RIM_PX = 4
# Part of the pixels, those with the steepest lightness, that count as edges.
_EDGES_SHARE = 0.1
_STARTS = (("cold", False, 12), ("warm", True, 4), ("warm", True, 12))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ColourFootage:
    """Consecutive snapshots of a colour camera, and their true colours, (B, H, W, 3) each.

    ``linear``: the colours are linear light, and not levels of a display.
    """

    footage: Footage
    colours: tuple[F32, ...]
    linear: bool


@dataclasses.dataclass(frozen=True, slots=True)
class MosaicQuality:
    """Quality of one scene: means over its snapshots, and the snapshot of the lowest PSNR.

    ``planes_db`` is the PSNR of the mosaics, ``rgb_db`` that of their colours, ``apart_db`` and
    ``rgb_apart_db`` the same with planes denoised apart; ``delta_e`` the mean CIEDE2000 of pixels;
    ``false_colour`` the mean error of a* and b* at edges.
    """

    scene: str
    start: str
    planes_db: float
    apart_db: float
    worst_db: float
    worst_apart_db: float
    rgb_db: float
    rgb_apart_db: float
    delta_e: float
    delta_e_apart: float
    false_colour: float
    false_colour_apart: float


_SCENE_COLUMNS = (
    ResultColumn("scene", "scene", left=True),
    ResultColumn("start", "solve", left=True),
)
PSNR_COLUMNS = (
    *_SCENE_COLUMNS,
    ResultColumn("apart_db", "apart", ".2f", "dB"),
    ResultColumn("planes_db", "mosaics", ".2f", "dB"),
    ResultColumn("worst_apart_db", "worst apart", ".2f", "dB"),
    ResultColumn("worst_db", "worst", ".2f", "dB"),
    ResultColumn("rgb_apart_db", "RGB apart", ".2f", "dB"),
    ResultColumn("rgb_db", "RGB", ".2f", "dB"),
)
COLOUR_COLUMNS = (
    *_SCENE_COLUMNS,
    ResultColumn("delta_e_apart", "ΔE apart", ".2f"),
    ResultColumn("delta_e", "ΔE", ".2f"),
    ResultColumn("false_colour_apart", "false colour apart", ".2f"),
    ResultColumn("false_colour", "false colour", ".2f"),
)


def pans(photographs: Sequence[Path]) -> Iterator[ColourFootage]:
    """Yield some of the photographs, which must be of `LEAST_PX`, as they pan behind masks."""
    stride = max(1, math.ceil(len(photographs) / _MAX_PANS))
    for number, path in enumerate(photographs[::stride]):
        speed = PANS[number % len(PANS)]
        yield pan(path.stem, read_rgb(path), speed, snapshots=_SNAPSHOTS, seed=number)


def pan(
    name: str, photograph: Image, speed: tuple[float, float], snapshots: int, seed: int
) -> ColourFootage:
    """Return snapshots of a photograph that moves by ``speed``, (x, y) in pixels, per frame."""
    picture = photograph.astype(np.float32) / 255
    frames = []
    for time in range(snapshots * _FRAMES):
        x, y = (-_MARGIN_PX - speed_px * time for speed_px in speed)
        moved = np.array([[1, 0, x], [0, 1, y]], np.float32)
        frames.append(cv2.warpAffine(picture, moved, (_PAN_PX, _PAN_PX), flags=cv2.INTER_CUBIC))
    return _behind_masks(name, np.asarray(np.stack(frames), np.float32).clip(0, 1), seed)


def clips() -> Iterator[ColourFootage]:
    """Yield the beginnings of the clips below the folder that ``SCI_STREAM_DATA`` names, if any."""
    folder = Path(os.environ.get(DATA_VARIABLE) or os.devnull, "video")
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    for number, path in enumerate(paths):
        pictures = itertools.islice(video_frames(path), _SNAPSHOTS * _FRAMES)
        yield _behind_masks(path.stem, np.stack([_middle(picture) for picture in pictures]), number)


def _middle(picture: Image) -> F32:
    """Return the middle square of 8-bit BGR as (H, W, 3) RGB, 0–1."""
    edge = min(picture.shape[:2])
    top, left = ((n - edge) // 2 for n in picture.shape[:2])
    square = picture[top : top + edge, left : left + edge, ::-1].astype(np.float32) / 255
    return np.asarray(
        cv2.resize(square, (_PAN_PX, _PAN_PX), interpolation=cv2.INTER_AREA), np.float32
    )


def _behind_masks(name: str, frames: F32, seed: int) -> ColourFootage:
    """Return the snapshots that random binary masks make of frames, (S·B, H, W, 3)."""
    rng = np.random.default_rng(seed)
    size = frames.shape[1:3]
    phi = (rng.random((_FRAMES, *size)) < 0.5).astype(np.float32)
    calibration = Calibration(phi=phi, bayer=BayerPhase.RGGB, full_scale_dn=1.0)
    taken = []
    colours: list[F32] = []
    for seq, rgb in enumerate(np.split(frames, len(frames) // _FRAMES)):
        truth = sample_colours(rgb, BayerPhase.RGGB)
        counts = (phi * truth).sum(0) + _NOISE * rng.standard_normal(size)
        taken.append(calibration.snapshot("bench", seq, counts.astype(np.float32), truth))
        colours.append(rgb)
    return ColourFootage(Footage(name, calibration, tuple(taken)), tuple(colours), linear=False)


def simulated(scene: str, *, snapshots: int = _SNAPSHOTS, size_px: int = _PAN_PX) -> ColourFootage:
    """Return snapshots of a scene of the simulated camera."""
    size = {"height_px": size_px, "width_px": size_px}
    by_phase = {
        phase: filmed_scene(scene, snapshots=snapshots, n_frames=_FRAMES, bayer=phase, **size)
        for phase in BayerPhase
    }
    colours = []
    for seq in range(snapshots):
        truth = {phase: truth_of(footage.snapshots[seq]) for phase, footage in by_phase.items()}
        colours.append(_merged(truth))
    return ColourFootage(by_phase[BayerPhase.RGGB], tuple(colours), linear=True)


def _merged(mosaics: dict[BayerPhase, F32]) -> F32:
    """Return the colours, (B, H, W, 3), that mosaics of all four phases have been sampled from."""
    rgb = np.empty((*mosaics[BayerPhase.RGGB].shape, 3), np.float32)
    for phase, mosaic in mosaics.items():
        for colour, (rows, columns) in colour_sites(phase):
            rgb[:, rows, columns, "RGB".index(colour)] = mosaic[:, rows, columns]
    return rgb


class PlanesApart:
    """A denoiser that is called with each plane of a mosaic as a grey video."""

    takes_relative = True

    def __init__(self, denoiser: LocalDenoiser) -> None:
        self.name = denoiser.name
        self._denoiser = denoiser

    def __call__(
        self, x: torch.Tensor, sigma: Sigma, relative: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Denoise, see `sci_stream.ports.LocalDenoiser`."""
        return self._denoiser(x, sigma, relative)


def apart(prior: Solver) -> Solver:
    """Return a prior that denoises the planes of a mosaic apart."""
    denoiser = prior.before if isinstance(prior, UnrolledSolver) else prior
    if not isinstance(denoiser, LocalDenoiser):
        return prior
    plain = PlanesApart(denoiser)
    if not isinstance(prior, UnrolledSolver):
        return plain
    stages = copy.copy(prior)
    stages.before = plain
    return stages


@dataclasses.dataclass(frozen=True, slots=True)
class Quality:
    """PSNR of planes and of colours by snapshot, the mean ΔE of pixels, and false colour."""

    planes_db: list[float]
    rgb_db: list[float]
    delta_e: float
    false_colour: float


def measure(
    scene: ColourFootage, prior: Solver, settings: SolverSettings, device: torch.device
) -> Quality:
    """Reconstruct the snapshots of a scene in their order; warm solves leave out the first one."""
    footage = scene.footage
    bayer = footage.calibration.bayer
    assert bayer is not None
    engine = Engine(footage.calibration, prior, device, settings)
    planes_db, rgb_db, differences = [], [], []
    for snapshot, colours in zip(footage.snapshots, scene.colours, strict=True):
        video = np.asarray(engine.reconstruct(snapshot)[0], np.float32)
        planes_db.append(_psnr_db(video - truth_of(snapshot)))
        rgb = demosaic_values(video, bayer)
        inner = np.s_[:, _RIM_PX:-_RIM_PX, _RIM_PX:-_RIM_PX]
        rgb_db.append(_psnr_db(rgb[inner] - colours[inner]))
        differences.append(_differences(rgb[inner], colours[inner], linear=scene.linear))
    first = int(settings.warm_start)
    delta_e, false_colour = np.mean(differences[first:], axis=0)
    return Quality(planes_db[first:], rgb_db[first:], float(delta_e), float(false_colour))


def _psnr_db(error: F32) -> float:
    """Return the mean PSNR of frames, dB."""
    axes = tuple(range(1, error.ndim))
    return float(-10 * np.log10(np.maximum(np.square(error).mean(axes), 1e-12)).mean())


def _differences(rgb: F32, colours: F32, *, linear: bool) -> tuple[float, float]:
    """Return the mean CIEDE2000 of every third pixel of the middle frame, and its false colour."""
    middle = len(rgb) // 2
    levels = []
    for image in (rgb[middle].clip(0, 1), colours[middle].clip(0, 1)):
        encoded = 1.055 * image ** (1 / 2.4) - 0.055
        shown = np.where(image <= 0.0031308, 12.92 * image, encoded) if linear else image
        levels.append(lab(255 * shown))
    shown, true = levels
    steepness = np.hypot(*np.gradient(true[..., 0]))
    edges = steepness >= np.quantile(steepness, 1 - _EDGES_SHARE)
    false_colour = np.hypot(*np.moveaxis(shown - true, -1, 0)[1:])[edges].mean()
    return float(delta_e_2000(shown[::3, ::3], true[::3, ::3]).mean()), float(false_colour)


def bench(
    photographs: Sequence[Path],
    scenes: Sequence[str],
    section: ReconstructSection,
    device: str,
    progress: Progress,
) -> Iterator[MosaicQuality]:
    """Yield the quality of scenes with either start, beside that of planes apart.

    The means of the photographs, of the clips and of the simulated scenes follow them.
    """
    on = pick_device(device)
    prior, settings = make_prior(section, on)
    kinds = {
        "photographs": pans(photographs),
        "clips": clips(),
        "simulated": map(simulated, scenes),
    }
    for kind, footage in kinds.items():
        rows: list[MosaicQuality] = []
        for scene in footage:
            for start, warm, iterations in _STARTS:
                solver = dataclasses.replace(
                    settings, warm_start=warm, iterations=iterations, min_iterations=4
                )
                row = _row(
                    scene,
                    f"{start}, {iterations}",
                    measure(scene, prior, solver, on),
                    measure(scene, apart(prior), solver, on),
                )
                rows.append(row)
                yield row
            progress(scene.footage.name)
        yield from mean_rows(f"mean of {kind}", rows)


def mean_rows(name: str, rows: Sequence[MosaicQuality]) -> Iterator[MosaicQuality]:
    """Yield the means of rows with equal starts; the worst snapshot is that of all."""
    by_start: dict[str, list[MosaicQuality]] = {}
    for row in rows:
        by_start.setdefault(row.start, []).append(row)
    figures = [field.name for field in dataclasses.fields(MosaicQuality)][2:]
    for start, alike in by_start.items():
        values = {
            figure: (min if figure.startswith("worst") else mean)(
                [getattr(row, figure) for row in alike]
            )
            for figure in figures
        }
        yield MosaicQuality(name, start, **values)


def _row(scene: ColourFootage, start: str, together: Quality, plain: Quality) -> MosaicQuality:
    return MosaicQuality(
        scene.footage.name,
        start,
        planes_db=mean(together.planes_db),
        apart_db=mean(plain.planes_db),
        worst_db=min(together.planes_db),
        worst_apart_db=min(plain.planes_db),
        rgb_db=mean(together.rgb_db),
        rgb_apart_db=mean(plain.rgb_db),
        delta_e=together.delta_e,
        delta_e_apart=plain.delta_e,
        false_colour=together.false_colour,
        false_colour_apart=plain.false_colour,
    )
