"""Ways to run the 3×3 convolutions of a network, timed on a device; the product has the faster of
the first two.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sci_stream.recon.denoisers.ffdnet import Stack, fused_layers, in_layers, stack_seconds

# Eight frames of 256×256 pixels at half resolution.
_TRIAL_IMAGES, _TRIAL_SIDE = 8, 128

# Relative error up to which two ways agree, given sums of 576 products rounded to 16 bits in each
# layer.
_ROUNDING_TOLERANCE = 2e-2


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
class WayTrial:
    """One way: milliseconds of a call on `trial_features` and FLOP/s,
    or why it is not available.
    """

    way: str
    ms: float | None = None
    flop_per_s: float | None = None
    why_not: str = ""

    def __str__(self) -> str:
        """Return it in words."""
        if self.ms is None or self.flop_per_s is None:
            return f"{self.way}: {self.why_not}"
        return f"{self.way}: {self.ms:.3g} ms, {self.flop_per_s / 1e12:.3g} TFLOP/s"


def _plain(layers: Layers) -> Stack:
    return in_layers(layers.kernels, layers.biases)


def _cudnn(layers: Layers) -> Stack:
    """Bias and ReLU in cuDNN's convolution: features pass through memory once a layer, not three
    times.
    """
    return fused_layers(layers.kernels, layers.biases)


def _compiled(layers: Layers) -> Stack:
    """Compile by torch, which takes minutes for each shape of features when it is first seen;
    cached on disk.
    """
    return _compile(layers, mode="max-autotune-no-cudagraphs")


def _tensorrt(layers: Layers) -> Stack:
    """Compile by TensorRT, where the package ``torch_tensorrt`` is installed."""
    importlib.import_module("torch_tensorrt")
    return _compile(layers, backend="tensorrt")


def _compile(layers: Layers, **how: Any) -> Stack:
    compiled: Stack = torch.compile(_plain(layers), dynamic=False, **how)
    return compiled


WAYS: dict[str, Callable[[Layers], Stack]] = {
    "plain": _plain,
    "cudnn": _cudnn,
    "compiled": _compiled,
    "tensorrt": _tensorrt,
}
"""Ways to make a stack of layers; each may raise where it is not available."""


@torch.inference_mode()
def time_ways(layers: Layers, ways: Sequence[str] = tuple(WAYS)) -> tuple[WayTrial, ...]:
    """Time ways to run a stack on the device of its layers, each compared with the plain one first.

    Returns
    -------
    The fastest first, those that are not available last.
    """
    features = trial_features(layers)
    wanted = _plain(layers)(features)
    trials = [_tried(name, layers, features, wanted) for name in ways]
    return tuple(sorted(trials, key=lambda trial: float("inf") if trial.ms is None else trial.ms))


def trial_features(layers: Layers) -> torch.Tensor:
    """Return random features as the first layer takes them."""
    kernel = layers.kernels[0]
    shape = (_TRIAL_IMAGES, kernel.shape[1], _TRIAL_SIDE, _TRIAL_SIDE)
    random = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(
        kernel.device, kernel.dtype
    )
    return random.contiguous(memory_format=torch.channels_last)


def _tried(name: str, layers: Layers, features: torch.Tensor, wanted: torch.Tensor) -> WayTrial:
    try:
        stack = WAYS[name](layers)
        result = stack(features)
        if result.shape != wanted.shape:
            return WayTrial(
                name, why_not=f"returns {tuple(result.shape)}, not {tuple(wanted.shape)}"
            )
        error = float(
            torch.linalg.vector_norm(result.float() - wanted.float())
            / torch.linalg.vector_norm(wanted)
        )
        if not error < _ROUNDING_TOLERANCE:  # NaN too
            return WayTrial(name, why_not=f"differs from the plain one by {error:.2g}")
        seconds = _seconds(stack, features)
    except Exception as error:  # compilers fail in many ways, all with the same remedy: another way
        # Compilers name themselves in the first line and the cause in the second.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return WayTrial(name, why_not=" ".join(lines[:2]) or type(error).__name__)
    flop = layers.flop_per_pixel * features[:, 0].numel()
    return WayTrial(name, 1e3 * seconds, flop / seconds)


def _seconds(stack: Stack, features: torch.Tensor) -> float:
    """Return the time of a call on a GPU, where many are issued at once, or of the fastest of three
    on a CPU.
    """
    if features.device.type == "cuda":
        return stack_seconds(stack, features)
    return min(stack_seconds(stack, features, calls=1) for _ in range(3))
