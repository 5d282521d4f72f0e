"""The convolutions of a network as one unit, in every way."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys

import pytest
import torch

from sci_stream.errors import ConfigError
from sci_stream.recon.backend.cuda_graph import CaptureGuard
from sci_stream.recon.denoisers import network_stack
from sci_stream.recon.denoisers.network_stack import (
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


@pytest.mark.parametrize(("named", "ways"), [("", TRIED_AT_START), ("triton", ("plain", "triton")), ("all", WAYS)])
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


_INTERPRETED = """
import torch
from sci_stream.recon.backend.triton_convolution import triton_stack
from sci_stream.recon.denoisers.network_stack import in_layers
from tests.recon.denoisers.test_network_stack import layers
for channels in ((8, 64, 8), (5, 24, 4)):
    found = layers(*channels)
    h = torch.randn(2, channels[0], 9, 7)
    torch.testing.assert_close(
        triton_stack(found.kernels, found.biases)(h), in_layers(found.kernels, found.biases)(h), rtol=1e-4, atol=1e-4
    )
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_interpreted_convolution_equals_torch() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", _INTERPRETED], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr


_COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from sci_stream.recon.backend import triton_convolution as own
for c_in, c_out, rectify in ((8, 64, True), (64, 64, True), (64, 8, False)):
    signature = dict.fromkeys(("h", "kernel", "bias", "out"), "*fp16")
    signature |= dict.fromkeys(("n_pixels", "height", "width"), "i32")
    constants = {"C_IN": c_in, "C_OUT": c_out, "PADDED_IN": own.padded_channels(c_in)}
    constants |= {"PADDED_OUT": own.padded_channels(c_out), "RECTIFY": rectify, "BLOCK": own._BLOCK}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=own._kernel, signature=signature, constexprs=constants, attrs={})
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert made.asm["cubin"]
    assert "wgmma" in made.asm["ptx"] or "mma.sync" in made.asm["ptx"], "the matrix units are not used"
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_convolution_compiles_for_the_matrix_units_without_a_gpu() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", _COMPILED], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("way", ["cudnn", "triton"])
def test_way_on_a_gpu_agrees_with_the_plain_one(way: str) -> None:
    half = layers(8, 64, 64, 8)
    there = Layers([kernel.cuda().half() for kernel in half.kernels], [bias.cuda().half() for bias in half.biases])
    trial = fastest_stack(there, (way,))[1][0]
    assert trial.ms is not None, trial.why_not
