"""The training data of networks that see neighbouring frames: what enters the pool when, and validation.

First noisy videos only: in solves with an untrained network, inputs are far from what they will be. Then, with the
network that has been learnt so far, mostly solves, since errors of a solve are not white noise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from sci_stream.optics.calibration import Calibration
from sci_stream.recon.denoisers.video_ffdnet import VideoFfdnetDenoiser
from sci_stream.recon.denoisers.weights import FfdnetWeights
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings
from sci_stream_lab.training.data import DRAWING_THREADS, Samples, drawn_ahead
from sci_stream_lab.training.evaluation import psnr_by_level
from sci_stream_lab.training.media import MediaSet
from sci_stream_lab.training.settings import TrainingSettings
from sci_stream_lab.training.video.clips import LEAST_FRAMES, Clip
from sci_stream_lab.training.video.entries import (
    CodedVideo,
    NoisyVideo,
    PoolEntry,
    draw_coded,
    draw_noisy,
    noisy_entry,
    solve_entries,
)
from sci_stream_lab.training.video.pool import EntryPool
from sci_stream_lab.training.video.scenes import Scenes, Video

_LOG = logging.getLogger(__name__)

# Steps for each new source, while videos are noisy and with solves, and the share of solves then. Chosen in the first
# trial, where making entries took a third of the time; not tuned.
_NOISY_EVERY, _SOLVES_EVERY, _SOLVE_SHARE = 4, 15, 5 / 8
# Sources that a training starts with, per entry of the pool: for a part of it, or for all of it where no steps with
# noisy videos come first. A trained network that began with a pool of 100 entries lost 0.3 dB for 4000 steps.
_FIRST_SHARE, _FIRST_SHARE_OF_SOLVES = 1 / 12, 1 / 4
# Make random numbers of sources and of batches independent of each other.
_SOURCES, _BATCHES = 1, 2

_VALIDATION_MOST_PX = 192
_VALIDATION_ITERATIONS = 8


class VideoData:
    """Patches of noisy videos and of iterates of the solver; see `sci_stream_lab.training.data.TrainingData`.

    Everything but the results of the network depends on the seed, the number of the source and the number of the step
    alone. The pool is kept in files next to the checkpoint, so that a resumed run gives the same weights as an
    uninterrupted one. Where they are missing, their entries are made again with the weights of the checkpoint: the same
    videos, but other iterates and weights of the errors, so that the run goes on well but not bit for bit the same.

    ``held_out`` of the clips only validate, but none of the photographs, which are set moving; ``run`` is the folder of
    the run.

    Raises
    ------
    ConfigError
        If too few clips are left to train on.
    """

    def __init__(
        self,
        clips: MediaSet,
        photographs: MediaSet,
        run: Path,
        settings: TrainingSettings,
        device: torch.device,
        *,
        held_out: int,
    ) -> None:
        training, validation = clips.split(held_out)
        self.id = f"{photographs.id}/{training.id}/{validation.id}"
        self.n_images = len(photographs.items)
        self.clips: Sequence[str] = training.names
        self._scenes = Scenes(training.items, photographs.items)
        self._held_out = [centre(clip) for clip in validation.items]
        self._settings = settings
        self._device = device
        self._pool = EntryPool(settings.pool, device, run / "pool")

    @contextmanager
    def batches(self, step: int, weights: Callable[[], FfdnetWeights]) -> Iterator[Iterator[Samples]]:
        """Yield the batches of all steps from this one on; see `sci_stream_lab.training.data.TrainingData`."""
        self._restore(step, weights)
        first, threads = self._pool.next_source, DRAWING_THREADS[self._device.type]
        with drawn_ahead(self._draw_source, first, threads) as sources:
            yield self._batches(step, sources, weights)

    def _batches(
        self, step: int, sources: Iterator[NoisyVideo | CodedVideo], weights: Callable[[], FfdnetWeights]
    ) -> Iterator[Samples]:
        settings = self._settings
        while True:
            while self._pool.next_source < n_sources(settings, step):
                self._pool.add(self._pool.next_source, self._entries(next(sources), weights()))
            rng = np.random.default_rng((settings.seed, step, _BATCHES))
            yield self._pool.draw(rng, settings.batch, settings.patch_px)
            step += 1

    def _restore(self, step: int, weights: Callable[[], FfdnetWeights]) -> None:
        made = n_sources(self._settings, step - 1) if step else 0
        missing = self._pool.restore(made, lambda n: self._entries(self._draw_source(n), weights()))
        if missing:
            _LOG.warning(
                "%d files of the pool are missing or damaged: their entries were made again with the current "
                "network, and the result will differ slightly from that of an uninterrupted run",
                missing,
            )

    def _draw_source(self, number: int) -> NoisyVideo | CodedVideo:
        settings = self._settings
        rng = np.random.default_rng((settings.seed, number, _SOURCES))
        noise_only = settings.noise_steps and number < n_sources(settings, settings.noise_steps - 1)
        if noise_only or rng.random() >= _SOLVE_SHARE:
            return draw_noisy(self._scenes, rng, settings.clip_px, settings.sigma_most)
        return draw_coded(self._scenes, rng, settings.clip_px)

    def _entries(self, drawn: NoisyVideo | CodedVideo, weights: FfdnetWeights) -> list[PoolEntry]:
        denoiser = VideoFfdnetDenoiser(weights, self._device)
        if isinstance(drawn, NoisyVideo):
            return [noisy_entry(drawn, denoiser, self._device)]
        return solve_entries(drawn, denoiser, self._device)

    def psnr_db(self, weights: FfdnetWeights) -> dict[str, float]:
        """Return the PSNR on held-out clips by noise level, and of a short cold solve behind binary masks."""
        denoiser = VideoFfdnetDenoiser(weights, self._device)
        solved = [_solve_psnr_db(video, denoiser, self._device) for video in self._held_out]
        return {**psnr_by_level(weights, self._held_out, self._device), "solve": sum(solved) / len(solved)}

    def save(self) -> None:
        """Write the pool; see `sci_stream_lab.training.data.TrainingData`."""
        self._pool.save()


def n_sources(settings: TrainingSettings, step: int) -> int:
    """Return how many sources have been made when the batch of a step is drawn; step −1: before the first."""
    noisy = min(step + 1, settings.noise_steps)
    share = _FIRST_SHARE if settings.noise_steps else _FIRST_SHARE_OF_SOLVES
    first = max(1, round(share * settings.pool))
    return first + -(-noisy // _NOISY_EVERY) + -(-(step + 1 - noisy) // _SOLVES_EVERY)


def centre(clip: Clip) -> Video:
    """Return the middle frames of a clip, cropped to their centre, 0–1."""
    height, width = (min(n, _VALIDATION_MOST_PX) // 2 * 2 for n in clip.shape[1:])
    first, top, left = (len(clip) - LEAST_FRAMES) // 2, (clip.shape[1] - height) // 2, (clip.shape[2] - width) // 2
    part = clip[first : first + LEAST_FRAMES, top : top + height, left : left + width]
    return np.asarray(part / np.float32(255), dtype=np.float32)


def _solve_psnr_db(video: Video, denoiser: VideoFfdnetDenoiser, device: torch.device) -> float:
    masks = np.random.default_rng(0).integers(0, 2, video.shape).astype(np.float32)
    settings = default_settings(device, "video-lite")
    engine = Engine(calibration := Calibration(phi=masks), denoiser, device, settings, cuda_graphs=False)
    snapshot = calibration.snapshot("validation", 0, (masks * video).sum(0), video)
    _, report = engine.reconstruct(snapshot, _VALIDATION_ITERATIONS)
    assert report.psnr_db is not None
    return report.psnr_db
