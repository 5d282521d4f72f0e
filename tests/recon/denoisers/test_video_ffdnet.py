"""The network with neighbouring frames: any B and size, strips that do not show, planes and distant frames apart."""

from __future__ import annotations

import itertools

import pytest
import torch

from sci_stream.ports import MemoryReducible, RecordableDenoiser, VideoDenoiser
from sci_stream.recon.algorithms.noise_level import NoiseLevel
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser, shift_in_time, temporal_differences
from sci_stream.recon.denoisers.identity import IdentityDenoiser
from sci_stream.recon.denoisers.sequence import in_sequence
from sci_stream.recon.denoisers.temporal import WholeVideoDenoiser, cycled_denoisers
from sci_stream.recon.denoisers.variants import NetworkShape, variant_shape
from sci_stream.recon.denoisers.video_ffdnet import VideoFfdnetDenoiser
from sci_stream.recon.denoisers.weights import VIDEO_INPUTS
from sci_stream.training.learner import initial_weights

CPU = torch.device("cpu")
LAYERS = 4
WEIGHTS = initial_weights(NetworkShape(LAYERS, 16, inputs=VIDEO_INPUTS), seed=0)
REACH = 4 + LAYERS - 2  # frames: the mean of the input, and one for each shift between layers


def make(**options: int) -> VideoFfdnetDenoiser:
    return VideoFfdnetDenoiser(WEIGHTS, CPU, **options)


def video(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def test_video_ffdnet_satisfies_the_ports() -> None:
    for port in (VideoDenoiser, RecordableDenoiser, MemoryReducible):
        assert isinstance(make(), port)
    assert not isinstance(IdentityDenoiser(), VideoDenoiser)


@pytest.mark.parametrize("shape", [(1, 1, 16, 16), (4, 2, 7, 9), (1, 50, 6, 8), (2, 3, 1, 5), (1, 8, 33, 40)])
def test_denoise_video_any_size_keeps_its_shape(shape: tuple[int, ...]) -> None:
    x = video(*shape)
    before = x.clone()
    out = make().denoise_video(x, 0.1)
    assert out.shape == x.shape
    assert out.isfinite().all()
    assert torch.equal(x, before)


@pytest.mark.parametrize("height", [70, 71])
def test_denoise_video_in_strips_equals_the_whole(height: int) -> None:
    x = video(2, 3, height, 12)
    sigma = NoiseLevel(0.1, relative=0.5 + video(2, height, 12, seed=2))
    whole, strips = make(), make(pixels_per_strip=1)
    torch.testing.assert_close(strips.denoise_video(x, sigma), whole.denoise_video(x, sigma))


def test_denoise_video_planes_do_not_affect_each_other() -> None:
    x = video(3, 4, 8, 8)
    denoise = make()
    together = denoise.denoise_video(x, 0.1)
    for plane in range(3):
        torch.testing.assert_close(denoise.denoise_video(x[plane : plane + 1], 0.1)[0], together[plane])


def test_denoise_video_uses_near_frames_only() -> None:
    x = video(1, 2 * REACH + 2, 8, 8)
    changed = x.clone()
    changed[:, 0] += 0.3
    difference = (make().denoise_video(changed, 0.1) - make().denoise_video(x, 0.1)).abs().amax((0, 2, 3))
    assert (difference[: REACH + 1] > 0).all()
    assert (difference[REACH + 1 :] == 0).all()


def test_frames_without_a_video_are_denoised_one_by_one() -> None:
    x = video(5, 8, 8)
    torch.testing.assert_close(make()(x, 0.1), make().denoise_video(x.unsqueeze(1), 0.1).squeeze(1))


def test_temporal_differences_of_a_still_video_are_zero() -> None:
    still = video(1, 4, 3, 3).expand(6, 4, 3, 3)
    for difference in temporal_differences(still, 6):
        torch.testing.assert_close(difference, torch.zeros_like(difference))


def test_temporal_differences_and_shift_take_neighbours_of_the_same_video() -> None:
    frames = torch.arange(1.0, 7.0).view(6, 1, 1, 1).expand(6, 9, 2, 2)  # two videos of three frames
    before, after, mean = (each[:, 0, 0, 0].tolist() for each in temporal_differences(frames, 3))
    assert before == [0, -1, -1] * 2
    assert after == [1, 1, 0] * 2
    assert mean == pytest.approx([1, 0, -1] * 2)
    shifted = shift_in_time(frames, 3)
    assert shifted[:, 0, 0, 0].tolist() == [0, 1, 2, 0, 4, 5]
    assert shifted[:, 4, 0, 0].tolist() == [2, 3, 0, 5, 6, 0]
    assert torch.equal(shifted[:, 8], frames[:, 8])


def test_reduce_memory_ends_and_gives_the_same() -> None:
    denoise, x = make(), video(1, 3, 80, 8)
    before = denoise.denoise_video(x, 0.1)
    spared = list(itertools.takewhile(lambda more: more, (denoise.reduce_memory() for _ in range(64))))
    denoise.denoise_video(x, 0.1)
    while denoise.reduce_memory():
        torch.testing.assert_close(denoise.denoise_video(x, 0.1), before)
    assert len(spared) > 0


def test_cycled_denoisers_hands_whole_videos_to_a_video_denoiser() -> None:
    (only,) = cycled_denoisers(make(), 8, CPU, along_time=True)
    assert isinstance(only, WholeVideoDenoiser)
    x = video(2, 4, 8, 8)
    assert torch.equal(only(x, 0.1), make().denoise_video(x, 0.1))


def test_sequence_with_a_video_denoiser_is_one() -> None:
    both = in_sequence(IdentityDenoiser(), make(), 0.1)
    assert isinstance(both, VideoDenoiser)
    x = video(1, 3, 8, 8)
    assert torch.equal(both.denoise_video(x, 0.2), x)
    assert torch.equal(both.denoise_video(x, 0.1), make().denoise_video(x, 0.1))
    assert not isinstance(in_sequence(IdentityDenoiser(), IdentityDenoiser(), 0.1), VideoDenoiser)


def test_small_video_network_does_a_tenth_of_the_full_one() -> None:
    assert variant_shape("video-lite").flop_per_pixel < 0.12 * variant_shape("ffdnet").flop_per_pixel
    assert FfdnetDenoiser(WEIGHTS, CPU)(video(2, 8, 8), 0.1).shape == (2, 8, 8)
