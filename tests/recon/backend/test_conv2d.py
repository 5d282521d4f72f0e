"""One convolution layer in its implementations for each device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sci_stream.recon.backend.network_stack import (
    agrees_with_plain,
    convolve,
    convolve_fused,
    convolve_mixed,
    convolve_padded,
    pad_channels,
)


def _layer(channels_in: int, channels_out: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    h = torch.rand(2, channels_in, 6, 5, generator=generator).contiguous(memory_format=torch.channels_last)
    kernel = 0.2 * torch.randn(channels_out, channels_in, 3, 3, generator=generator)
    return h, kernel, torch.randn(channels_out, generator=generator)


@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize(("channels_in", "channels_out"), [(5, 64), (64, 4), (8, 8), (1, 9)])
def test_padded_channels_change_nothing(channels_in: int, channels_out: int, rectify: bool) -> None:
    h, kernel, bias = _layer(channels_in, channels_out)
    padded = pad_channels(kernel, bias)
    assert padded[0].shape[0] % 8 == padded[0].shape[1] % 8 == 0
    result = convolve_padded(h, *padded, rectify)
    torch.testing.assert_close(result[:, :channels_out], convolve(h, kernel, bias, rectify))
    assert not result[:, channels_out:].any()


def test_features_are_converted_to_kernel_precision() -> None:
    h, kernel, bias = _layer(8, 8)
    assert convolve_mixed(h, kernel.bfloat16(), bias.bfloat16(), True).dtype is torch.bfloat16
    assert convolve_mixed(h.bfloat16(), kernel, bias, True).dtype is torch.float32


def test_agrees_with_plain_accepts_only_correct_results() -> None:
    layer = _layer(8, 8)

    def refuses(*_layer: object) -> torch.Tensor:
        raise RuntimeError("not supported")

    assert agrees_with_plain(convolve_padded, *layer)
    assert not agrees_with_plain(lambda *a: convolve_padded(*a) + 0.1, *layer)
    assert not agrees_with_plain(lambda *a: convolve_padded(*a).index_fill(0, torch.tensor(0), torch.nan), *layer)
    assert not agrees_with_plain(refuses, *layer)


class _FillsWithNan(TorchDispatchMode):
    """Notes the shape of the last tensor that was filled with NaN, until another operation."""

    def __init__(self) -> None:
        super().__init__()
        self.last: torch.Size | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        poisons = func is torch.ops.aten.full_like.default and args[1] != args[1]
        self.last = out.shape if poisons else None
        return out


def test_trial_fills_freed_memory_with_nan() -> None:
    """A kernel that computes 0·output must meet NaN in the trial, not in the first snapshot that leaves one behind."""
    h, kernel, bias = _layer(8, 8)
    poisoned: list[bool] = []

    def way(h: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor, rectify: bool) -> torch.Tensor:
        poisoned.append(mode.last == torch.Size((2, 8, 6, 5)))
        return convolve_padded(h, kernel, bias, rectify)

    with _FillsWithNan() as mode:
        assert agrees_with_plain(way, h, kernel, bias)
    assert len(poisoned) > 1
    assert all(poisoned)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("channels_in", "channels_out"), [(8, 64), (64, 64), (64, 8)])
def test_fused_convolution_equals_the_plain_one(channels_in: int, channels_out: int) -> None:
    h, kernel, bias = (value.to("cuda", torch.float16) for value in _layer(channels_in, channels_out))
    fused, plain = convolve_fused(h, kernel, bias, True), convolve_padded(h, kernel, bias, True)
    torch.testing.assert_close(fused, plain, rtol=1e-2, atol=1e-2)
