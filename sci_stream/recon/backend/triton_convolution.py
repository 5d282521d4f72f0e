"""A 3×3 convolution with bias and ReLU as one GPU kernel, features with the channels last.

A matrix product for each of the nine taps: pixels × input channels times input × output channels, in 16 bits on the
matrix units, summed in float32 registers. Features pass through memory once a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl

# Pixels of a program, for all output channels: 128×64 sums are 64 registers of each of 128 threads.
_BLOCK = 128

# Smallest side of a matrix that the matrix units take; fewer channels are filled up with zeros in registers.
_LEAST_CHANNELS = 16


def _convolve(  # noqa: PLR0917 - kernels are called by position
    h: tl.tensor,
    kernel: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    n_pixels: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    C_IN: tl.constexpr,
    C_OUT: tl.constexpr,
    PADDED_IN: tl.constexpr,
    PADDED_OUT: tl.constexpr,
    RECTIFY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Compute all output channels of `BLOCK` pixels of (N, h, w, C) features; kernel (9, C_IN, C_OUT)."""
    pixel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < n_pixels
    column = pixel % width
    row = (pixel // width) % height
    channel = tl.arange(0, PADDED_IN)
    wanted = tl.arange(0, PADDED_OUT)
    total = tl.zeros((BLOCK, PADDED_OUT), dtype=tl.float32)
    for tap in tl.static_range(9):
        down = row + (tap // 3 - 1)
        right = column + (tap % 3 - 1)
        known = inside & (down >= 0) & (down < height) & (right >= 0) & (right < width)
        at = pixel + (tap // 3 - 1) * width + (tap % 3 - 1)
        features = tl.load(
            h + at[:, None] * C_IN + channel[None, :], mask=known[:, None] & (channel < C_IN)[None, :], other=0.0
        )
        weights = tl.load(
            kernel + (tap * C_IN + channel)[:, None] * C_OUT + wanted[None, :],
            mask=(channel < C_IN)[:, None] & (wanted < C_OUT)[None, :],
            other=0.0,
        )
        total = tl.dot(features, weights, total, input_precision="ieee")
    total += tl.load(bias + wanted, mask=wanted < C_OUT, other=0.0).to(tl.float32)[None, :]
    if RECTIFY:
        total = tl.maximum(total, 0.0)
    tl.store(
        out + pixel[:, None] * C_OUT + wanted[None, :],
        total.to(out.dtype.element_ty),
        mask=inside[:, None] & (wanted < C_OUT)[None, :],
    )


_kernel = triton.jit(_convolve)


def padded_channels(channels: int) -> int:
    """Return channels filled up to a power of two that the matrix units take."""
    return max(_LEAST_CHANNELS, int(triton.next_power_of_2(channels)))


def convolve_taps(h: torch.Tensor, taps: torch.Tensor, bias: torch.Tensor, *, rectify: bool) -> torch.Tensor:
    """Convolve features (N, C_in, h, w), channels last, by taps (9, C_in, C_out), all of one device and dtype."""
    count, c_in, height, width = h.shape
    c_out = taps.shape[2]
    h = h.contiguous(memory_format=torch.channels_last)
    out = torch.empty((count, c_out, height, width), dtype=h.dtype, device=h.device, memory_format=torch.channels_last)
    n_pixels = count * height * width
    channels = (c_in, c_out, padded_channels(c_in), padded_channels(c_out))
    grid = (triton.cdiv(n_pixels, _BLOCK),)
    # Triton launches on the current device, wherever the tensors are.
    with torch.cuda.device_of(h):  # type: ignore[no-untyped-call]
        _kernel[grid](h, taps, bias, out, n_pixels, height, width, *channels, rectify, _BLOCK)
    return out


def triton_stack(
    kernels: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a network of 3×3 convolutions with ReLU between them; kernels (C_out, C_in, 3, 3) as for torch."""
    taps = [kernel.permute(2, 3, 1, 0).reshape(9, kernel.shape[1], kernel.shape[0]).contiguous() for kernel in kernels]
    last = len(taps) - 1

    def run(h: torch.Tensor) -> torch.Tensor:
        for n, (own, bias) in enumerate(zip(taps, biases, strict=True)):
            h = convolve_taps(h, own, bias, rectify=n < last)
        return h

    return run
