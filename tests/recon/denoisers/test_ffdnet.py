"""FFDNet: the form of the network, and the published weights with their published results."""

from __future__ import annotations

import math
from pathlib import Path

import cv2
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers import ffdnet
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser, in_layers, in_three_terms
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import FfdnetWeights, load_ffdnet
from sci_stream.recon.metrics import psnr

CPU = torch.device("cpu")


def _weights(*, gives_noise: bool) -> FfdnetWeights:
    generator = torch.Generator().manual_seed(3)
    kernels = tuple(0.2 * torch.randn(o, i, 3, 3, generator=generator) for i, o in [(5, 6), (6, 4)])
    biases = tuple(0.1 * torch.randn(o, generator=generator) for o in (6, 4))
    return FfdnetWeights(kernels, biases, gives_noise=gives_noise, origin="own")


@pytest.mark.parametrize("gives_noise", [False, True])
def test_network_is_unshuffle_convolutions_shuffle(gives_noise: bool) -> None:
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


def test_result_depends_on_sigma() -> None:
    denoise = FfdnetDenoiser(_weights(gives_noise=False), CPU)
    x = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert not torch.allclose(denoise(x, 0.1), denoise(x, 0.2))


@pytest.mark.parametrize("chunk", [None, 2 * 12 * 15])
def test_sigma_may_vary_over_pixels_and_planes(chunk: int | None) -> None:
    """Where it is one for many pixels around, it is as if it were that everywhere; three frames of
    two planes each.
    """
    denoise = FfdnetDenoiser(_weights(gives_noise=False), CPU, pixels_per_chunk=chunk)
    x = torch.rand(6, 12, 31, generator=torch.Generator().manual_seed(0))
    relative = (
        torch.tensor([[1.0, 2.0], [0.5, 4.0]])
        .repeat_interleave(16, 1)[:, :31]
        .view(2, 1, 31)
        .expand(2, 12, 31)
    )
    found = denoise(x, 0.1, relative)
    for plane, left, right in (
        (0, 0.1, 0.2),
        (1, 0.05, 75 / 255),
    ):  # no more than it was trained for
        frames = slice(3 * plane, 3 * plane + 3)
        torch.testing.assert_close(found[frames, :, :12], denoise(x[frames], left)[..., :12])
        torch.testing.assert_close(found[frames, :, 20:], denoise(x[frames], right)[..., 20:])


def test_odd_size_is_padded_by_mirroring() -> None:
    denoise = FfdnetDenoiser(_weights(gives_noise=False), CPU)
    x = torch.rand(1, 7, 9, generator=torch.Generator().manual_seed(0))
    mirrored = F.pad(x, (0, 1, 0, 1), mode="reflect")
    torch.testing.assert_close(denoise(x, 0.1), denoise(mirrored, 0.1)[:, :7, :9])


def test_memory_is_bounded_by_chunks_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = _weights(gives_noise=True)
    x = torch.rand(7, 6, 6, generator=torch.Generator().manual_seed(0))
    at_once = FfdnetDenoiser(weights, CPU)(x, 0.1)
    seen: list[int] = []
    original = F.conv2d

    def spy(h: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        seen.append(h.shape[0])
        return original(h, *args, **kwargs)  # type: ignore[arg-type]  # handed on as it came

    monkeypatch.setattr(F, "conv2d", spy)
    torch.testing.assert_close(
        FfdnetDenoiser(weights, CPU, pixels_per_chunk=3 * 36)(x, 0.1), at_once
    )
    assert max(seen) == 3


@pytest.mark.parametrize("gives_noise", [False, True])
def test_lower_precision_does_not_leave_the_network(gives_noise: bool) -> None:
    weights = _weights(gives_noise=gives_noise)
    x = torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(0))
    half = FfdnetDenoiser(weights, CPU, Precision.HALF)(x, 0.1)
    full = FfdnetDenoiser(weights, CPU)(x, 0.1)
    assert half.dtype == torch.float32
    assert not torch.equal(half, full)
    torch.testing.assert_close(half, full, rtol=0.01, atol=0.01)


def test_first_layer_of_three_terms_keeps_faint_detail() -> None:
    """Detail of a thousandth of full scale is lost when the image is rounded to eight bits."""
    generator = torch.Generator().manual_seed(0)
    image = 0.75 + 1e-3 * torch.rand(1, 1, 16, 16, generator=generator)
    edges = torch.tensor([[0.0, -0.3, 0], [-0.3, 1.2, -0.3], [0, -0.3, 0]]).view(1, 1, 3, 3)
    unchanged = torch.zeros(1, 1, 3, 3, dtype=torch.bfloat16)
    unchanged[0, 0, 1, 1] = 1
    biases = [torch.zeros(1, dtype=torch.bfloat16)] * 2
    kernels = [edges.bfloat16(), unchanged]
    exact = F.conv2d(image, edges).relu_()
    three, rounded = (
        stack(features)[..., 1:-1, 1:-1].float()
        for stack, features in (
            (in_three_terms(kernels, biases, edges), image),
            (in_layers(kernels, biases), image.bfloat16()),
        )
    )
    assert (three - exact).abs().max() < 0.02 * exact.max()
    assert (rounded - exact).abs().max() > 0.5 * exact.max()


@pytest.mark.parametrize("precision", list(Precision))
def test_network_of_any_depth_runs_in_any_precision(precision: Precision) -> None:
    kernel = 0.1 * torch.randn(4, 5, 3, 3, generator=torch.Generator().manual_seed(1))
    single = FfdnetWeights((kernel,), (torch.full((4,), 0.3),), gives_noise=False, origin="own")
    x = torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(0))
    result = FfdnetDenoiser(single, CPU, precision)(x, 0.1)
    torch.testing.assert_close(result, FfdnetDenoiser(single, CPU)(x, 0.1), rtol=0.02, atol=0.02)


@pytest.fixture
def fast_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the denoiser accept that this processor has instructions for bfloat16; without them it
    computes as well.
    """
    monkeypatch.setattr(ffdnet, "half_dtype", lambda _device: torch.bfloat16)


def test_shipped_weights_run_in_16_bits_where_that_is_faster(fast_in_bfloat16: None) -> None:
    denoise = FfdnetDenoiser(load_ffdnet(shipped_weights("ffdnet-lite")), CPU, Precision.AUTO)
    assert denoise.half is torch.bfloat16
    assert denoise.network_at(0.2) is denoise.network_at(10 / 255) is denoise._half, (
        "at every σ of the default schedule"
    )


def test_weights_sensitive_to_rounding_keep_float32(fast_in_bfloat16: None) -> None:
    # Two layers that almost cancel: the remainder is lost in 8 bits of mantissa.
    up = torch.zeros(8, 5, 3, 3)
    up[:, :4, 1, 1] = 100.0 + torch.rand(8, 4, generator=torch.Generator().manual_seed(0))
    down = torch.zeros(4, 8, 3, 3)
    down[:, ::2, 1, 1], down[:, 1::2, 1, 1] = 30.0, -30.1
    fragile = FfdnetWeights(
        (up, down), (torch.ones(8), torch.zeros(4)), gives_noise=True, origin="own"
    )
    denoise = FfdnetDenoiser(fragile, CPU, Precision.AUTO)
    assert math.isinf(denoise.half_from_sigma)
    x = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(denoise(x, 0.1), FfdnetDenoiser(fragile, CPU)(x, 0.1))


def test_precision_follows_sigma_if_16_bits_need_high_levels(
    fast_in_bfloat16: None, data_dir: Path
) -> None:
    weights = load_ffdnet(data_dir / "weights" / "kair_ffdnet_gray.pth")
    denoise = FfdnetDenoiser(weights, CPU, Precision.AUTO)
    assert 4 / 255 < denoise.half_from_sigma < 25 / 255
    assert (denoise.network_at(50 / 255), denoise.network_at(2 / 255)) == (
        denoise._half,
        denoise._full,
    )
    assert not denoise.recordable
    x = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(0))
    exact = FfdnetDenoiser(weights, CPU)
    assert torch.equal(denoise(x, 2 / 255), exact(x, 2 / 255))
    assert not torch.equal(denoise(x, 50 / 255), exact(x, 50 / 255))


def test_auto_without_16_bit_instructions_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ffdnet, "half_dtype", lambda _device: None)
    assert math.isinf(
        FfdnetDenoiser(_weights(gives_noise=True), CPU, Precision.AUTO).half_from_sigma
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", list(Precision))
def test_gpu_equals_cpu(precision: Precision) -> None:
    weights = load_ffdnet(shipped_weights("ffdnet-lite"))
    x = torch.rand(5, 63, 50, generator=torch.Generator().manual_seed(0))
    on_gpu = FfdnetDenoiser(weights, torch.device("cuda"), precision, pixels_per_chunk=2 * 63 * 50)(
        x.cuda(), 0.1
    )
    atol = 1e-4 if precision is Precision.FLOAT32 else 2e-3
    torch.testing.assert_close(
        on_gpu.cpu(), FfdnetDenoiser(weights, CPU)(x, 0.1), rtol=0, atol=atol
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_float16_survives_extreme_values() -> None:
    denoise = FfdnetDenoiser(
        load_ffdnet(shipped_weights("ffdnet-lite")), torch.device("cuda"), Precision.HALF
    )
    x = torch.rand(1, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    x[0, 3, 4], x[0, 9, 9] = 1e5, -1e5
    assert bool(denoise(x, 0.1).isfinite().all())


@pytest.mark.parametrize(
    ("file", "images", "expected_db"),
    [
        ("kair_ffdnet_gray.pth", 7, 30.30),
        ("ipol_net_gray.pth", 7, 30.34),
        pytest.param("kair_ffdnet_gray.pth", 12, 30.43, marks=pytest.mark.slow),
        pytest.param("ipol_net_gray.pth", 12, 30.47, marks=pytest.mark.slow),
    ],
)
def test_published_weights_reach_published_psnr(
    data_dir: Path, file: str, images: int, expected_db: float
) -> None:
    # A wrong order of sub-pixels or a σ map in the wrong place would cost decibels. Published are
    # the means over all twelve images; the seven small ones, a quarter of the work, have the other
    # means in the same run.
    denoise = FfdnetDenoiser(load_ffdnet(data_dir / "weights" / file), CPU)
    sigma, scores = 25 / 255, []
    generator = torch.Generator().manual_seed(0)
    for path in sorted((data_dir / "test" / "set12").glob("*.png"))[:images]:
        truth = torch.from_numpy(cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)).float()[None] / 255
        noisy = truth + sigma * torch.randn(truth.shape, generator=generator)
        with torch.inference_mode():
            scores.append(psnr(denoise(noisy, sigma), truth))
    assert len(scores) == images
    assert sum(scores) / images == pytest.approx(expected_db, abs=0.05)
