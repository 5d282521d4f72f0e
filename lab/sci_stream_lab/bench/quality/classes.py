"""``sci-stream bench classes``: solvers side by side behind masks of each class, with errors, and
on real captures.

For trained stages: one checkpoint has to serve all of it. Each snapshot is solved cold, with the
masks that a rig knows and without self-calibration, which `bench reality` measures.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import make_prior, suited
from sci_stream.errors import ConfigError
from sci_stream.files.calibration_import import ImportOptions, import_masks
from sci_stream.files.measurement_file import load_measurement
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.backend.device import describe_device, pick_device
from sci_stream.recon.engine import Engine
from sci_stream_lab.bench.datasets import psnr_of, published
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.bench.reality.false_texture import unsupported_texture
from sci_stream_lab.bench.reality.optics import PatternOptics, random_patterns, shifting_patterns
from sci_stream_lab.bench.reality.perturbations import NOISE, OPTICAL, parse_perturbation
from sci_stream_lab.bench.result import BenchResult, Progress, ResultColumn, ResultTable, mean
from sci_stream_lab.training.unrolled.masks import moving_masks
from sci_stream_lab.training.video.clips import CLIPS, Clip, read_clip
from sci_stream_lab.training.video.scenes import Video, sensed

# Blur of the masks behind which errors are measured, px, as of grey masks of a rig; frames of a
# snapshot.
_BLUR_PX, _FRAMES = 0.5, 8
# Read noise and electrons of low light.
_DIM = ((0.01, 0.011), (480.0, 500.0))
# Part of the brightness that a capture's 99.5th percentile is scaled to.
_WHITE, _QUANTILE = 0.9, 0.995
_MAX_CLIP_BYTES = 60_000_000


class Solver(NamedTuple):
    """A solver under its name in the tables."""

    name: str
    section: ReconstructSection


@dataclass(frozen=True, slots=True)
class ClassFigure:
    """Means of a solver over the snapshots of a class; ``gain_db`` over the first of the other
    solvers.

    ``texture``, of a capture: see `sci_stream_lab.bench.reality.false_texture.unsupported_texture`.
    """

    name: str
    solver: str
    snapshots: int
    cpu_seconds: float
    psnr_db: float | None = None
    gain_db: float | None = None
    texture: float | None = None


@dataclass(frozen=True)
class ClassesResult(BenchResult):
    """Figures of each solver in each class."""

    figures: tuple[ClassFigure, ...] = ()


_COLUMNS = (
    ResultColumn("name", "class", left=True),
    ResultColumn("solver", "solver", left=True),
    ResultColumn("snapshots", "snapshots"),
    ResultColumn("psnr_db", "PSNR dB", ".2f", "dB"),
    ResultColumn("gain_db", "gain dB", "+.2f", "dB"),
    ResultColumn("texture", "false texture", ".4f"),
    ResultColumn("cpu_seconds", "processor s", ".2f", "s"),
)


def solvers_of(weights: Path | None, against: Sequence[str]) -> list[Solver]:
    """Return the solver of the weights, or a rig's default, and those to compare with, as
    ``ffdnet-lite:12``.

    Raises
    ------
    ConfigError
        If a number of iterations is none.
    """
    solvers = [
        Solver(
            weights.stem if weights else "auto",
            ReconstructSection(weights=weights, warm_start=False),
        )
    ]
    for text in against:
        name, _, iterations = text.rpartition(":")
        if not iterations.isdecimal():
            raise ConfigError(
                "Invalid --against",
                expected="DENOISER:ITERATIONS, such as ffdnet-lite:12",
                got=text,
            )
        section = ReconstructSection(solver=name, iterations=int(iterations), warm_start=False)
        solvers.append(Solver(text, section))
    return solvers


def bench(
    solvers: Sequence[Solver],
    device_name: str,
    progress: Progress,
    *,
    data: Path | None = None,
    clips: Sequence[Path] = (),
    captures: Sequence[Path] = (),
    size: int = 128,
    only: Sequence[str] = (),
) -> ClassesResult:
    """Measure solvers; the first is compared with the second.

    Parameters
    ----------
    data
        Folder of published ``.mat`` files, of which all shots are solved.
    clips
        Videos, of whose middle frames the central square of ``size`` pixels is coded. None may have
        been trained on.
    captures
        Files with measured masks and snapshots without truth. Clips are coded with these masks too.
    only
        Beginnings of the classes to measure; all if there are none.
    """
    device = pick_device(device_name)
    figures: list[ClassFigure] = []
    for name, snapshots in _classes(data, clips, captures, size, progress):
        if only and not name.startswith(tuple(only)):
            continue
        cases, row = list(snapshots), []
        for solver in solvers:
            row.append(_measured(name, solver, cases, device))
            progress(
                ", ".join(f"{value}" for value in dataclasses.astuple(row[-1]) if value is not None)
            )
        if len(row) > 1 and row[0].psnr_db is not None and row[1].psnr_db is not None:
            row[0] = dataclasses.replace(row[0], gain_db=row[0].psnr_db - row[1].psnr_db)
        figures += row
    title = (
        f"{' against '.join(solver.name for solver in solvers)}, cold, on {describe_device(device)}"
    )
    return ClassesResult(
        name="classes",
        environment=environment(describe_device(device)),
        tables=(ResultTable(title, _COLUMNS, tuple(figures), dense=True),),
        settings={"size": size, "clips": " ".join(path.name for path in clips)},
        figures=tuple(figures),
    )


Case = tuple[Calibration, Snapshot]


def _measured(
    name: str, solver: Solver, cases: Sequence[Case], device: torch.device
) -> ClassFigure:
    prior, settings = make_prior(solver.section, device)
    quality, textures, cpu_s = [], [], 0.0
    for calibration, snapshot in cases:
        engine = Engine(calibration, prior, device, suited(solver.section, settings, calibration))
        began_s = time.process_time()
        video, report = engine.reconstruct(snapshot)
        cpu_s += time.process_time() - began_s
        if snapshot.truth is None:
            textures.append(unsupported_texture(torch.from_numpy(np.asarray(video, np.float32))))
        else:
            quality.append(psnr_of(report))
    texture, psnr_db = mean(textures) if textures else None, mean(quality) if quality else None
    return ClassFigure(name, solver.name, len(cases), cpu_s / len(cases), psnr_db, texture=texture)


def _classes(
    data: Path | None,
    clips: Sequence[Path],
    captures: Sequence[Path],
    size: int,
    progress: Progress,
) -> Iterator[tuple[str, Iterable[Case]]]:
    """Yield each class with its snapshots, which are made when they are needed."""
    for footage in [] if data is None else published(data, progress):
        yield (
            f"set {footage.name}",
            [(footage.calibration, snapshot) for snapshot in footage.snapshots],
        )
    scenes = [_centre(read_clip(path, _MAX_CLIP_BYTES), size) for path in clips]
    measured = [(path, import_masks(path, ImportOptions())) for path in captures]
    classes = {**_CODED, **_measured_masks(measured, size)} if scenes else {}
    for number, (name, coded) in enumerate(classes.items()):
        yield (
            name,
            (coded(np.random.default_rng((number, k)), scene) for k, scene in enumerate(scenes)),
        )
    for path, calibration in measured:
        yield f"capture {path.stem}", _captured(path, calibration)


def _centre(clip: Clip, size: int) -> Video:
    top, left = ((n - size) // 2 for n in clip.shape[1:])
    return np.asarray(clip[:, top : top + size, left : left + size], np.float32) / np.float32(255)


def _case(
    known: Video, true: Video, truth: Video, sensor: Callable[[Video], Video] = lambda y: y
) -> Case:
    """Return a snapshot of frames behind the true masks, with the calibration that a rig has."""
    top = np.float32(max(1.0, known.max()))
    calibration = Calibration(phi=known / top)
    y = np.asarray(sensor((true / top * truth).sum(0)), np.float32)
    return calibration, calibration.snapshot("classes", 0, y, truth)


def _middle(scene: Video, n_frames: int) -> Video:
    first = max(0, (len(scene) - n_frames) // 2)
    return np.ascontiguousarray(scene[first : first + n_frames])


Coded = Callable[[np.random.Generator, Video], Case]


def _exact(
    masks: Callable[[np.random.Generator, int, int], Video], n_frames: int, *, dim: bool = False
) -> Coded:
    """Return a class with masks that are known exactly; ``dim``: in low light."""

    def coded(rng: np.random.Generator, scene: Video) -> Case:
        truth = _middle(scene, n_frames)
        known = masks(rng, len(truth), truth.shape[1])
        return _case(known, known, truth, (lambda y: sensed(rng, y, *_DIM)) if dim else lambda y: y)

    return coded


def _wrong(perturbation: str) -> Coded:
    """Return a class whose masks have errors of a kind that the rig does not know."""

    def coded(rng: np.random.Generator, scene: Video) -> Case:
        truth = _middle(scene, _FRAMES)
        known = PatternOptics(random_patterns(len(truth), truth.shape[1:], rng), _BLUR_PX)
        true = parse_perturbation(perturbation).applied(known, int(rng.integers(2**31)))
        noisy = perturbation == NOISE
        return _case(
            known.masks(),
            true.masks(),
            truth,
            (lambda y: sensed(rng, y, *_DIM)) if noisy else lambda y: y,
        )

    return coded


def _open(share: float) -> Callable[[np.random.Generator, int, int], Video]:
    return lambda rng, n, size: (rng.random((n, size, size)) < share).astype(np.float32)


def _grey(rng: np.random.Generator, n: int, size: int) -> Video:
    return PatternOptics(random_patterns(n, (size, size), rng), _BLUR_PX).masks()


def _shifting(rng: np.random.Generator, n: int, size: int) -> Video:
    return PatternOptics(shifting_patterns(n, (size, size), rng), _BLUR_PX).masks()


_CODED: dict[str, Coded] = {
    "random 8": _exact(_open(0.5), 8),
    "random 16": _exact(_open(0.5), 16),
    "random 24": _exact(_open(0.5), 24),
    "open 30 %": _exact(_open(0.3), _FRAMES),
    "grey 0.5 px": _exact(_grey, _FRAMES),
    "shifting": _exact(_shifting, _FRAMES),
    "moving": _exact(lambda rng, n, size: moving_masks(rng, n, size)(0.0), _FRAMES),
    "low light": _exact(_grey, _FRAMES, dim=True),
    **{f"wrong {kind}": _wrong(kind) for kind in OPTICAL},
}


def _measured_masks(measured: Sequence[tuple[Path, Calibration]], size: int) -> dict[str, Coded]:
    classes = {}
    for path, calibration in measured:
        top, left = ((n - size) // 2 for n in calibration.shape)
        known = np.ascontiguousarray(calibration.phi[:, top : top + size, left : left + size])
        classes[f"measured {path.stem}"] = _exact(partial(_first, known), len(known))
    return classes


def _first(masks: Video, _rng: np.random.Generator, n: int, _size: int) -> Video:
    return masks[:n]


def _captured(path: Path, calibration: Calibration) -> Iterator[Case]:
    """Yield the snapshots of a capture, scaled so that it fills 0–1."""
    for y in load_measurement(path).y:
        counts = np.asarray(y, np.float32)
        white = (
            float(np.quantile(counts / np.maximum(calibration.phi.sum(0), 0.5), _QUANTILE)) / _WHITE
        )
        scaled = dataclasses.replace(calibration, full_scale_dn=white)
        yield scaled, scaled.snapshot("capture", 0, counts)


def chosen_clips(folder: Path, names: Sequence[str], count: int) -> list[Path]:
    """Return the clips of these names, or so many at equal distances of the sorted ones.

    Raises
    ------
    ConfigError
        If there are none.
    """
    paths = CLIPS.paths(folder)
    if names:
        paths = [path for path in paths if path.stem in names]
        count = len(names)
    if not paths or len(paths) < len(names):
        raise ConfigError(
            f"{folder} lacks clips",
            expected=", ".join(names) or "videos",
            got=f"{len(paths)} of them",
        )
    return [
        paths[n] for n in np.linspace(0, len(paths) - 1, min(count, len(paths))).round().astype(int)
    ]
