"""The training data of solves: batches of coded scenes, and validation on held-out clips."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic

import numpy as np
import torch

from sci_stream.recon.algorithms.unrolled import Coded, estimates
from sci_stream.recon.backend.device import computes_bfloat16
from sci_stream.recon.denoisers.weights import Stage
from sci_stream_lab.training.data import DRAWING_THREADS, SamplesT, drawn_ahead
from sci_stream_lab.training.media import MediaSet
from sci_stream_lab.training.settings import TrainingSettings
from sci_stream_lab.training.unrolled.masks import moving_masks
from sci_stream_lab.training.unrolled.samples import CodedSamples, cut, draw_n_frames, draw_sample, started
from sci_stream_lab.training.video.data import centre
from sci_stream_lab.training.video.scenes import Scenes, Video


class CodedScenes(ABC, Generic[SamplesT]):
    """Scenes behind masks; see `sci_stream_lab.training.data.TrainingData`.

    A batch depends on the seed and on the number of its step alone. Its snapshots have as many frames each, and
    ``settings.batch`` frames together.

    ``held_out`` of the clips only validate; ``measured`` are stacks of measured masks, which are cut from.

    Raises
    ------
    ConfigError
        If too few clips are left to train on.
    """

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
        masks = hashlib.blake2b(b"".join(stack.tobytes() for stack in measured), digest_size=8).hexdigest()
        self.id = f"{photographs.id}/{training.id}/{validation.id}/{masks}"
        self.n_images = len(photographs.items)
        self.clips: Sequence[str] = training.names
        self._scenes = Scenes(training.items, photographs.items)
        self._measured, self._settings, self._device = measured, settings, device
        self._held_out = [centre(clip) for clip in validation.items]

    @contextmanager
    def batches(self, step: int, _weights: Callable[[], object]) -> Iterator[Iterator[SamplesT]]:
        """Yield the batches of all steps from this one on; see `sci_stream_lab.training.data.TrainingData`."""
        with drawn_ahead(self._batch, step, DRAWING_THREADS[self._device.type]) as batches:
            yield (self._on_device(batch) for batch in batches)

    def _batch(self, step: int) -> SamplesT:
        rng = np.random.default_rng((self._settings.seed, step))
        n_frames = draw_n_frames(rng)
        return self._draw(rng, max(1, round(self._settings.batch / n_frames)), n_frames)

    @abstractmethod
    def _draw(self, rng: np.random.Generator, number: int, n_frames: int) -> SamplesT:
        """Draw snapshots of as many frames each."""

    def _on_device(self, batch: SamplesT) -> SamplesT:
        return batch

    def save(self) -> None:
        """Nothing: batches are drawn again; see `sci_stream_lab.training.data.TrainingData`."""

    def _validation(self) -> Iterator[tuple[str, Video, Video]]:
        """Yield kinds of masks, the held-out scenes and masks of that kind, (B, H, W)."""
        for number, (kind, masks_of) in enumerate(_VALIDATION.items()):
            for video in self._held_out:
                size = min(video.shape[1:])
                truth = np.ascontiguousarray(video[:, :size, :size])
                yield kind, truth, masks_of(np.random.default_rng(number), len(truth), size)


class UnrolledData(CodedScenes[CodedSamples]):
    """Squares of ``settings.patch_px`` are cut out of scenes of ``settings.clip_px``.

    So noise and start are those of a larger image.
    """

    def _draw(self, rng: np.random.Generator, number: int, n_frames: int) -> CodedSamples:
        settings = self._settings
        samples = [draw_sample(rng, self._scenes, n_frames, settings.clip_px, self._measured) for _ in range(number)]
        return cut(rng, samples, settings.patch_px)

    def _on_device(self, batch: CodedSamples) -> CodedSamples:
        return _on(batch, self._device)

    def psnr_db(self, weights: list[Stage]) -> dict[str, float]:
        """Return the mean PSNR behind masks of each class on held-out clips."""
        dtype = torch.bfloat16 if computes_bfloat16(self._device) else torch.float32
        stages = [
            Stage(
                [k.to(self._device) for k in s.kernels], [b.to(self._device) for b in s.biases], s.step.to(self._device)
            )
            for s in weights
        ]
        found: dict[str, list[torch.Tensor]] = {}
        with torch.inference_mode():
            for kind, truth, masks in self._validation():
                coded = started(np.asarray((masks * truth).sum(0), np.float32), masks)
                s = _on(CodedSamples(coded, torch.from_numpy(truth).unsqueeze(0)), self._device)
                mse = ([*estimates(s.coded, stages, dtype)][-1] - s.truth).square().mean((-2, -1))
                found.setdefault(kind, []).append(-10 * mse.log10().mean())
        return {kind: float(torch.stack(values).mean()) for kind, values in found.items()}


def _binary(rng: np.random.Generator, n_frames: int, size: int, opened: float = 0.5) -> Video:
    return (rng.random((n_frames, size, size)) < opened).astype(np.float32)


_VALIDATION: dict[str, Callable[[np.random.Generator, int, int], Video]] = {
    "binary": _binary,
    "open 30 %": lambda rng, n, size: _binary(rng, n, size, 0.3),
    "moving": lambda rng, n, size: moving_masks(rng, n, size)(0.0),
}


def _on(samples: CodedSamples, device: torch.device) -> CodedSamples:
    return CodedSamples(Coded(*(field.to(device) for field in samples.coded)), samples.truth.to(device))
