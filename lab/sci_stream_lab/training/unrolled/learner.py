"""The unrolled network in training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from sci_stream.recon.algorithms.unrolled import estimates
from sci_stream.recon.denoisers.weights import Stage
from sci_stream_lab.training.learner import Learner, error_of_solves
from sci_stream_lab.training.unrolled.samples import CodedSamples

# Weight of the estimates before the last one, which are results too where time is short.
_EARLY = 0.2
# Weight of the distance from a teacher's result, beside that from the truth.
_TAUGHT = 0.3
# Weight of an estimate's roughness, which shows as texture and hardly counts in squared errors; the
# number added to it; the detail below which a scene is smooth; and the share of a sample that must
# be.
_ROUGH, _LEAST_ROUGH, _SMOOTH_BELOW, _LEAST_SMOOTH = 0.8, 1e-3, 0.01, 0.03


def roughness(error: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of an error's mean detail where the scene is smooth, (N,); both (N, B,
    H, W).

    0 where hardly anything is smooth.
    """
    smooth = (F.max_pool2d(_detail(truth).abs(), 5, 1, 2) < _SMOOTH_BELOW).to(error.dtype)
    mean = (_detail(error).abs() * smooth).sum((1, 2, 3)) / (smooth.sum((1, 2, 3)) + 1)
    return torch.where(smooth.mean((1, 2, 3)) > _LEAST_SMOOTH, torch.log(mean + _LEAST_ROUGH), 0.0)


def _detail(video: torch.Tensor) -> torch.Tensor:
    return video - F.avg_pool2d(video, 3, 1, 1, count_include_pad=False)


def _mean_squares(errors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([error.square().mean((1, 2, 3)) for error in errors])


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
        coded, truth, taught = samples
        dtype = torch.bfloat16 if self._bfloat16 else torch.float32
        results = [*estimates(coded, self._as_stages(self._parameters), dtype)]
        errors = [x - truth for x in results]
        losses = error_of_solves(_mean_squares(errors))
        if taught is not None:
            losses = losses + _TAUGHT * error_of_solves(
                _mean_squares([x - taught for x in results])
            )
        losses = (
            losses + _ROUGH * torch.stack([roughness(error, truth) for error in errors])
        ).mean(1)
        return losses[-1] + _EARLY * losses[:-1].sum()

    def weights(self) -> list[Stage]:
        """Return a copy of the averaged weights on the host, the result of the training."""
        return self._as_stages([average.to("cpu", copy=True) for average in self._averages])

    def _as_stages(self, values: Sequence[torch.Tensor]) -> list[Stage]:
        n, inner, small = (
            self._stages,
            len(self._inner) // self._stages,
            len(self._biases) // self._stages,
        )
        outer, middle, rest = (
            values[: 2 * n],
            values[2 * n : (2 + inner) * n],
            values[(2 + inner) * n :],
        )
        return [
            Stage(
                (outer[2 * k], *middle[inner * k : inner * (k + 1)], outer[2 * k + 1]),
                rest[small * k : small * (k + 1) - 1],
                rest[small * (k + 1) - 1],
            )
            for k in range(n)
        ]
