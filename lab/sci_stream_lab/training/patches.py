"""Training patches: noisy images as in a reconstruction, determined by the seed and the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from sci_stream.recon.denoisers.ffdnet import frame_input
from sci_stream.recon.denoisers.weights import FfdnetWeights
from sci_stream_lab.training.data import DRAWING_THREADS, Samples, drawn_ahead
from sci_stream_lab.training.evaluation import psnr_by_level, validation_planes
from sci_stream_lab.training.images import Image, Plane, luminance
from sci_stream_lab.training.media import MediaSet
from sci_stream_lab.training.mosaics import draw_mosaic
from sci_stream_lab.training.settings import TrainingSettings

# Validation images are cropped to this size, so that a point of the curve costs seconds on a CPU.
_VALIDATION_MOST_PX = 192

# Red, twice green, blue: a cell of the mosaic, whatever its phase.
_CHANNELS_OF_MOSAIC = (0, 1, 1, 2)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Patches without noise, their noise levels, and the seed of the noise.

    ``clean`` is (N, 1, p, p) float32 in 0–1, ``sigma`` (N, 1, 1, 1) float32 on the same scale, both
    on the host.
    """

    clean: torch.Tensor
    sigma: torch.Tensor
    noise_seed: int


def bayer_plane(image: Image, cell: int, row: int, column: int) -> Plane:
    """Return one plane of the image's Bayer mosaic on the 0–1 scale, (H, W, 3) → about (H/2, W/2).

    Every second pixel of one colour, without a low-pass: aliased like the planes of a colour
    camera, and unlike ordinary photographs.

    Parameters
    ----------
    cell
        0–3: red, the two greens, blue.
    row, column
        0 or 1: position of the colour in its 2×2 cell.
    """
    plane = image[row::2, column::2, _CHANNELS_OF_MOSAIC[cell]]
    return np.asarray(plane / np.float32(255), dtype=np.float32)


def draw_batch(images: Sequence[Image], settings: TrainingSettings, step: int) -> Batch:
    """Draw the batch of a step: the same for the same images, settings and step, independent of
    earlier steps.

    Image, position and orientation (one of eight) of every patch are independent.
    """
    # Seeded by step, so that a resumed run draws the same patches as an uninterrupted one.
    rng = np.random.default_rng((settings.seed, step))
    clean = np.stack([_draw_patch(images, settings, rng) for _ in range(settings.batch)])
    sigma = rng.uniform(0.0, settings.sigma_most, settings.batch).astype(np.float32)
    return Batch(
        torch.from_numpy(clean).unsqueeze(1),
        torch.from_numpy(sigma).view(-1, 1, 1, 1),
        noise_seed=int(rng.integers(2**63)),
    )


def _draw_patch(
    images: Sequence[Image], settings: TrainingSettings, rng: np.random.Generator
) -> Plane:
    size = settings.patch_px
    if settings.is_mosaic:
        return draw_mosaic(rng, images, size)
    bayer = bool(rng.random() < settings.bayer_share)
    span = 2 * size if bayer else size
    image = images[int(rng.integers(len(images)))]
    top, left = (int(rng.integers(n - span + 1)) for n in image.shape[:2])
    window = image[top : top + span, left : left + span]
    patch = (
        bayer_plane(window, *(int(rng.integers(n)) for n in (4, 2, 2)))
        if bayer
        else luminance(window)
    )
    turned = np.rot90(patch, int(rng.integers(4)))
    return turned if rng.random() < 0.5 else turned[:, ::-1]


def least_image_px(settings: TrainingSettings) -> int:
    """Return the least height and width of an image for patches of every kind."""
    aliased = settings.bayer_share > 0 and not settings.is_mosaic
    return settings.patch_px * (2 if aliased else 1)


def add_noise(
    batch: Batch, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return noisy patches, their noise levels and the clean ones, on the device, where the noise
    is drawn.

    The noise is white and Gaussian, without clipping, as within the iterations of a reconstruction.
    """
    clean = batch.clean.to(device, non_blocking=True)
    sigma = batch.sigma.to(device, non_blocking=True)
    # Drawn on the device: the noise of a batch is as large as the batch, and copying it would cost
    # as much.
    generator = torch.Generator(device).manual_seed(batch.noise_seed)
    noise = torch.randn(clean.shape, generator=generator, device=device)
    return clean + sigma * noise, sigma, clean


class PhotographData:
    """Noisy patches of photographs: the `sci_stream_lab.training.data.TrainingData` of denoisers.

    A batch depends on the seed and the number of its step alone.

    ``held_out`` of the photographs only validate.

    Raises
    ------
    ConfigError
        If too few photographs are left to train on.
    """

    clips: Sequence[str] = ()

    def __init__(
        self, images: MediaSet, held_out: int, settings: TrainingSettings, device: torch.device
    ) -> None:
        training, validation = images.split(held_out)
        self.id = f"{training.id}/{validation.id}"
        self.n_images = len(training.items)
        self._images = training.items
        self._planes = validation_planes(validation, _VALIDATION_MOST_PX, mosaic=settings.is_mosaic)
        self._settings = settings
        self._device = device

    @contextmanager
    def batches(self, step: int) -> Iterator[Iterator[Samples]]:
        """Yield the batches of all steps from this one on; see
        `sci_stream_lab.training.data.TrainingData`.
        """
        threads = DRAWING_THREADS[self._device.type]
        with drawn_ahead(
            lambda n: draw_batch(self._images, self._settings, n), step, threads
        ) as drawn:
            yield (self._samples(batch) for batch in drawn)

    def _samples(self, batch: Batch) -> Samples:
        noisy, sigma, clean = add_noise(batch, self._device)
        return Samples(frame_input(noisy, sigma), clean)

    def psnr_db(self, weights: FfdnetWeights) -> dict[str, float]:
        """Return the PSNR on held-out photographs by noise level."""
        return psnr_by_level(weights, self._planes, self._device)
