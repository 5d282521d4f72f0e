"""All 3×3 convolutions of a network as one unit, in several ways, of which the fastest on a device is taken.

The seam is the whole stack: features in, channels last and in the precision of the network, features out likewise. What
comes before it and after it is the same for all ways. Each way must agree with the plain one before it is timed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from sci_stream.errors import ConfigError
from sci_stream.recon.backend.transfers import Stopwatch

Stack = Callable[[torch.Tensor], torch.Tensor]
"""(N, C, h, w), channels last, in the dtype of the first kernel → (N, C', h, w)."""

CHOICE = "SCI_STREAM_NETWORK_STACK"
"""Environment variable that names a way, or ``all``; without it those of `TRIED_AT_START` are tried."""

# Eight frames of 256×256 pixels at half resolution.
_TRIAL_IMAGES, _TRIAL_SIDE = 8, 128
_CALLS = 20

# Shapes of features that a compiled stack is specialised to: chunks of frames and of temporal frequencies, of engines
# of several calibrations. torch's own limit, 8, would silently end in uncompiled calls.
_MAX_SHAPES = 64


Convolve = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]
"""(features, kernel, bias, whether a ReLU follows) → features in the kernel's dtype, channels last."""

# Channel count that the matrix units of a GPU need in 16 bits; other multiples use a slower path.
_EIGHT = 8

ROUNDING_TOLERANCE = 2e-2
"""Relative error up to which two implementations agree, given sums of 576 products rounded to 16 bits in each layer."""
# A faulty kernel may read memory that happens to be right once: each trial overwrites freed memory with NaN.
_TRIALS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """Kernels, (C_out, C_in, 3, 3), and biases, (C_out,), on the device, ReLU between them."""

    kernels: Sequence[torch.Tensor]
    biases: Sequence[torch.Tensor]

    @property
    def flop_per_pixel(self) -> float:
        """Operations for each pixel of the features."""
        return sum(2.0 * kernel.numel() for kernel in self.kernels)


@dataclass(frozen=True, slots=True)
class StackTrial:
    """One way: milliseconds of a call on `trial_features` and FLOP/s, or why it is not available."""

    way: str
    ms: float | None = None
    flop_per_s: float | None = None
    why_not: str = ""

    def __str__(self) -> str:
        """Return it in words."""
        if self.ms is None or self.flop_per_s is None:
            return f"{self.way}: {self.why_not}"
        return f"{self.way}: {self.ms:.3g} ms, {self.flop_per_s / 1e12:.3g} TFLOP/s"


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
    before each of several trials: allocators reuse first the memory that was freed last.
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


def in_layers(kernels: Sequence[torch.Tensor], biases: Sequence[torch.Tensor], way: Convolve = convolve) -> Stack:
    """Return the stack that does one layer after the other; gradients pass with the default."""
    last = len(kernels) - 1

    def run(h: torch.Tensor) -> torch.Tensor:
        for n, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
            h = way(h, kernel, bias, n < last)
        return h

    return run


def _plain(layers: Layers) -> Stack:
    return in_layers(layers.kernels, layers.biases, convolve_padded)


def _cudnn(layers: Layers) -> Stack:
    """Bias and ReLU in cuDNN's convolution: features pass through memory once a layer, not three times."""
    kernel, bias = layers.kernels[len(layers.kernels) // 2], layers.biases[len(layers.kernels) // 2]
    features = trial_features(layers, channels=kernel.shape[1])
    if not agrees_with_plain(convolve_fused, features, kernel, bias):
        raise RuntimeError("cuDNN's fused convolution is missing or differs from the plain one")
    return in_layers(layers.kernels, layers.biases, convolve_fused)


def _compiled(layers: Layers) -> Stack:
    """Compile by torch, which takes minutes for each shape of features when it is first seen; cached on disk."""
    # Our own graphs hold the stack with all else; one of its own would be a copy in and a copy out.
    return _compile(layers, mode="max-autotune-no-cudagraphs")


def _tensorrt(layers: Layers) -> Stack:
    """Compile by TensorRT, where the package ``torch_tensorrt`` is installed."""
    importlib.import_module("torch_tensorrt")
    return _compile(layers, backend="tensorrt")


def _compile(layers: Layers, **how: Any) -> Stack:
    config: Any = importlib.import_module("torch._dynamo.config")
    config.recompile_limit = max(config.recompile_limit, _MAX_SHAPES)
    # Not `fullgraph`: under `CaptureGuard` torch compiles nothing, and would raise instead of calling the function.
    compiled: Stack = torch.compile(_plain(layers), dynamic=False, **how)
    return compiled


WAYS: dict[str, Callable[[Layers], Stack]] = {
    "plain": _plain,
    "cudnn": _cudnn,
    "compiled": _compiled,
    "tensorrt": _tensorrt,
}
"""Ways to make a stack of layers; each may raise where it is not available."""

TRIED_AT_START = ("plain", "cudnn")
"""Ways that take no minutes to prepare."""


def ways_to_try() -> tuple[str, ...]:
    """Return the names of the ways to try: as the environment has it (`CHOICE`), the plain one always.

    Raises
    ------
    ConfigError
        If the environment names none of `WAYS`.
    """
    named = os.environ.get(CHOICE, "")
    if not named:
        return TRIED_AT_START
    if named == "all":
        return tuple(WAYS)
    if named not in WAYS:
        raise ConfigError(f"Unknown way in {CHOICE}", expected=f"all or one of {', '.join(WAYS)}", got=repr(named))
    return tuple(dict.fromkeys(("plain", named)))


@torch.inference_mode()
def fastest_stack(layers: Layers, ways: Sequence[str]) -> tuple[Stack, tuple[StackTrial, ...]]:
    """Try ways to run a stack on the device of its layers.

    Returns
    -------
    The fastest of those that agree with the plain one, and the findings on all, the fastest first.
    """
    features = trial_features(layers)
    wanted = _plain(layers)(features)
    tried: list[tuple[StackTrial, Stack | None]] = [_tried(name, layers, features, wanted) for name in ways]
    tried.sort(key=lambda pair: float("inf") if pair[0].ms is None else pair[0].ms)
    return tried[0][1] or _plain(layers), tuple(trial for trial, _ in tried)


def trial_features(layers: Layers, channels: int = 0) -> torch.Tensor:
    """Return random features as the first layer takes them, or of this number of channels."""
    kernel = layers.kernels[0]
    shape = (_TRIAL_IMAGES, channels or kernel.shape[1], _TRIAL_SIDE, _TRIAL_SIDE)
    random = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(kernel.device, kernel.dtype)
    return random.contiguous(memory_format=torch.channels_last)


def _tried(name: str, layers: Layers, features: torch.Tensor, wanted: torch.Tensor) -> tuple[StackTrial, Stack | None]:
    try:
        stack = WAYS[name](layers)
        result = stack(features)
        if result.shape != wanted.shape:
            return StackTrial(name, why_not=f"returns {tuple(result.shape)}, not {tuple(wanted.shape)}"), None
        error = relative_error(result, wanted)
        if not error < ROUNDING_TOLERANCE:  # NaN too
            return StackTrial(name, why_not=f"differs from the plain one by {error:.2g}"), None
        seconds = _seconds(stack, features)
    except Exception as error:  # compilers fail in many ways, all with the same remedy: another way
        # Compilers name themselves in the first line and the cause in the second.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return StackTrial(name, why_not=" ".join(lines[:2]) or type(error).__name__), None
    flop = layers.flop_per_pixel * features[:, 0].numel()
    return StackTrial(name, 1e3 * seconds, flop / seconds), stack


def _seconds(stack: Stack, features: torch.Tensor) -> float:
    """Return the time of a call on a GPU, where many are issued at once, or of the fastest of three on a CPU."""
    watch = Stopwatch(features.device)
    calls, rounds = (_CALLS, 1) if features.device.type == "cuda" else (1, 3)
    stack(features)
    times = []
    for _ in range(rounds):
        watch.lap()
        for _ in range(calls):
            stack(features)
        watch.lap()
        times.append(watch.seconds() / calls)
    return min(times)
