"""Round a network's weights to 16 bits with little loss.

With plain rounding, the published FFDNet weights of one origin lose 0.1 dB in bfloat16 at σ =
6/255, those of another 3 dB: errors of large biases, and errors that the nine taps of a kernel
share, add up over the layers. Both can be avoided at no cost at run time: the output of a ReLU may
be scaled freely, and smooth features depend almost only on the sum of a kernel's taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import torch
from torch import Tensor


class Precision(StrEnum):
    """Arithmetic of a network."""

    AUTO = "auto"
    """16 bits where the device multiplies them faster and the loss is negligible, else float32."""
    FLOAT32 = "float32"
    """Always float32."""
    HALF = "half"
    """16 bits regardless of the loss, also if the device only emulates them."""


def round_network(
    kernels: Sequence[Tensor], biases: Sequence[Tensor], dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    """Return a network of 3×3 convolutions with ReLU between them, in another precision.

    Parameters
    ----------
    kernels, biases
        (C_out, C_in, 3, 3) and (C_out,) float32 of each layer. Not modified.
    dtype
        `torch.bfloat16` or `torch.float16`.

    Returns
    -------
    kernels, biases
        New tensors in ``dtype``.
    """
    exact = scale_to_exact_biases(kernels, biases, dtype)
    return [round_kernel(kernel, dtype) for kernel, _ in exact], [
        bias.to(dtype) for _, bias in exact
    ]


def round_kernel(kernel: Tensor, dtype: torch.dtype) -> Tensor:
    """Round (C_out, C_in, 3, 3) with error diffusion between the taps, which preserves the sum of
    each 3×3 kernel.

    Largest taps first: the smallest ones have the finest steps, so that the remaining error of the
    sum is tiny.
    """
    taps = kernel.flatten(2).double()
    order = taps.abs().argsort(-1, descending=True)
    sorted_taps = taps.gather(-1, order)
    rounded = torch.empty_like(sorted_taps)
    carry = torch.zeros_like(sorted_taps[..., 0])
    for n in range(sorted_taps.shape[-1]):
        wanted = sorted_taps[..., n] + carry
        rounded[..., n] = wanted.to(dtype).double()
        carry = wanted - rounded[..., n]
    return torch.empty_like(taps).scatter_(-1, order, rounded).view(kernel.shape).to(dtype)


def scale_to_exact_biases(
    kernels: Sequence[Tensor], biases: Sequence[Tensor], dtype: torch.dtype
) -> list[tuple[Tensor, Tensor]]:
    """Scale each hidden channel by the fraction of a percent that makes its bias exact in
    ``dtype``.

    ReLU(s·h) = s·ReLU(h) for s > 0: the next layer's kernels divide by the factor, and the network
    is unchanged. Returns kernel and bias of each layer, float64.
    """
    layers = []
    before = torch.ones(kernels[0].shape[1], dtype=torch.float64, device=kernels[0].device)
    for n, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        exact = bias.to(dtype).double()
        factor = exact / bias.double()
        # A bias of zero, or too small to be represented, gives no usable factor; nothing follows
        # the last layer.
        usable = (
            ((factor - 1).abs() < 0.01)
            if n < len(kernels) - 1
            else torch.zeros_like(factor, dtype=torch.bool)
        )
        factor = torch.where(usable, factor, 1.0)
        scaled = kernel.double() * factor[:, None, None, None] / before[None, :, None, None]
        layers.append((scaled, bias.double() * factor))
        before = factor
    return layers
