"""The unrolled network in training."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sci_stream.recon.algorithms.unrolled import estimates
from sci_stream.recon.denoisers.weights import Stage
from sci_stream_lab.training.learner import Learner, error_of_solves
from sci_stream_lab.training.unrolled.samples import CodedSamples

# Weight of the estimates before the last one, which are results too where time is short.
_EARLY = 0.15


class UnrolledLearner(Learner[CodedSamples, list[Stage]]):
    """Train all stages at once, from these weights."""

    def __init__(self, start: Sequence[Stage], device: torch.device, ema_decay: float) -> None:
        outer = [kernel for stage in start for kernel in (stage.kernels[0], stage.kernels[-1])]
        inner = [kernel for stage in start for kernel in stage.kernels[1:-1]]
        small = [value for stage in start for value in (*stage.biases, stage.step)]
        super().__init__(outer, inner, small, device, ema_decay)
        self._stages = len(start)

    @property
    def _parameters(self) -> list[torch.Tensor]:
        return [*self._outer, *self._inner, *self._biases]

    def _loss(self, samples: CodedSamples) -> torch.Tensor:
        coded, truth = samples
        dtype = torch.bfloat16 if self._bfloat16 else torch.float32
        results = estimates(coded, self._as_stages(self._parameters), dtype)
        errors = torch.stack([(x - truth).square().mean((1, 2, 3)) for x in results])
        losses = error_of_solves(errors).mean(1)
        return losses[-1] + _EARLY * losses[:-1].sum()

    def weights(self) -> list[Stage]:
        """Return a copy of the averaged weights on the host, the result of the training."""
        return self._as_stages([average.to("cpu", copy=True) for average in self._averages])

    def _as_stages(self, values: Sequence[torch.Tensor]) -> list[Stage]:
        n, inner, small = self._stages, len(self._inner) // self._stages, len(self._biases) // self._stages
        outer, middle, rest = values[: 2 * n], values[2 * n : (2 + inner) * n], values[(2 + inner) * n :]
        return [
            Stage(
                (outer[2 * k], *middle[inner * k : inner * (k + 1)], outer[2 * k + 1]),
                rest[small * k : small * (k + 1) - 1],
                rest[small * (k + 1) - 1],
            )
            for k in range(n)
        ]
