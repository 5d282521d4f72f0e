"""The convolutions of a network in every way."""

from __future__ import annotations

import itertools

import pytest
import torch

from sci_stream.recon.denoisers.ffdnet import Stack, in_layers
from sci_stream_lab.bench.speed import network_ways
from sci_stream_lab.bench.speed.network_ways import WAYS, Layers, time_ways


@pytest.fixture(autouse=True)
def small_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_ways, "_TRIAL_SIDE", 8)
    monkeypatch.setattr(network_ways, "_TRIAL_IMAGES", 2)


def layers(*channels: int) -> Layers:
    generator = torch.Generator().manual_seed(0)
    pairs = list(itertools.pairwise(channels))
    kernels = [
        torch.randn(out, given, 3, 3, generator=generator) / (3 * given**0.5)
        for given, out in pairs
    ]
    return Layers(kernels, [0.1 * torch.randn(out, generator=generator) for _, out in pairs])


def test_time_ways_gives_rates_or_reasons() -> None:
    found = layers(8, 16, 8)
    by_name = {trial.way: trial for trial in time_ways(found, ("cudnn", "plain"))}
    assert by_name["plain"].ms is not None
    assert by_name["plain"].flop_per_s == pytest.approx(
        found.flop_per_pixel * 2 * 8 * 8 / (by_name["plain"].ms / 1e3)
    )
    if not torch.cuda.is_available():
        assert by_name["cudnn"].why_not
        assert str(by_name["cudnn"]).startswith("cudnn: ")


def test_time_ways_refuses_wrong_results_and_wrong_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(given: Layers) -> Stack:
        plain = in_layers(given.kernels, given.biases)
        return lambda h: plain(h) * 1.1

    def cut(given: Layers) -> Stack:
        plain = in_layers(given.kernels, given.biases)
        return lambda h: plain(h)[:1]

    def broken(_given: Layers) -> Stack:
        return lambda h: torch.full((2, 8, 8, 8), torch.nan, dtype=h.dtype)

    monkeypatch.setattr(
        network_ways, "WAYS", {**WAYS, "wrong": wrong, "cut": cut, "broken": broken}
    )
    trials = time_ways(layers(8, 16, 8), ("wrong", "cut", "plain", "broken"))
    assert trials[0].way == "plain"
    reasons = {trial.way: trial.why_not for trial in trials}
    assert reasons["wrong"].startswith("differs from the plain one by 0.1")
    assert reasons["cut"].startswith("returns (1, 8, 8, 8), not")
    assert reasons["broken"] == "differs from the plain one by nan"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, about its own parts
def test_compiled_network_agrees() -> None:
    """Compiled by torch for this processor; on a GPU the same call compiles for that."""
    (trial,) = time_ways(layers(8, 16, 8), ("compiled",))
    assert trial.ms is not None, trial.why_not


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_fused_convolution_on_a_gpu_agrees_with_the_plain_one() -> None:
    half = layers(8, 64, 64, 8)
    there = Layers(
        [kernel.cuda().half() for kernel in half.kernels],
        [bias.cuda().half() for bias in half.biases],
    )
    (trial,) = time_ways(there, ("cudnn",))
    assert trial.ms is not None, trial.why_not
