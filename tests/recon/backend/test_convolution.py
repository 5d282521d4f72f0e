"""Convolutions with ReLU inside equal a convolution and a ReLU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from sci_stream.recon.backend import convolution
from sci_stream.recon.backend.convolution import convolve_relu, fuses_on_cpu


def layer(n: int, inputs: int, outputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return features, (n, inputs, 9, 12), and the kernel and bias of a layer."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(n, inputs, 9, 12, generator=generator)
    kernel = 0.1 * torch.randn(outputs, inputs, 3, 3, generator=generator)
    bias = 0.1 * torch.randn(outputs, generator=generator)
    last = torch.channels_last
    return (
        features.to(dtype, memory_format=last),
        kernel.to(dtype, memory_format=last),
        bias.to(dtype),
    )


@pytest.fixture
def forgotten() -> Iterator[None]:
    fuses_on_cpu.cache_clear()
    yield
    fuses_on_cpu.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "inputs", "outputs"), [(1, 5, 32), (3, 47, 64), (2, 64, 64)])
def test_fused_convolution_equals_the_plain_one(
    dtype: torch.dtype, n: int, inputs: int, outputs: int
) -> None:
    if not fuses_on_cpu(dtype):
        pytest.skip(f"this processor or torch has no convolution with ReLU in {dtype}")
    features, kernel, bias = layer(n, inputs, outputs, dtype)
    plain = F.conv2d(features, kernel, bias, padding=1).relu_()
    with torch.inference_mode():
        fused = convolve_relu(features, kernel, bias)
    assert fused.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(fused, plain)


def test_gradients_are_those_of_the_plain_convolution() -> None:
    layers = [[t.requires_grad_() for t in layer(2, 5, 8, torch.float32)] for _ in range(2)]
    convolve_relu(*layers[0]).square().sum().backward()
    F.conv2d(*layers[1], padding=1).relu().square().sum().backward()
    for one, other in zip(*layers, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("error", [AttributeError, RuntimeError])
def test_missing_operator_leaves_the_plain_convolution(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_args: Any) -> torch.Tensor:
        raise error("no such operator")

    monkeypatch.setattr(convolution, "_by_onednn", missing)
    features, kernel, bias = layer(1, 5, 8, torch.float32)
    with torch.inference_mode():
        found = convolve_relu(features, kernel, bias)
        plain = F.conv2d(features, kernel, bias, padding=1).relu_()
    torch.testing.assert_close(found, plain)


@pytest.mark.usefixtures("forgotten")
def test_operator_that_clips_nothing_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A private operator may change its meaning in another release of torch."""

    def unclipped(features: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.conv2d(features, kernel, bias, padding=1)

    monkeypatch.setattr(convolution, "_by_onednn", unclipped)
    assert not fuses_on_cpu(torch.float32)
