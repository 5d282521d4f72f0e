"""Rounding a network to 16 bits preserves its kernel sums and biases."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.recon.backend.half_precision import (
    round_kernel,
    round_network,
    scale_to_exact_biases,
)

HALVES = [torch.bfloat16, torch.float16]


def _network(seed: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    channels = [5, 6, 8, 4]
    kernels = [
        0.2 * torch.randn(o, i, 3, 3, generator=generator) for i, o in itertools.pairwise(channels)
    ]
    biases = [torch.randn(o, generator=generator) for o in channels[1:]]
    biases[0][2] = 0.0
    return kernels, biases


def _run(h: torch.Tensor, layers: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    for n, (kernel, bias) in enumerate(layers):
        h = F.conv2d(h, kernel, bias, padding=1)
        h = h.relu() if n < len(layers) - 1 else h
    return h


@pytest.mark.parametrize("dtype", HALVES)
@given(seed=st.integers(0, 1000))
def test_scaling_makes_biases_exact_and_keeps_the_network(dtype: torch.dtype, seed: int) -> None:
    kernels, biases = _network(seed)
    layers = scale_to_exact_biases(kernels, biases, dtype)
    for _, bias in layers[:-1]:
        torch.testing.assert_close(bias.to(dtype).double(), bias, rtol=1e-7, atol=0)
    h = torch.rand(1, 5, 7, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    before = [
        (kernel.double(), bias.double()) for kernel, bias in zip(kernels, biases, strict=True)
    ]
    torch.testing.assert_close(_run(h, layers), _run(h, before))


@pytest.mark.parametrize("dtype", HALVES)
@given(seed=st.integers(0, 1000), scale=st.sampled_from([1e-3, 0.1, 3.0]))
def test_rounding_keeps_kernel_sums(dtype: torch.dtype, seed: int, scale: float) -> None:
    kernel = scale * torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(seed))
    handed_on = round_kernel(kernel, dtype)
    assert handed_on.dtype == dtype
    exact_sum = kernel.double().sum((-2, -1))
    error = (handed_on.double().sum((-2, -1)) - exact_sum).abs()
    plain = (kernel.to(dtype).double().sum((-2, -1)) - exact_sum).abs()
    assert float(error.mean()) < 0.25 * float(plain.mean())
    # The remainder is half a step at most, so no tap moves by more than one step of the largest.
    step = torch.finfo(dtype).eps * kernel.abs().amax((-2, -1), keepdim=True)
    assert bool(((handed_on.float() - kernel).abs() <= step).all())


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_is_more_accurate_than_plain_rounding(dtype: torch.dtype) -> None:
    ratios = []
    for seed in range(20):
        kernels, biases = _network(seed)
        smooth = torch.nn.functional.interpolate(
            torch.rand(1, 5, 4, 4, generator=torch.Generator().manual_seed(seed)),
            size=(32, 32),
            mode="bicubic",
        ).double()
        exact = _run(
            smooth, [(k.double(), b.double()) for k, b in zip(kernels, biases, strict=True)]
        )
        ours = _run(
            smooth,
            [
                (k.double(), b.double())
                for k, b in zip(*round_network(kernels, biases, dtype), strict=True)
            ],
        )
        plain = _run(
            smooth,
            [
                (k.to(dtype).double(), b.to(dtype).double())
                for k, b in zip(kernels, biases, strict=True)
            ],
        )
        ratios.append(float((ours - exact).norm() / (plain - exact).norm()))
    assert sum(ratios) / len(ratios) < 0.7


def test_given_weights_are_not_modified() -> None:
    kernels, biases = _network(0)
    before = [t.clone() for t in (*kernels, *biases)]
    round_network(kernels, biases, torch.bfloat16)
    assert all(torch.equal(a, b) for a, b in zip((*kernels, *biases), before, strict=True))
