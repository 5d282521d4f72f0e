"""PSNR of a network on images with white Gaussian noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from sci_stream.optics.bayer import sample_colours
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.weights import FfdnetWeights
from sci_stream.recon.metrics import psnr
from sci_stream_lab.training.images import Image, Plane, load_images, luminance
from sci_stream_lab.training.media import MediaSet
from sci_stream_lab.training.mosaics import PHASE

# Noise levels on the 0–255 scale for which publications compare denoisers.
LEVELS = (15, 25, 50)


def psnr_by_level(
    weights: FfdnetWeights,
    planes: Sequence[Plane],
    device: torch.device,
    *,
    levels: Sequence[int] = LEVELS,
) -> dict[str, float]:
    """Return the mean PSNR in dB over images, by noise level.

    The noise of an image depends only on its index and the level: it is the same for every network.

    Parameters
    ----------
    planes
        (H, W) on the 0–1 scale, of any sizes.
    levels
        Standard deviations on the 0–255 scale.

    Returns
    -------
    ``{"15": 32.1, …}``: peak 1.0, without clipping or rounding, the mean over images of their PSNR.
    """
    denoise = FfdnetDenoiser(weights, device)
    means = {}
    with torch.inference_mode():
        for level in levels:
            scores = []
            for number, plane in enumerate(planes):
                truth = torch.from_numpy(plane).unsqueeze(0)
                seed = int(
                    np.random.SeedSequence((number, level)).generate_state(1, np.uint64)[0] >> 1
                )
                noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed))
                sigma = level / 255
                scores.append(psnr(denoise((truth + sigma * noise).to(device), sigma).cpu(), truth))
            means[str(level)] = sum(scores) / len(scores)
    return means


def evaluate(
    weights: FfdnetWeights, folder: Path, device: torch.device, *, mosaic: bool = False
) -> dict[str, float]:
    """Return `psnr_by_level` on the luminance, or the mosaics, of all images of a folder,
    uncropped.

    Raises
    ------
    ConfigError
        If the folder is missing or contains no image.
    """
    planes = [_plane(image, mosaic=mosaic) for image in load_images(folder).items]
    return psnr_by_level(weights, planes, device)


def validation_planes(images: MediaSet, most_px: int, *, mosaic: bool = False) -> list[Plane]:
    """Return the centres of the images as luminance, or as mosaics, at most ``most_px`` in height
    and width.
    """
    planes = []
    for image in images.items:
        top, left = (max(0, n - most_px) // 2 for n in image.shape[:2])
        part = image[top : top + most_px, left : left + most_px]
        planes.append(_plane(part, mosaic=mosaic))
    return planes


def _plane(image: Image, *, mosaic: bool) -> Plane:
    if not mosaic:
        return luminance(image)
    height, width = (n // 2 * 2 for n in image.shape[:2])
    return sample_colours(image[:height, :width] / np.float32(255), PHASE)
