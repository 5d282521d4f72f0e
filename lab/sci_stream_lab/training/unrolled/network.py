"""The stages that a training begins with; `sci_stream.recon.algorithms.unrolled` is the network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sci_stream.recon.denoisers.weights import (
    STAGE_INPUTS,
    STAGE_OUTPUTS,
    SUBPIXELS,
    FfdnetWeights,
    Stage,
)

# Multiple of the error of the start that σ is in the first stage and the last, and α, as a training
# begins.
_FIRST_SIGMA, _LAST_SIGMA, _RELAXATION = 1.4, 0.84, 1.5
# The last layer starts small where it is random: a stage that changes little is a better start.
_LAST_GAIN = 0.02


@dataclass(frozen=True, slots=True)
class UnrolledShape:
    """Numbers of stages, of 3×3 convolutions in each and of channels between these, even."""

    stages: int
    layers: int
    channels: int

    @classmethod
    def of(cls, stages: Sequence[Stage]) -> UnrolledShape:
        """Return the shape of stages."""
        return cls(len(stages), len(stages[0].kernels), len(stages[0].biases[0]))

    @property
    def memory(self) -> int:
        """Channels that a stage passes on, those beyond the frame network's."""
        return self.channels // 2

    @property
    def convolutions(self) -> tuple[tuple[int, int], ...]:
        """Channels in and out of each layer of a stage."""
        first, between = STAGE_INPUTS + self.memory, [self.channels] * (self.layers - 1)
        return tuple(itertools.pairwise((first, *between, STAGE_OUTPUTS)))

    @property
    def n_parameters(self) -> int:
        """Kernel entries and biases, log(σ/error) and α."""
        return self.stages * (
            sum(9 * c_in * c_out + c_out for c_in, c_out in self.convolutions) + 2
        )

    @property
    def flop_per_pixel(self) -> float:
        """Multiplications and additions of the convolutions for a pixel of a frame at full
        resolution.
        """
        return (
            self.stages * sum(2 * 9 * c_in * c_out for c_in, c_out in self.convolutions) / SUBPIXELS
        )


def initial_stages(
    shape: UnrolledShape, seed: int, frame_network: FfdnetWeights | None = None
) -> list[Stage]:
    """Draw weights for layers with ReLU (He et al. 2015), biases zero.

    Parameters
    ----------
    frame_network
        A network of as many layers and half as many channels that predicts the noise. Each stage
        then is at first an iteration with it, and the other channels have no effect on the result
        until they are trained.
    """
    generator = torch.Generator().manual_seed(seed)
    stages = []
    for k in range(shape.stages):
        kernels, biases = [], []
        for n, (c_in, c_out) in enumerate(shape.convolutions):
            gain = _LAST_GAIN if n == shape.layers - 1 else 1.0
            kernel = (
                gain
                * math.sqrt(2 / (9 * c_in))
                * torch.randn((c_out, c_in, 3, 3), generator=generator)
            )
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
    """Return this many stages: the first is the first, each of the others the one at the same part
    of the way.
    """
    last = len(stages) - 1
    return [
        stages[0 if k == 0 else min(last, 1 + (k - 1) * last // max(1, number - 1))]
        for k in range(number)
    ]
