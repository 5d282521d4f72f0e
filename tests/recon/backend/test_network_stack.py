"""The convolutions of a network as one unit, in every way."""

from __future__ import annotations

import itertools

import pytest
import torch

from sci_stream.errors import ConfigError
from sci_stream.recon.backend import network_stack
from sci_stream.recon.backend.cuda_graph import CaptureGuard
from sci_stream.recon.backend.network_stack import (
    CHOICE,
    TRIED_AT_START,
    WAYS,
    Layers,
    Stack,
    fastest_stack,
    in_layers,
    trial_features,
    ways_to_try,
)


@pytest.fixture(autouse=True)
def small_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_stack, "_TRIAL_SIDE", 8)
    monkeypatch.setattr(network_stack, "_TRIAL_IMAGES", 2)


def layers(*channels: int) -> Layers:
    generator = torch.Generator().manual_seed(0)
    pairs = list(itertools.pairwise(channels))
    kernels = [torch.randn(out, given, 3, 3, generator=generator) / (3 * given**0.5) for given, out in pairs]
    return Layers(kernels, [0.1 * torch.randn(out, generator=generator) for _, out in pairs])


def test_fastest_stack_agrees_and_rejected_ones_have_reasons() -> None:
    found = layers(8, 16, 8)
    stack, trials = fastest_stack(found, TRIED_AT_START)
    features = trial_features(found)
    torch.testing.assert_close(stack(features), in_layers(found.kernels, found.biases)(features))
    by_name = {trial.way: trial for trial in trials}
    assert by_name["plain"].ms is not None
    assert by_name["plain"].flop_per_s == pytest.approx(found.flop_per_pixel * 2 * 8 * 8 / (by_name["plain"].ms / 1e3))
    if not torch.cuda.is_available():
        assert by_name["cudnn"].why_not.startswith("cuDNN's fused convolution is missing")
        assert "cudnn: cuDNN" in str(by_name["cudnn"])


def test_fastest_stack_refuses_wrong_results_and_wrong_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(given: Layers) -> Stack:
        plain = in_layers(given.kernels, given.biases)
        return lambda h: plain(h) * 1.1

    def cut(given: Layers) -> Stack:
        plain = in_layers(given.kernels, given.biases)
        return lambda h: plain(h)[:1]

    def broken(_given: Layers) -> Stack:
        return lambda h: torch.full((2, 8, 8, 8), torch.nan, dtype=h.dtype)

    monkeypatch.setattr(network_stack, "WAYS", {**WAYS, "wrong": wrong, "cut": cut, "broken": broken})
    _, trials = fastest_stack(layers(8, 16, 8), ("plain", "wrong", "cut", "broken"))
    assert trials[0].way == "plain"
    reasons = {trial.way: trial.why_not for trial in trials}
    assert reasons["wrong"].startswith("differs from the plain one by 0.1")
    assert reasons["cut"].startswith("returns (1, 8, 8, 8), not")
    assert reasons["broken"] == "differs from the plain one by nan"


@pytest.mark.parametrize(("named", "ways"), [("", TRIED_AT_START), ("compiled", ("plain", "compiled")), ("all", WAYS)])
def test_ways_to_try_are_those_of_the_environment(
    named: str, ways: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHOICE, named)
    assert ways_to_try() == tuple(ways)


def test_ways_to_try_refuse_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, "fastest")
    with pytest.raises(ConfigError, match=CHOICE):
        ways_to_try()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, about its own parts
def test_compiled_stack_agrees_and_passes_the_capture_guard() -> None:
    """Compiled by torch for this processor; on a GPU the same call compiles for that."""
    found = layers(8, 16, 8)
    stack, trials = fastest_stack(found, ("compiled",))
    assert trials[0].ms is not None, trials[0].why_not
    features = trial_features(found)
    with torch.inference_mode(), CaptureGuard():
        guarded = stack(features)
    torch.testing.assert_close(guarded, in_layers(found.kernels, found.biases)(features), rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_way_on_a_gpu_agrees_with_the_plain_one() -> None:
    half = layers(8, 64, 64, 8)
    there = Layers([kernel.cuda().half() for kernel in half.kernels], [bias.cuda().half() for bias in half.biases])
    trial = fastest_stack(there, ("cudnn",))[1][0]
    assert trial.ms is not None, trial.why_not
