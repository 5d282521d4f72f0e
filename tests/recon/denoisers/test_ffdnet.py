"""FFDNet: the form of the network, and the published weights doing what their papers say."""

from __future__ import annotations

from pathlib import Path

import cv2
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from sci_stream.recon.denoisers import ffdnet
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.metrics import psnr
from sci_stream.recon.weights import FfdnetWeights, load_ffdnet

CPU = torch.device("cpu")


def _weights(*, gives_noise: bool) -> FfdnetWeights:
    generator = torch.Generator().manual_seed(3)
    kernels = tuple(0.2 * torch.randn(o, i, 3, 3, generator=generator) for i, o in [(5, 6), (6, 4)])
    biases = tuple(0.1 * torch.randn(o, generator=generator) for o in (6, 4))
    return FfdnetWeights(kernels, biases, gives_noise=gives_noise, origin="own")


@pytest.mark.parametrize("gives_noise", [False, True])
def test_the_network_is_unshuffle_convolutions_shuffle(gives_noise: bool) -> None:
    weights = _weights(gives_noise=gives_noise)
    x = torch.rand(2, 8, 6, generator=torch.Generator().manual_seed(0))
    planes = torch.stack([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], dim=1)
    h = torch.cat([planes, torch.full((2, 1, 4, 3), 0.3)], dim=1)
    h = F.conv2d(h, weights.kernels[0], weights.biases[0], padding=1).relu()
    h = F.conv2d(h, weights.kernels[1], weights.biases[1], padding=1)
    clean = planes - h if gives_noise else h
    expected = torch.empty_like(x)
    for n, (i, j) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        expected[:, i::2, j::2] = clean[:, n]
    torch.testing.assert_close(FfdnetDenoiser(weights, CPU)(x, 0.3), expected)


def test_sigma_matters() -> None:
    denoise = FfdnetDenoiser(_weights(gives_noise=False), CPU)
    x = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert not torch.allclose(denoise(x, 0.1), denoise(x, 0.2))


def test_an_odd_size_is_mirrored_to_an_even_one() -> None:
    denoise = FfdnetDenoiser(_weights(gives_noise=False), CPU)
    x = torch.rand(1, 7, 9, generator=torch.Generator().manual_seed(0))
    mirrored = F.pad(x, (0, 1, 0, 1), mode="reflect")
    torch.testing.assert_close(denoise(x, 0.1), denoise(mirrored, 0.1)[:, :7, :9])


def test_memory_is_bounded_by_chunks_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    denoise = FfdnetDenoiser(_weights(gives_noise=True), CPU)
    x = torch.rand(7, 6, 6, generator=torch.Generator().manual_seed(0))
    at_once = denoise(x, 0.1)
    seen: list[int] = []
    original = F.conv2d

    def spy(h: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        seen.append(h.shape[0])
        return original(h, *args, **kwargs)  # type: ignore[arg-type]  # handed on as it came

    monkeypatch.setattr(F, "conv2d", spy)
    monkeypatch.setitem(ffdnet._PIXELS_PER_CHUNK, "cpu", 3 * 36)
    torch.testing.assert_close(denoise(x, 0.1), at_once)
    assert max(seen) == 3


def test_lower_precision_inside_stays_inside() -> None:
    weights = _weights(gives_noise=True)
    x = torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(0))
    half = FfdnetDenoiser(weights, CPU, torch.bfloat16)(x, 0.1)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, FfdnetDenoiser(weights, CPU)(x, 0.1), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(("file", "published_db"), [("kair_ffdnet_gray.pth", 30.43), ("ipol_net_gray.pth", 30.47)])
def test_published_weights_denoise_as_published(data_dir: Path, file: str, published_db: float) -> None:
    # A wrong order of sub-pixels or a σ map in the wrong place would cost decibels.
    denoise = FfdnetDenoiser(load_ffdnet(data_dir / "weights" / file), CPU)
    sigma, scores = 25 / 255, []
    generator = torch.Generator().manual_seed(0)
    for path in sorted((data_dir / "test" / "set12").glob("*.png")):
        truth = torch.from_numpy(cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)).float()[None] / 255
        noisy = truth + sigma * torch.randn(truth.shape, generator=generator)
        with torch.inference_mode():
            scores.append(psnr(denoise(noisy, sigma), truth))
    assert len(scores) == 12
    assert sum(scores) / 12 == pytest.approx(published_db, abs=0.05)
