"""One 3×3 layer of a network, in the fastest implementation for each device."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

Convolve = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]
"""(features, kernel, bias, whether a ReLU follows) → features in the kernel's dtype, channels last."""

# Channel count that the matrix units of a GPU need in 16 bits; other multiples use a slower path.
_EIGHT = 8

ROUNDING_TOLERANCE = 2e-2
"""Relative error up to which two implementations agree, given sums of 576 products rounded to 16 bits in each layer."""
# A faulty kernel may read memory that happens to be right once: each trial overwrites freed memory with NaN.
_TRIALS = 3


def convolve(h: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor, rectify: bool) -> torch.Tensor:
    """Convolve, all in one dtype; gradients pass."""
    h = F.conv2d(h, kernel, bias, padding=1)
    return h.relu_() if rectify else h


def convolve_mixed(h: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor, rectify: bool) -> torch.Tensor:
    """Convolve in the kernel's dtype, for features of any dtype."""
    return convolve(h.to(kernel.dtype), kernel, bias, rectify)


def convolve_padded(h: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor, rectify: bool) -> torch.Tensor:
    """Convolve in the kernel's dtype, with features padded to the kernel's channels; see `pad_channels`."""
    return convolve(_prepared(h, kernel), kernel, bias, rectify)


def convolve_fused(h: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor, rectify: bool) -> torch.Tensor:
    """Like `convolve_padded` with bias and ReLU fused in cuDNN: features pass through memory once, not three times."""
    h = _prepared(h, kernel)
    if not rectify:
        return convolve(h, kernel, bias, rectify)
    return torch.cudnn_convolution_relu(h, kernel, bias, (1, 1), (1, 1), (1, 1), 1)


def _prepared(h: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    missing = kernel.shape[1] - h.shape[1]
    h = h.to(kernel.dtype)
    return F.pad(h, (0, 0, 0, 0, 0, missing)) if missing else h


def pad_channels(kernel: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad a layer with zeros to multiples of eight channels, in and out; the added features are zero."""
    more_out, more_in = -kernel.shape[0] % _EIGHT, -kernel.shape[1] % _EIGHT
    return F.pad(kernel, (0, 0, 0, 0, 0, more_in, 0, more_out)), F.pad(bias, (0, more_out))


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return ‖found − wanted‖₂/‖wanted‖₂."""
    wanted = wanted.float()
    return float(torch.linalg.vector_norm(found.float() - wanted) / torch.linalg.vector_norm(wanted))


def agrees_with_plain(way: Convolve, features: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor) -> bool:
    """Return whether an implementation agrees with the plain one, regardless of the content of its output memory.

    cuDNN computes α·output + convolution with α = 0 and an output that torch leaves uninitialised; a kernel that
    multiplies NaN by 0 would fail only occasionally. So memory of the output's size is filled with NaN and freed right
    before each of several trials: allocators reuse first what was freed last.
    """
    plain = convolve_padded(features, kernel, bias, True)
    try:
        for _ in range(_TRIALS):
            torch.full_like(plain, torch.nan, dtype=features.dtype, memory_format=torch.channels_last)
            if not relative_error(way(features, kernel, bias, True), plain) < ROUNDING_TOLERANCE:  # NaN too
                return False
    except (RuntimeError, AttributeError, TypeError):
        return False
    return True
