"""Pixels that no mask opens are filled as the denoiser expects."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sci_stream
from sci_stream.recon.algorithms.gap import cold_start
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.denoisers.temporal import FrameDenoiser
from sci_stream.recon.initialization.filling import filled
from sci_stream_drivers.simulated.textures import spectral_noise

CPU = torch.device("cpu")
SIZE = 96
pytestmark = pytest.mark.usefixtures("one_thread")


def scene() -> torch.Tensor:
    """Return a still landscape behind discs with sharp edges, (1, 1, H, W)."""
    image = 0.2 + 0.4 * spectral_noise(SIZE, 3.0, np.random.default_rng(2))
    rows, columns = np.mgrid[:SIZE, :SIZE]
    for centre in (20, 50, 80):
        image[np.hypot(rows - centre, columns - centre) < 14] = centre / 90
    return torch.from_numpy(image.astype(np.float32))[None, None]


def masks(n_frames: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(1, n_frames, SIZE, SIZE, generator=generator) < 0.5).float()


def mean_square(difference: torch.Tensor) -> float:
    return float(difference.square().mean())


@pytest.mark.parametrize(("name", "relaxation"), [("ffdnet-lite", 1.5), ("tv", 1.0)])
def test_filled_pixels_are_nearer_than_the_mean_around_them(name: str, relaxation: float) -> None:
    x = scene()
    known = masks(2).sum(1) > 0
    guess = cold_start(x[:, 0], known[:, None].float(), known.float())
    denoise = FrameDenoiser(make_denoiser(name, CPU))
    image = filled(guess, known, denoise, relaxation)
    holes = ~known.unsqueeze(1)
    assert torch.equal(image[~holes], x[~holes])
    assert mean_square((image - x)[holes]) < 0.6 * mean_square((guess - x)[holes])


def test_still_scene_behind_two_masks_is_filled_by_the_solve() -> None:
    phi = masks(2)[0]
    x = scene()[0].expand(2, SIZE, SIZE)
    y = (phi * x).sum(0)
    result = sci_stream.reconstruct(y, phi, white=1.0, device="cpu", iterations=12)
    still = cold_start(y[None], phi[None], (phi.sum(0) > 0).float()[None])[0]
    assert mean_square(result.video - x) < 0.5 * mean_square(still - x)


def test_warm_start_keeps_pixels_of_the_video_before() -> None:
    phi = masks(2)[0]
    x = scene()[0].expand(2, SIZE, SIZE)
    y = (phi * x).sum(0)
    series = sci_stream.reconstruct(torch.stack((y, y)), phi, white=1.0, device="cpu")
    errors = [mean_square(video - x) for video in series.video]
    assert errors[1] < 1.1 * errors[0]
