"""Two priors in sequence: the first while σ is high, then the second."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sci_stream.errors import ConfigError
from sci_stream.ports import Denoiser
from sci_stream.recon.algorithms.schedule import AnytimeSchedule, Budget, SigmaSchedule
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.registry import IdentityDenoiser, denoiser_spec, make_denoiser
from sci_stream.recon.denoisers.sequence import SequenceDenoiser
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import load_ffdnet

CPU = torch.device("cpu")
FRAMES = torch.rand(3, 12, 10, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("iterations", "by_first"), [(10, 5), (4, 2), (3, 1), (1, 0)])
def test_first_prior_gets_its_share_at_any_budget(iterations: int, by_first: int) -> None:
    schedule = SigmaSchedule(0.2, 0.02)
    denoiser = SequenceDenoiser(TvDenoiser(), IdentityDenoiser(), schedule.sigma(0.5))
    changed = [not torch.equal(denoiser(FRAMES, s), FRAMES) for s in AnytimeSchedule(schedule, Budget(iterations))]
    assert changed == [True] * by_first + [False] * (iterations - by_first)


def test_each_prior_denoises_as_if_alone() -> None:
    sequence = make_denoiser("tv+ffdnet-lite", CPU, switch_sigma=0.1)
    assert isinstance(sequence, Denoiser)
    assert sequence.name == "tv+ffdnet-lite"
    assert torch.equal(sequence(FRAMES, 0.11), make_denoiser("tv", CPU)(FRAMES, 0.11))
    assert torch.equal(sequence(FRAMES, 0.1), make_denoiser("ffdnet-lite", CPU)(FRAMES, 0.1))


def test_sequence_defaults_come_from_both_priors() -> None:
    tv, lite, both = (denoiser_spec(name) for name in ("tv", "ffdnet-lite", "tv+ffdnet-lite"))
    assert (both.sigma_first, both.sigma_last) == (tv.sigma_first, lite.sigma_last)
    assert both.relaxation == min(tv.relaxation, lite.relaxation)
    assert both.takes_weights


def test_default_switch_is_at_half_the_schedule() -> None:
    sequence, spec = make_denoiser("tv+identity", CPU), denoiser_spec("tv+identity")
    middle = SigmaSchedule(spec.sigma_first, spec.sigma_last).sigma(0.5)
    assert not torch.equal(sequence(FRAMES, middle * 1.01), FRAMES)
    assert torch.equal(sequence(FRAMES, middle * 0.99), FRAMES)


def test_checkpoint_goes_to_the_prior_that_accepts_it(tmp_path: Path) -> None:
    lite, full = (shipped_weights(name) for name in ("ffdnet-lite", "ffdnet"))
    given = tmp_path / "given.safetensors"
    given.write_bytes(lite.read_bytes())
    for name, checkpoint, sigma, expected in (
        ("tv+ffdnet-lite", given, 0.05, lite),
        ("ffdnet-lite+tv", given, 0.2, lite),
        ("ffdnet+ffdnet-lite", given, 0.05, lite),
        ("ffdnet+ffdnet-lite", given, 0.2, full),
        ("ffdnet-lite+ffdnet", given, 0.2, lite),
        ("ffdnet-lite+ffdnet", full, 0.05, full),
    ):
        sequence = make_denoiser(name, CPU, checkpoint, switch_sigma=0.1)
        assert torch.equal(sequence(FRAMES, sigma), FfdnetDenoiser(load_ffdnet(expected), CPU)(FRAMES, sigma)), name
    with pytest.raises(ConfigError, match="takes no weights"):
        make_denoiser("tv+identity", CPU, tmp_path / "some.pth")


@pytest.mark.parametrize("name", ["tv+median", "+tv", "tv+", "tv+tv+tv"])
def test_sequence_of_unknown_or_three_priors_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="two of them joined by"):
        make_denoiser(name, CPU)
