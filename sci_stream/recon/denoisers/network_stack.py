"""All convolutions of a network as one unit, in several ways, of which the fastest on a device is taken.

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

from sci_stream.errors import ConfigError
from sci_stream.recon.backend.transfers import Stopwatch
from sci_stream.recon.denoisers.conv2d import (
    ROUNDING_TOLERANCE,
    Convolve,
    agrees_with_plain,
    convolve,
    convolve_fused,
    convolve_padded,
    relative_error,
)

Stack = Callable[[torch.Tensor], torch.Tensor]
"""(N, C, h, w), channels last, in the dtype of the first kernel → (N, C', h, w)."""

CHOICE = "SCI_STREAM_NETWORK_STACK"
"""Environment variable that names a way, or ``all``; without it those of `TRIED_AT_START` are tried."""

# Eight frames of 256×256 pixels at half resolution.
_TRIAL_IMAGES, _TRIAL_SIDE = 8, 128
_CALLS = 20

# Shapes of features that a compiled stack is specialised to: chunks of frames and of temporal frequencies, of engines
# of several calibrations. torch's own limit, 8, would silently end in uncompiled calls.
_MOST_SHAPES = 64


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


def _triton(layers: Layers) -> Stack:
    """Use our own kernel, once for each layer."""
    triton_stack: Callable[..., Stack] = importlib.import_module(
        "sci_stream.recon.backend.triton_convolution"
    ).triton_stack
    return triton_stack(layers.kernels, layers.biases)


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
    config.recompile_limit = max(config.recompile_limit, _MOST_SHAPES)
    # Not `fullgraph`: under `CaptureGuard` torch compiles nothing, and would raise instead of calling the function.
    compiled: Stack = torch.compile(_plain(layers), dynamic=False, **how)
    return compiled


WAYS: dict[str, Callable[[Layers], Stack]] = {
    "plain": _plain,
    "cudnn": _cudnn,
    "triton": _triton,
    "compiled": _compiled,
    "tensorrt": _tensorrt,
}
"""Ways to make a stack of layers; each may raise where it is not available."""

TRIED_AT_START = ("plain", "cudnn", "triton")
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
    The fastest of those that agree with the plain one, and what was found of each, the fastest first.
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
        found = stack(features)
        if found.shape != wanted.shape:
            return StackTrial(name, why_not=f"returns {tuple(found.shape)}, not {tuple(wanted.shape)}"), None
        error = relative_error(found, wanted)
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
    found = []
    for _ in range(rounds):
        watch.lap()
        for _ in range(calls):
            stack(features)
        watch.lap()
        found.append(watch.seconds() / calls)
    return min(found)
