"""The training data of an unrolled network: batches of coded scenes, and validation on held-out clips."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from sci_stream.recon.algorithms.unrolled import Coded, estimates
from sci_stream.recon.backend.device import computes_bfloat16
from sci_stream.recon.denoisers.weights import Stage
from sci_stream_lab.training.data import DRAWING_THREADS, drawn_ahead
from sci_stream_lab.training.media import MediaSet
from sci_stream_lab.training.settings import TrainingSettings
from sci_stream_lab.training.unrolled.masks import moving_masks
from sci_stream_lab.training.unrolled.samples import CodedSamples, cut, draw_n_frames, draw_sample, started
from sci_stream_lab.training.video.data import centre
from sci_stream_lab.training.video.scenes import Scenes, Video


class UnrolledData:
    """Coded scenes; see `sci_stream_lab.training.data.TrainingData`.

    A batch depends on the seed and on the number of its step alone. Its snapshots have as many frames each, and
    ``settings.batch`` frames together. Squares of ``settings.patch_px`` are cut out of scenes of ``settings.clip_px``,
    so that noise and start are those of a larger image.

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
        self._held_out = {
            kind: [_coded(kind, masks_of, centre(clip)) for clip in validation.items]
            for kind, masks_of in _VALIDATION.items()
        }

    @contextmanager
    def batches(self, step: int, _weights: Callable[[], list[Stage]]) -> Iterator[Iterator[CodedSamples]]:
        """Yield the batches of all steps from this one on; see `sci_stream_lab.training.data.TrainingData`."""
        with drawn_ahead(self._batch, step, DRAWING_THREADS[self._device.type]) as batches:
            yield (_on(batch, self._device) for batch in batches)

    def _batch(self, step: int) -> CodedSamples:
        settings = self._settings
        rng = np.random.default_rng((settings.seed, step))
        n_frames = draw_n_frames(rng)
        n = max(1, round(settings.batch / n_frames))
        samples = [draw_sample(rng, self._scenes, n_frames, settings.clip_px, self._measured) for _ in range(n)]
        return cut(rng, samples, settings.patch_px)

    def psnr_db(self, weights: list[Stage]) -> dict[str, float]:
        """Return the mean PSNR behind masks of each class on held-out clips."""
        dtype = torch.bfloat16 if computes_bfloat16(self._device) else torch.float32
        stages = [
            Stage(
                [k.to(self._device) for k in s.kernels], [b.to(self._device) for b in s.biases], s.step.to(self._device)
            )
            for s in weights
        ]
        found = {}
        with torch.inference_mode():
            for kind, items in self._held_out.items():
                each = [
                    -10 * ([*estimates(s.coded, stages, dtype)][-1] - s.truth).square().mean((-2, -1)).log10().mean()
                    for s in (_on(item, self._device) for item in items)
                ]
                found[kind] = float(torch.stack(each).mean())
        return found

    def save(self) -> None:
        """Nothing: batches are drawn again; see `sci_stream_lab.training.data.TrainingData`."""


def _binary(rng: np.random.Generator, n_frames: int, size: int, opened: float = 0.5) -> Video:
    return (rng.random((n_frames, size, size)) < opened).astype(np.float32)


_VALIDATION: dict[str, Callable[[np.random.Generator, int, int], Video]] = {
    "binary": _binary,
    "open 30 %": lambda rng, n, size: _binary(rng, n, size, 0.3),
    "moving": lambda rng, n, size: moving_masks(rng, n, size)(0.0),
}


def _coded(kind: str, masks_of: Callable[[np.random.Generator, int, int], Video], video: Video) -> CodedSamples:
    """Code the centre of a held-out clip, a square."""
    size = min(video.shape[1:])
    truth = np.ascontiguousarray(video[:, :size, :size])
    masks = masks_of(np.random.default_rng(list(_VALIDATION).index(kind)), len(truth), size)
    coded = started(np.asarray((masks * truth).sum(0), np.float32), masks)
    return CodedSamples(coded, torch.from_numpy(truth).unsqueeze(0))


def _on(samples: CodedSamples, device: torch.device) -> CodedSamples:
    return CodedSamples(Coded(*(field.to(device) for field in samples.coded)), samples.truth.to(device))
