"""The training data of solves: batches of coded scenes, and validation on held-out clips."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Solver
from sci_stream.recon.algorithms.unrolled import UnrolledSolver
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.denoisers.weights import Stage
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import SolverSettings, default_settings
from sci_stream_lab.training.data import DRAWING_THREADS, SamplesT, drawn_ahead
from sci_stream_lab.training.media import MediaSet
from sci_stream_lab.training.mosaics import PHASE
from sci_stream_lab.training.settings import TrainingSettings
from sci_stream_lab.training.unrolled.masks import moving_masks
from sci_stream_lab.training.unrolled.samples import (
    SHORT,
    SHORT_SHARE,
    WARM_SHARE,
    CodedSamples,
    StartOf,
    Teacher,
    cut,
    draw_n_frames,
    draw_solve,
    finish_iterations,
    solved_past,
)
from sci_stream_lab.training.video.clips import LEAST_FRAMES
from sci_stream_lab.training.video.scenes import MosaicScenes, Scenes, Video, centre

# The teacher's denoiser and iterations.
_TAUGHT_BY, _TAUGHT_ITERATIONS = "ffdnet", 40
DrawnT = TypeVar("DrawnT")
# Distinguishes the seeds of batches from those of the snapshots they are cut from.
_BATCHES = 1
# The denoiser of the iterations before the stages, their numbers, how likely these are, and the
# number in validations.
# Chosen, not tuned.
_BEFORE, _ITERATIONS, _LIKELY, _VALIDATED = (
    "ffdnet-lite",
    (4, 8, 12, 20),
    (0.15, 0.2, 0.55, 0.1),
    12,
)


# Of mosaics: number of photographs, and of scenes from them, that validate, and their size.
_UNSEEN, _UNSEEN_PX = 8, 128


class CodedScenes(ABC, Generic[DrawnT, SamplesT]):
    """Scenes behind masks; see `sci_stream_lab.training.data.TrainingData`.

    A batch depends on the seed and on the number of its step alone. Its snapshots have as many
    frames each, and ``settings.batch`` frames together.

    ``steps_per_draw`` steps learn from the same snapshots.

    ``held_out`` of the clips only validate; ``measured`` are stacks of measured masks, which are
    cut from.

    Raises
    ------
    ConfigError
        If too few clips are left to train on.
    """

    steps_per_draw = 1

    def __init__(
        self,
        clips: MediaSet,
        photographs: MediaSet,
        measured: Sequence[Video],
        settings: TrainingSettings,
        device: torch.device,
        *,
        held_out: int,
    ) -> None:
        training, validation = clips.split(held_out)
        masks = hashlib.blake2b(
            b"".join(stack.tobytes() for stack in measured), digest_size=8
        ).hexdigest()
        self.id = f"{photographs.id}/{training.id}/{validation.id}/{masks}"
        self.clips: Sequence[str] = training.names
        self._bayer = PHASE if settings.is_mosaic else None
        if settings.is_mosaic:
            # Clips have no colours: photographs validate in their place.
            photographs, unseen = photographs.split(_UNSEEN)
            self._scenes: Scenes = MosaicScenes(training.items, photographs.items)
            self._held_out = _moving_mosaics(unseen)
        else:
            self._scenes = Scenes(training.items, photographs.items)
            self._held_out = [centre(clip) for clip in validation.items]
        self.n_images = len(photographs.items)
        self._measured, self._settings, self._device = measured, settings, device

    @contextmanager
    def batches(self, step: int) -> Iterator[Iterator[SamplesT]]:
        """Yield the batches of all steps from this one on; see
        `sci_stream_lab.training.data.TrainingData`.
        """
        with drawn_ahead(
            self._drawn, step // self.steps_per_draw, DRAWING_THREADS[self._device.type]
        ) as drawn:
            yield self._in_order(drawn, step)

    def _drawn(self, number: int) -> DrawnT:
        rng = np.random.default_rng((self._settings.seed, number))
        n_frames = draw_n_frames(rng)
        return self._draw(rng, max(1, round(self._settings.batch / n_frames)), n_frames)

    def _in_order(self, drawn: Iterator[DrawnT], first: int) -> Iterator[SamplesT]:
        """Yield the batch of each step from this one on."""
        snapshots = next(drawn)
        for step in itertools.count(first):
            if step > first and step % self.steps_per_draw == 0:
                snapshots = next(drawn)
            yield self._batch(
                np.random.default_rng((self._settings.seed, step, _BATCHES)), snapshots
            )

    @abstractmethod
    def _draw(self, rng: np.random.Generator, number: int, n_frames: int) -> DrawnT:
        """Draw snapshots of as many frames each."""

    @abstractmethod
    def _batch(self, rng: np.random.Generator, drawn: DrawnT) -> SamplesT:
        """Return the samples of a step, all of the snapshots or parts of them."""

    def _psnr_db(self, prior: Solver, settings: SolverSettings) -> dict[str, float]:
        """Return the mean PSNR behind masks of each class on held-out clips."""
        found: dict[str, list[float]] = {}
        for kind, truth, masks in self._validation():
            calibration = Calibration(phi=masks, bayer=self._bayer)
            engine = Engine(calibration, prior, self._device, settings)
            y = np.asarray((masks * truth).sum(0), np.float32)
            video: Video = engine.reconstruct(calibration.snapshot("validation", 0, y))[0]
            found.setdefault(kind, []).append(
                float(-10 * np.log10(np.square(video - truth).mean((1, 2))).mean())
            )
        return {kind: float(np.mean(values)) for kind, values in found.items()}

    def _validation(self) -> Iterator[tuple[str, Video, Video]]:
        """Yield kinds of masks, the held-out scenes and masks of that kind, (B, H, W)."""
        for number, (kind, masks_of) in enumerate(_VALIDATION.items()):
            for video in self._held_out:
                size = min(video.shape[1:])
                truth = np.ascontiguousarray(video[:, :size, :size])
                yield kind, truth, masks_of(np.random.default_rng(number), len(truth), size)


class UnrolledData(CodedScenes[list[CodedSamples], CodedSamples]):
    """Squares of ``settings.patch_px``, cut out of scenes of ``settings.clip_px`` after iterations
    with a denoiser.
    """

    steps_per_draw = 4

    def __init__(self, *args: Any, held_out: int) -> None:
        super().__init__(*args, held_out=held_out)
        self._before = make_denoiser(_BEFORE, self._device, precision=Precision.AUTO)
        self._teacher = Teacher(
            make_denoiser(_TAUGHT_BY, self._device, precision=Precision.AUTO),
            _TAUGHT_ITERATIONS,
            self._device,
        )
        self._solver = dataclasses.replace(
            default_settings(self._device, "unrolled"), warm_start=True
        )

    def _draw(self, rng: np.random.Generator, number: int, n_frames: int) -> list[CodedSamples]:
        start_of, size = StartOf(self._before, self._solver, self._device), self._settings.clip_px
        short = rng.random() < SHORT_SHARE
        draw = partial(
            draw_solve,
            *(rng, self._scenes, self._measured, start_of),
            n_frames=n_frames,
            size=size,
            warm_share=1.0 if short else WARM_SHARE,
            past_of=solved_past,
        )
        solves = (draw() for _ in range(number))
        if short:
            iterations = [int(rng.choice(SHORT)) for _ in range(number)]
        else:
            iterations = [int(rng.choice(_ITERATIONS, p=_LIKELY)) for _ in range(number)]
        # The teacher begins cold, which is worse than a warm start.
        taught = not short and rng.random() < self._settings.taught_share
        teacher = self._teacher if taught else None
        return [
            finish_iterations(solve, n, teacher)
            for solve, n in zip(solves, iterations, strict=True)
        ]

    def _batch(self, rng: np.random.Generator, drawn: list[CodedSamples]) -> CodedSamples:
        return cut(rng, drawn, self._settings.patch_px)

    def psnr_db(self, weights: list[Stage]) -> dict[str, float]:
        """Return the mean PSNR behind masks of each class on held-out clips."""
        solver = UnrolledSolver(self._before, weights, self._device, Precision.AUTO)
        return self._psnr_db(
            solver, dataclasses.replace(self._solver, iterations=_VALIDATED + len(weights))
        )


def _moving_mosaics(photographs: MediaSet) -> list[Video]:
    scenes = MosaicScenes((), photographs.items)
    return [
        scenes.draw(np.random.default_rng(number), LEAST_FRAMES, _UNSEEN_PX)
        for number in range(_UNSEEN)
    ]


def _binary(rng: np.random.Generator, n_frames: int, size: int, opened: float = 0.5) -> Video:
    return (rng.random((n_frames, size, size)) < opened).astype(np.float32)


_VALIDATION: dict[str, Callable[[np.random.Generator, int, int], Video]] = {
    "binary": _binary,
    "open 30 %": lambda rng, n, size: _binary(rng, n, size, 0.3),
    "moving": lambda rng, n, size: moving_masks(rng, n, size)(0.0),
}
