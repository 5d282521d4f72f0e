"""The non-local priors: WNNM and block matching with 4-D transforms,
on groups of similar patches.
"""

from __future__ import annotations

import math

import pytest
import torch

from sci_stream.recon.metrics import psnr
from sci_stream_lab.paper.block_matching import BlockMatchingDenoiser
from sci_stream_lab.paper.patch_groups import (
    PatchGroupDenoiser,
    Search,
    _patch_means,
    filter_groups,
)
from sci_stream_lab.paper.wnnm import WnnmDenoiser
from tests.recon.backend.test_memory import Tracker

CPU = torch.device("cpu")
DENOISERS = (WnnmDenoiser, BlockMatchingDenoiser)
Make = type[PatchGroupDenoiser]


def scene(n_frames: int = 4, size: int = 40) -> torch.Tensor:
    """Return a moving pattern with edges and texture, (B, size, size)."""
    rows, columns = torch.meshgrid(
        torch.arange(float(size)), torch.arange(float(size)), indexing="ij"
    )
    frames = [
        0.4
        + 0.2 * torch.sin((columns + 1.5 * b) / 3)
        + 0.3 * (((rows + b) // 9 + columns // 11) % 2)
        for b in range(n_frames)
    ]
    return torch.stack(frames)


def noisy(video: torch.Tensor, sigma: float) -> torch.Tensor:
    return video + sigma * torch.randn(video.shape, generator=torch.Generator().manual_seed(0))


def untouched(patches: torch.Tensor, sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return patches, sigma.expand(len(patches), 1, 1)


@pytest.mark.parametrize("make", DENOISERS)
@pytest.mark.parametrize("sigma", [0.04, 0.15])
def test_video_denoiser_removes_more_noise_than_single_frames(make: Make, sigma: float) -> None:
    denoiser, clean = make(), scene()
    x = noisy(clean, sigma)
    together = denoiser.denoise_video(x.unsqueeze(0), sigma).squeeze(0)
    assert psnr(together, clean) > psnr(denoiser(x, sigma), clean)
    assert psnr(denoiser(x, sigma), clean) > psnr(x, clean) + 2.5


@pytest.mark.parametrize("make", DENOISERS)
def test_video_denoiser_is_independent_of_chunk_size(make: Make) -> None:
    denoiser, x = make(), noisy(scene(), 0.1).unsqueeze(0)
    before = denoiser.denoise_video(x, 0.1)
    while denoiser.reduce_memory():
        pass
    torch.testing.assert_close(denoiser.denoise_video(x, 0.1), before)


@pytest.mark.parametrize("make", DENOISERS)
def test_video_denoiser_follows_local_level(make: Make) -> None:
    denoiser, clean = make(), scene().unsqueeze(0)
    x = noisy(clean, 0.1)
    relative = torch.ones(1, 40, 40)
    relative[..., :20] = 1e-3
    changed = (denoiser.denoise_video(x, 0.1, relative) - x).abs()
    assert changed[..., :12].mean() < 0.1 * changed[..., 28:].mean()


@pytest.mark.parametrize("make", DENOISERS)
def test_video_denoiser_treats_planes_equally(make: Make) -> None:
    denoiser, x = make(), noisy(scene(3, 24), 0.1)
    both = denoiser.denoise_video(torch.stack((x, 1 - x)), 0.1)
    torch.testing.assert_close(both[1], denoiser.denoise_video(1 - x.unsqueeze(0), 0.1)[0])


@pytest.mark.parametrize("make", DENOISERS)
@pytest.mark.parametrize("shape", [(1, 1, 16, 16), (1, 3, 7, 21), (2, 2, 1, 5), (1, 13, 9, 9)])
def test_video_of_any_size_keeps_its_shape(make: Make, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    found = make().denoise_video(x, 0.1)
    assert found.shape == x.shape
    assert found.isfinite().all()


@pytest.mark.parametrize(("patch", "stride"), [(8, 4), (6, 4), (5, 3), (4, 4)])
def test_patch_means_equal_those_of_pooling(patch: int, stride: int) -> None:
    images = torch.rand(
        2, 3, patch + 5 * stride, patch + 7 * stride, generator=torch.Generator().manual_seed(0)
    )
    found = _patch_means(images, Search(patch=patch, stride=stride, radius=1, count=1))
    torch.testing.assert_close(found, torch.nn.functional.avg_pool2d(images, patch, stride))


@pytest.mark.parametrize("per_frame", [False, True])
def test_unchanged_groups_return_the_video(per_frame: bool) -> None:
    video = torch.rand(3, 21, 34, generator=torch.Generator().manual_seed(0))
    search = Search(patch=5, stride=3, radius=3, count=4, per_frame=per_frame)
    for at_once in (2**10, 2**22):
        found = filter_groups(video, torch.tensor(0.3), search, untouched, at_once=at_once)
        torch.testing.assert_close(found, video)


@pytest.mark.parametrize("search", [make.search for make in DENOISERS])
def test_memory_beyond_the_video_does_not_grow_with_its_size(search: Search) -> None:
    """Video, padded video, sums and weights are held, and temporary arrays of a bounded number of
    elements.
    """
    at_once = 2**15
    for shape in ((3, 24, 24), (3, 48, 48)):
        video = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode(), Tracker() as tracker:
            filter_groups(video, torch.tensor(0.1), search, untouched, at_once=at_once)
        assert tracker.peak < 6 * 4 * video.numel() + 40 * at_once


def test_groups_consist_of_the_most_similar_patches() -> None:
    """Copies of a patch within the window are found in all frames at any position."""
    video = torch.rand(2, 24, 24, generator=torch.Generator().manual_seed(0))
    patch = video[0, 8:12, 8:12].clone()
    video[0, 10:14, 13:17], video[1, 5:9, 6:10] = patch, patch
    spreads = []

    def note(patches: torch.Tensor, sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spreads.append((patches - patches.mean(1, keepdim=True)).square().sum((1, 2)))
        return untouched(patches, sigma)

    filter_groups(
        video, torch.tensor(1.0), Search(patch=4, stride=4, radius=5, count=3), note, at_once=2**20
    )
    assert int((torch.cat(spreads) < 1e-10).sum()) >= 1, "a group of three equal patches"


def test_shrinkage_removes_noise_and_keeps_strong_values() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(20, 32, 64, generator=generator)
    sigma = torch.tensor(0.1)
    left, _ = WnnmDenoiser().shrink(noise.clone(), sigma)
    assert left.square().mean() < 0.1 * noise.square().mean()
    signal = (
        torch.rand(20, 32, 1, generator=generator) * torch.rand(20, 1, 64, generator=generator) * 5
    )
    found, _ = WnnmDenoiser().shrink(signal + noise, sigma)
    assert (found - signal).square().mean() < 0.2 * noise.square().mean()
    for count in (8, 64, 100):  # either side of the matrix may be the smaller one
        patches = torch.rand(3, count, 36, generator=generator)
        torch.testing.assert_close(
            WnnmDenoiser().shrink(patches, torch.tensor(0.0))[0], patches, atol=1e-3, rtol=1e-3
        )


def test_4d_threshold_keeps_signal_and_favours_sparse_groups() -> None:
    generator = torch.Generator().manual_seed(0)
    patches = torch.rand(2, 8, 64, generator=generator)
    patches[1] = 0.5
    clean, _ = BlockMatchingDenoiser().shrink(patches, torch.tensor(1e-6))
    torch.testing.assert_close(clean, patches, atol=1e-4, rtol=1e-4)
    flat, weights = BlockMatchingDenoiser().shrink(patches, torch.tensor(0.1))
    torch.testing.assert_close(flat[1], patches[1])
    assert float(weights[1]) == 1.0
    assert float(weights[0]) < 1.0
    assert math.isclose(float(weights[0]), 1 / round(1 / float(weights[0])), rel_tol=1e-6)
