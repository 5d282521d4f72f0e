r"""A solve of a few stages that is trained as a whole, for any masks, any number of frames and any size.

Each stage is an iteration of GAP (`sci_stream.recon.algorithms.gap`) with a network of its own::

    v, e² ← network(x, σ, change of the last data step, masks, noise, error of the start; memory)
    y_acc ← y + w (y_acc − y + α (y − Φv)),   w = Σe²φ² / (Σe²φ² + n²)
    x     ← v + e²φ (y_acc − Φv) / (Σe²φ² + n²)

and its result is v + e²φ (y − Φv)/(Σe²φ² + n²). The network also gives e², (B, H, W), the variance of the error that it
expects at each pixel of each frame, in units of 2σ². The data step is the linear minimum mean square error correction
with these variances: the residual of the measurement goes to the frames that are likely to be wrong, and as much of it
as is not noise. With n² = 0 the result fits the measurement exactly, whatever e² is. σ is a multiple of the error of
the start, a different one in each stage.

The networks are FFDNets with channels of two kinds. The first half are those of a frame network, from whose weights a
training can begin. The others also see the neighbouring frames, by channels shifted along time between the layers,
which needs no arithmetic and holds for any number of frames, and they are summed up from stage to stage as the memory.

References
----------
Unrolled projections: Z. Meng, S. Jalali, X. Yuan, "GAP-net for snapshot compressive imaging" (2020). Shifted channels:
J. Lin, C. Gan, S. Han, "TSM: Temporal shift module for efficient video understanding", ICCV 2019.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from sci_stream.optics.forward import forward
from sci_stream.recon.denoisers.weights import FRAME_INPUTS, SUBPIXELS, FfdnetWeights

_INPUTS = FRAME_INPUTS + 2 * SUBPIXELS + 2
"""Channels that a stage takes besides the memory.

x and σ as a frame network takes them; the last change and the masks by sub-pixels; noise and error of the start.
"""
_OUTPUTS = 2 * SUBPIXELS
"""Channels that it gives: the error of x, and log(e²/2σ²), by sub-pixels."""

# Multiple of the error of the start that σ is in the first stage and the last, and α, as a training begins.
_FIRST_SIGMA, _LAST_SIGMA, _RELAXATION = 1.4, 0.84, 1.5
# Square of the error below which the start counts as that good, and the highest σ.
_LEAST_ERROR, _MAX_SIGMA = 4e-4, 0.3
# How far log(e²/2σ²) can be from 0.
_LOG_RANGE = 5.5
# Scales of changes in units of the error, and of the maps, among the inputs; where the maps end.
_CHANGE_SCALE, _MAP_SCALE, _MAP_LIMIT = 0.3, 4.0, 0.5
# The last layer starts small where it is random: a stage that changes little is a better start.
_LAST_GAIN = 0.02
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class UnrolledShape:
    """Numbers of stages, of 3×3 convolutions in each and of channels between these, even."""

    stages: int
    layers: int
    channels: int

    @property
    def memory(self) -> int:
        """Channels that a stage passes on, those beyond the frame network's."""
        return self.channels // 2

    @property
    def convolutions(self) -> tuple[tuple[int, int], ...]:
        """Channels in and out of each layer of a stage."""
        return tuple(itertools.pairwise((_INPUTS + self.memory, *[self.channels] * (self.layers - 1), _OUTPUTS)))

    @property
    def products_per_pixel(self) -> float:
        """Multiplications for a pixel of a frame at full resolution."""
        return self.stages * sum(9 * c_in * c_out for c_in, c_out in self.convolutions) / SUBPIXELS


class Stage(NamedTuple):
    """One stage: kernels (C_out, C_in, 3, 3) and biases (C_out,) of its layers; log(σ/error) and α, (2,)."""

    kernels: Sequence[torch.Tensor]
    biases: Sequence[torch.Tensor]
    step: torch.Tensor


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


def initial_stages(shape: UnrolledShape, seed: int, frame_network: FfdnetWeights | None = None) -> list[Stage]:
    """Draw weights for layers with ReLU (He et al. 2015), biases zero.

    Parameters
    ----------
    frame_network
        A network of as many layers and half as many channels that predicts the noise. Each stage then is at first an
        iteration with it, and the other channels have no effect on the result until they are trained.
    """
    generator = torch.Generator().manual_seed(seed)
    stages = []
    for k in range(shape.stages):
        kernels, biases = [], []
        for n, (c_in, c_out) in enumerate(shape.convolutions):
            gain = _LAST_GAIN if n == shape.layers - 1 else 1.0
            kernel = gain * math.sqrt(2 / (9 * c_in)) * torch.randn((c_out, c_in, 3, 3), generator=generator)
            bias = torch.zeros(c_out)
            if frame_network is not None:
                theirs, their_bias = frame_network.kernels[n], frame_network.biases[n]
                rows, columns = theirs.shape[:2]
                kernel[: c_out if n == shape.layers - 1 else rows] = 0.0
                kernel[:rows, :columns], bias[:rows] = theirs, their_bias
            kernels.append(kernel)
            biases.append(bias)
        sigma = _FIRST_SIGMA * (_LAST_SIGMA / _FIRST_SIGMA) ** (k / max(1, shape.stages - 1))
        stages.append(Stage(kernels, biases, torch.tensor([math.log(sigma), _RELAXATION])))
    return stages


def grown(stages: Sequence[Stage], number: int) -> list[Stage]:
    """Return this many stages: the first is the first, each of the others the one at the same part of the way."""
    last = len(stages) - 1
    return [stages[0 if k == 0 else min(last, 1 + (k - 1) * last // max(1, number - 1))] for k in range(number)]


def estimates(coded: Coded, stages: Sequence[Stage], dtype: torch.dtype) -> list[torch.Tensor]:
    """Return the result of each stage, (N, B, H, W) each; convolutions in ``dtype``, all else in float32."""
    rows, columns = coded.y.shape[-2:]
    coded = _even(coded)
    y, phi, noise = coded.y, coded.phi, coded.noise
    error, scale, valid = (coded.error + _LEAST_ERROR).sqrt(), coded.r_inv.sqrt(), coded.r_inv > 0
    maps = _MAP_SCALE * torch.stack((noise.sqrt() * scale, coded.error.sqrt()), 1).clamp_max(_MAP_LIMIT)
    known = torch.cat((_blocked(phi * scale.unsqueeze(1)), _halved(maps, phi.shape[1])), 1)
    sigmas = [(stage.step[0].exp() * error).clamp_max(_MAX_SIGMA).unsqueeze(1) for stage in stages]

    def corrected(v: torch.Tensor, aim: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        """Return v with the share of the residual against ``aim`` that is not noise."""
        share = variance * phi
        return v + share * (valid * (aim - forward(phi, v)) / (forward(phi, share) + noise).clamp_min(_TINY)).unsqueeze(
            1
        )

    x = corrected(coded.start, y, 2 * sigmas[0].square())
    before, y_acc, memory, results = coded.still.unsqueeze(1), y, None, []
    for stage, sigma in zip(stages, sigmas, strict=True):
        change = (x - before) * (_CHANGE_SCALE / error).unsqueeze(1)
        inputs = torch.cat((_blocked(x), _halved(sigma, phi.shape[1]), _blocked(change), known), 1)
        out, memory = _through(stage, inputs.to(dtype), memory, len(phi))
        wrong, log = F.pixel_shuffle(out.float(), 2).view(*phi.shape[:2], 2, *phi.shape[2:]).unbind(2)
        before = v = x - wrong
        variance = 2 * sigma.square() * (_LOG_RANGE * torch.tanh(log / _LOG_RANGE)).exp()
        results.append(corrected(v, y, variance)[..., :rows, :columns])
        gram = forward(phi, variance * phi)
        weight = gram / (gram + noise).clamp_min(_TINY)
        y_acc = y + weight * (y_acc - y + stage.step[1] * (y - forward(phi, v)))
        x = corrected(v, y_acc, variance)
    return results


def _through(
    stage: Stage, inputs: torch.Tensor, memory: torch.Tensor | None, n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a stage's outputs and the memory, (N·B, C, H/2, W/2) both."""
    first, *inner, last = (kernel.to(inputs.dtype) for kernel in stage.kernels)
    biases = [bias.to(inputs.dtype) for bias in stage.biases]
    passed = first.shape[1] - inputs.shape[1]
    if memory is None:
        memory = inputs.new_zeros(len(inputs), passed, *inputs.shape[-2:])
    h = torch.cat((inputs, memory), 1).contiguous(memory_format=torch.channels_last)
    h = F.conv2d(h, first, biases[0], padding=1).relu_()
    for kernel, bias in zip(inner, biases[1:-1], strict=True):
        h = F.conv2d(_exchanged(h, n, passed), kernel, bias, padding=1).relu_()
    return F.conv2d(h, last, biases[-1], padding=1), memory + h[:, -passed:]


def _even(coded: Coded) -> Coded:
    """Repeat the last row and column where their number is odd."""
    odd = coded.y.shape[-1] % 2, coded.y.shape[-2] % 2
    return Coded(*(F.pad(field, (0, odd[0], 0, odd[1]), mode="replicate") for field in coded)) if any(odd) else coded


def _blocked(video: torch.Tensor) -> torch.Tensor:
    """Return sub-pixels as channels, (N, B, H, W) → (N·B, 4, H/2, W/2)."""
    return F.pixel_unshuffle(video.flatten(0, 1).unsqueeze(1), 2)


def _halved(maps: torch.Tensor, n_frames: int) -> torch.Tensor:
    """Return maps at half resolution for all frames, (N, C, H, W) → (N·B, C, H/2, W/2)."""
    return F.avg_pool2d(maps, 2).repeat_interleave(n_frames, 0)


def _exchanged(features: torch.Tensor, n: int, number: int) -> torch.Tensor:
    """Return features whose last ``number`` channels are of the frame before, of the frame after and of the same one.

    3, 3 and 2 of eight; (N·B, C, h, w), channels last. Beyond the first and the last frame they are 0.
    """
    lines = features.permute(0, 2, 3, 1)
    videos = lines.view(n, -1, *lines.shape[1:])
    own, part = lines.shape[-1] - number, 3 * number // 8
    past, future = videos[..., own : own + part], videos[..., own + part : own + 2 * part]
    nothing = torch.zeros_like(past[:, :1])
    shifted = torch.cat((nothing, past[:, :-1]), 1), torch.cat((future[:, 1:], nothing), 1)
    return torch.cat((videos[..., :own], *shifted, videos[..., own + 2 * part :]), -1).flatten(0, 1).permute(0, 3, 1, 2)
