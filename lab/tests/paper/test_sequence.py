"""Two priors in sequence, in the instrument's solve: the first while σ is high, then the second."""

from __future__ import annotations

import pytest
import torch

from sci_stream.ports import Recordable, VideoDenoiser
from sci_stream.recon.algorithms.schedule import sigma_levels
from sci_stream.recon.denoisers.registry import IdentityDenoiser, make_denoiser
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream_lab.paper.sequence import SequenceDenoiser
from sci_stream_testing.denoisers import DenoiserContract

FRAMES = torch.rand(3, 12, 10, generator=torch.Generator().manual_seed(0))


class TemporalMean(IdentityDenoiser):
    """Every frame is the mean of all."""

    name = "temporal-mean"

    def denoise_video(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        assert sigma <= 0.1
        return x.mean(1, keepdim=True).expand_as(x).clone()


class TestSequence(DenoiserContract):
    def make(self, device: torch.device) -> SequenceDenoiser:
        assert device.type == "cpu"
        return SequenceDenoiser(TvDenoiser(), make_denoiser("ffdnet-lite", device), 0.1)


@pytest.mark.parametrize(("iterations", "by_first"), [(10, 5), (4, 2), (3, 1), (1, 0)])
def test_first_prior_gets_its_share_at_any_budget(iterations: int, by_first: int) -> None:
    denoiser = SequenceDenoiser(TvDenoiser(), IdentityDenoiser(), 0.0633)
    changed = [
        not torch.equal(denoiser(FRAMES, s), FRAMES) for s in sigma_levels(0.2, 0.02, iterations)
    ]
    assert changed == [True] * by_first + [False] * (iterations - by_first)


def test_each_prior_denoises_as_if_alone() -> None:
    sequence = SequenceDenoiser(TvDenoiser(), IdentityDenoiser(), 0.1)
    assert sequence.name == "tv+identity"
    assert torch.equal(sequence(FRAMES, 0.11), TvDenoiser()(FRAMES, 0.11))
    assert torch.equal(sequence(FRAMES, 0.1), FRAMES)
    assert not isinstance(sequence, Recordable)


def test_video_denoiser_of_a_sequence_gets_the_whole_video() -> None:
    both = SequenceDenoiser(TvDenoiser(), TemporalMean(), 0.1)
    assert isinstance(both, VideoDenoiser)
    video = FRAMES.unsqueeze(0)
    assert torch.equal(both.denoise_video(video, 0.2), TvDenoiser()(FRAMES, 0.2).unsqueeze(0))
    assert torch.equal(both.denoise_video(video, 0.1), TemporalMean().denoise_video(video, 0.1))
