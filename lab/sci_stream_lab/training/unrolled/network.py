r"""A solve of a few stages that is trained as a whole, for any masks, any number of frames and any size.

Each stage is a residual network at half resolution, whose features pass on to the next one, and a data step::

    v, e² ← network(x, change of the last data step, masks, noise; features)
    x     ← v + e²φ (y − Φv) / (Σ e²φ² + n²)

The network also gives e², (B, H, W), the variance of the error that it expects at each pixel of each frame. The data
step is the linear minimum mean square error correction with these variances: the residual of the measurement goes to
the frames that are likely to be wrong, and as much of it as is not noise. With n² = 0 the result fits the measurement
exactly, whatever e² is. Frames exchange features by shifting channels along time, which needs no arithmetic and holds
for any number of frames.

References
----------
Unrolled projections: Z. Meng, S. Jalali, X. Yuan, "GAP-net for snapshot compressive imaging" (2020). Shifted channels:
J. Lin, C. Gan, S. Han, "TSM: Temporal shift module for efficient video understanding", ICCV 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from sci_stream.optics.forward import forward
from sci_stream.recon.denoisers.weights import SUBPIXELS

INPUTS = 3 * SUBPIXELS + 2
"""Channels that a stage takes: x, its last change and the masks by sub-pixels; noise, and error of the start."""
OUTPUTS = 2 * SUBPIXELS
"""Channels that it gives: a correction of x and the logarithm of e² by sub-pixels."""

# The logarithm of e² that the last layer's 0 stands for, and how far it can be from that: 5e-6 to 0.3.
_LOG_MIDDLE, _LOG_RANGE = -6.7, 5.5
# Scale of the two maps among the inputs, as small numbers are learnt slowly, and where they end.
_MAP_SCALE, _MAP_LIMIT = 4.0, 0.5
# Second layers of blocks and last layers start small: a stage that changes little is a better start than a random one.
_BLOCK_GAIN, _LAST_GAIN = 0.1, 0.02
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class UnrolledShape:
    """Numbers of stages, of blocks of two 3×3 convolutions in each, and of channels, in fours."""

    stages: int
    blocks: int
    channels: int

    @property
    def products_per_pixel(self) -> float:
        """Multiplications for a pixel of a frame at full resolution."""
        c = self.channels
        return self.stages * 9 * (INPUTS * c + 2 * self.blocks * c * c + c * OUTPUTS) / SUBPIXELS


class Stage(NamedTuple):
    """Kernels (C_out, C_in, 3, 3) and biases (C_out,) of one stage: first layer, blocks of two, last layer."""

    kernels: Sequence[torch.Tensor]
    biases: Sequence[torch.Tensor]


class Coded(NamedTuple):
    """Measurements of N videos of B frames each, with the starts of their solves; the planes of a mosaic are videos.

    ``y`` (N, H, W); ``phi`` (N, B, H, W); ``r_inv`` (N, H, W), 1/Σφ², 0 where nothing valid was measured; ``noise`` and
    ``error``, n² and e_p² of the start, (N, H, W); ``still`` ȳ, (N, H, W); ``start`` x⁰, (N, B, H, W).
    """

    y: torch.Tensor
    phi: torch.Tensor
    r_inv: torch.Tensor
    noise: torch.Tensor
    error: torch.Tensor
    still: torch.Tensor
    start: torch.Tensor


def initial_stages(shape: UnrolledShape, seed: int) -> list[Stage]:
    """Draw weights for layers with ReLU (He et al. 2015), biases zero."""
    generator = torch.Generator().manual_seed(seed)

    def kernel(c_out: int, c_in: int, gain: float) -> torch.Tensor:
        return gain * math.sqrt(2 / (9 * c_in)) * torch.randn((c_out, c_in, 3, 3), generator=generator)

    c, stages = shape.channels, []
    for _ in range(shape.stages):
        gains = (1.0, _BLOCK_GAIN) * shape.blocks
        kernels = [kernel(c, INPUTS, 1.0), *(kernel(c, c, gain) for gain in gains), kernel(OUTPUTS, c, _LAST_GAIN)]
        stages.append(Stage(kernels, [torch.zeros(len(k)) for k in kernels]))
    return stages


def grown(stages: Sequence[Stage], number: int) -> list[Stage]:
    """Return this many stages: the first is the first, each of the others the one at the same part of the way."""
    last = len(stages) - 1
    return [stages[0 if k == 0 else min(last, 1 + (k - 1) * last // max(1, number - 1))] for k in range(number)]


def estimates(coded: Coded, stages: Sequence[Stage], dtype: torch.dtype) -> list[torch.Tensor]:
    """Return x after each stage, (N, B, H, W) each; convolutions in ``dtype``, all else in float32."""
    rows, columns = coded.y.shape[-2:]
    coded = _even(coded)
    n, b, height, width = coded.phi.shape
    scale = coded.r_inv.sqrt()
    maps = torch.stack((coded.noise.sqrt() * scale, coded.error.sqrt()), 1).clamp_max(_MAP_LIMIT)
    maps = F.avg_pool2d(_MAP_SCALE * maps, 2).unsqueeze(1).expand(-1, b, -1, -1, -1)
    known = torch.cat((_blocked(coded.phi * scale.unsqueeze(1)), maps.flatten(0, 1)), 1)
    x, before, features = coded.start, coded.still.unsqueeze(1), None
    results = []
    for stage in stages:
        inputs = torch.cat((_blocked(x), _blocked(x - before), known), 1)
        features, out = _through(stage, inputs.to(dtype, memory_format=torch.channels_last), features, n)
        change, log = F.pixel_shuffle(out.float(), 2).view(n, b, 2, height, width).unbind(2)
        before = x + change
        x = corrected(before, (_LOG_MIDDLE + _LOG_RANGE * torch.tanh(log / _LOG_RANGE)).exp(), coded)
        results.append(x[..., :rows, :columns])
    return results


def corrected(v: torch.Tensor, variance: torch.Tensor, coded: Coded) -> torch.Tensor:
    """Return v corrected by the measurement, given the variance of its error, (N, B, H, W) all."""
    share = variance * coded.phi
    residual = (coded.y - forward(coded.phi, v)) * (coded.r_inv > 0)
    gram = forward(coded.phi, share) + coded.noise
    return v + share * (residual / gram.clamp_min(_TINY)).unsqueeze(1)


def _through(
    stage: Stage, inputs: torch.Tensor, features: torch.Tensor | None, n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a stage's features and outputs, (N·B, C, H/2, W/2) all."""
    (first, *blocks, last), biases = ([v.to(inputs.dtype) for v in values] for values in stage)
    new = F.conv2d(inputs, first, biases[0], padding=1)
    features = new if features is None else features + new
    for i in range(0, len(blocks), 2):
        inner = F.conv2d(_exchanged(features, n), blocks[i], biases[i + 1], padding=1).relu_()
        features = features + F.conv2d(inner, blocks[i + 1], biases[i + 2], padding=1)
    return features, F.conv2d(features, last, biases[-1], padding=1)


def _even(coded: Coded) -> Coded:
    """Repeat the last row and column where their number is odd."""
    odd = coded.y.shape[-1] % 2, coded.y.shape[-2] % 2
    return Coded(*(F.pad(field, (0, odd[0], 0, odd[1]), mode="replicate") for field in coded)) if any(odd) else coded


def _blocked(video: torch.Tensor) -> torch.Tensor:
    """Return sub-pixels as channels, (N, B, H, W) → (N·B, 4, H/2, W/2)."""
    return F.pixel_unshuffle(video.flatten(0, 1).unsqueeze(1), 2)


def _exchanged(features: torch.Tensor, n: int) -> torch.Tensor:
    """Return features with a quarter of the channels of the frame before, and a quarter of the frame after.

    (N·B, C, h, w), channels last. Beyond the first and the last frame they are 0.
    """
    lines = features.permute(0, 2, 3, 1)
    videos = lines.view(n, -1, *lines.shape[1:])
    quarter = videos.shape[-1] // 4
    past, future, same = videos[..., :quarter], videos[..., quarter : 2 * quarter], videos[..., 2 * quarter :]
    nothing = torch.zeros_like(past[:, :1])
    shifted = torch.cat((nothing, past[:, :-1]), 1), torch.cat((future[:, 1:], nothing), 1)
    return torch.cat((*shifted, same), -1).flatten(0, 1).permute(0, 3, 1, 2)
