"""The network in training: parameters, running average, optimisers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, NotRequired, TypedDict

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from sci_stream.recon.backend.device import computes_bfloat16
from sci_stream.recon.denoisers.ffdnet import Stack, denoised_subpixels, in_layers
from sci_stream.recon.denoisers.weights import FfdnetWeights
from sci_stream_lab.training.data import Samples, SamplesT, WeightsT
from sci_stream_lab.training.muon import Muon
from sci_stream_lab.training.variants import NetworkShape

# The last layer starts small: predicting no noise is a better start than predicting random noise.
_LAST_GAIN = 0.1
# The decay of the average is at most (1 + n)/(10 + n) in step n, so that it forgets the initial
# weights sooner.
_EMA_HEAD_START = 10
# Gradients are clipped to this norm, far above the usual one: it protects against a rare bad batch.
_GRADIENT_MOST = 1.0
# Of solves. A mean PSNR is the mean of the logarithm of the mean squared error, here up to 45 dB;
# the error itself, in units of 27 dB, keeps the samples that go wrong from counting for little.
_LEAST_MSE, _MSE_UNIT, _MSE_WEIGHT = 3e-5, 2e-3, 0.3


def initial_weights(shape: NetworkShape, seed: int) -> FfdnetWeights:
    """Draw weights for layers with ReLU (He et al. 2015), biases zero.

    The network predicts the noise.

    Predicting the noise learns faster than predicting the image, which would have to pass through
    all layers.
    """
    generator = torch.Generator().manual_seed(seed)
    kernels, biases = [], []
    for n, (c_in, c_out) in enumerate(shape.convolutions):
        gain = _LAST_GAIN if n == shape.layers - 1 else 1.0
        scale = gain * math.sqrt(2 / (9 * c_in))
        kernels.append(scale * torch.randn((c_out, c_in, 3, 3), generator=generator))
        biases.append(torch.zeros(c_out))
    return FfdnetWeights(tuple(kernels), tuple(biases), gives_noise=True, origin="own")


def error_of_solves(mse: torch.Tensor) -> torch.Tensor:
    """Return the error to minimise of solves with these mean squared errors, element by element."""
    return torch.log(mse + _LEAST_MSE) + _MSE_WEIGHT / _MSE_UNIT * mse


class LearnerState(TypedDict):
    """State of a `Learner`: plain containers of tensors and numbers,
    which a checkpoint can store.
    """

    step: int
    gives_noise: NotRequired[bool]
    parameters: list[torch.Tensor]
    averages: list[torch.Tensor]
    adam: dict[str, Any]
    muon: list[torch.Tensor]
    loss_sum: torch.Tensor
    loss_count: int


class Learner(ABC, Generic[SamplesT, WeightsT]):
    """Train on the error of batches, and average the weights.

    Muon optimises the kernels between layers of equal width, Adam everything else.

    Parameters
    ----------
    outer, inner, biases
        Initial kernels for Adam and for Muon, and biases; copied.
    device
        Device to compute on. Convolutions run in bfloat16 if the device has instructions for it,
        parameters and sums in float32. Measured on one core of an AMD EPYC with AVX512-BF16: 2.3
        times the steps of float32 for ``ffdnet``.
    ema_decay
        Decay of the running average.
    """

    def __init__(
        self,
        outer: Sequence[torch.Tensor],
        inner: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor],
        device: torch.device,
        ema_decay: float,
    ) -> None:
        self.step = 0
        self.device = device
        self._bfloat16 = computes_bfloat16(device)
        self._ema_decay = ema_decay
        self._outer, self._inner, self._biases = (
            [self._parameter(value) for value in values] for values in (outer, inner, biases)
        )
        self._averages = [parameter.detach().clone() for parameter in self._parameters]
        # Muon needs equal shapes, and its authors recommend Adam for the first and the last layer.
        self._muon = Muon(self._inner)
        self._adam = torch.optim.Adam([*self._outer, *self._biases])
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._loss_count = 0

    def _parameter(self, value: torch.Tensor) -> torch.Tensor:
        layout = torch.channels_last if value.ndim == 4 else torch.contiguous_format
        return (
            value.detach()
            .to(self.device, torch.float32, copy=True, memory_format=layout)
            .requires_grad_()
        )

    @property
    @abstractmethod
    def _parameters(self) -> list[torch.Tensor]:
        """All parameters, in the order in which checkpoints have them."""

    @abstractmethod
    def _loss(self, samples: SamplesT) -> torch.Tensor:
        """Return the error to minimise, ()."""

    @abstractmethod
    def weights(self) -> WeightsT:
        """Return a copy of the averaged weights on the host, the result of the training."""

    def learn(self, samples: SamplesT, *, rate: float, kernel_rate: float) -> None:
        """Take one step, with these rates of Adam and Muon."""
        for group in self._adam.param_groups:
            group["lr"] = rate
        for parameter in self._parameters:
            parameter.grad = None
        loss = self._loss(samples)
        loss.backward()  # type: ignore[no-untyped-call]  # not annotated in torch
        torch.nn.utils.clip_grad_norm_(self._parameters, _GRADIENT_MOST)
        self._adam.step()
        self._muon.step(kernel_rate)
        self.step += 1
        decay = min(self._ema_decay, (1 + self.step) / (_EMA_HEAD_START + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(self._averages, [p.detach() for p in self._parameters], 1 - decay)
            self._loss_sum += loss.detach()
        self._loss_count += 1

    def take_loss(self) -> float:
        """Return the mean loss since the last call; NaN without steps."""
        mean = float(self._loss_sum) / self._loss_count if self._loss_count else math.nan
        self._loss_sum.zero_()
        self._loss_count = 0
        return mean

    def state(self) -> LearnerState:
        """Return everything that the next step depends on; not copied."""
        return {
            "step": self.step,
            "parameters": [parameter.detach() for parameter in self._parameters],
            "averages": self._averages,
            "adam": self._adam.state_dict(),
            "muon": self._muon.state(),
            "loss_sum": self._loss_sum,
            "loss_count": self._loss_count,
        }

    def restore(self, state: LearnerState) -> None:
        """Resume from a `state`.

        Raises
        ------
        ValueError
            If the state is of another network. An invalid one makes torch raise anything.
        """
        with torch.no_grad():
            for mine, saved in (
                *zip(self._parameters, state["parameters"], strict=True),
                *zip(self._averages, state["averages"], strict=True),
            ):
                if mine.shape != saved.shape:
                    raise ValueError(
                        f"expected shape {tuple(mine.shape)}, got {tuple(saved.shape)}"
                    )
                mine.copy_(saved)
            self._loss_sum.copy_(state["loss_sum"])
        self._adam.load_state_dict(state["adam"])
        self._muon.restore(state["muon"])
        self._loss_count = int(state["loss_count"])
        self.step = int(state["step"])


class FrameLearner(Learner[SamplesT, FfdnetWeights]):
    """Train an FFDNet, from these weights."""

    def __init__(self, start: FfdnetWeights, device: torch.device, ema_decay: float) -> None:
        first, *inner, last = start.kernels
        super().__init__((first, last), inner, start.biases, device, ema_decay)
        self._gives_noise = start.gives_noise

    @property
    def _parameters(self) -> list[torch.Tensor]:
        first, last = self._outer
        return [first, *self._inner, last, *self._biases]

    def weights(self) -> FfdnetWeights:
        """Return a copy of the averaged weights on the host, the result of the training."""
        values = [average.to("cpu", copy=True).contiguous() for average in self._averages]
        layers = len(self._biases)
        return FfdnetWeights(
            tuple(values[:layers]),
            tuple(values[layers:]),
            gives_noise=self._gives_noise,
            origin="own",
        )

    def state(self) -> LearnerState:
        """Return everything that the next step depends on; not copied."""
        return {**super().state(), "gives_noise": self._gives_noise}

    def restore(self, state: LearnerState) -> None:
        """Resume from a `state`; see `Learner.restore`."""
        super().restore(state)
        self._gives_noise = bool(state["gives_noise"])


class FfdnetLearner(FrameLearner[Samples]):
    """Train as a denoiser.

    The error is the absolute one, not the squared one: errors grow with σ, and squared, the
    noisiest patches would dominate, while the quality of a reconstruction is decided at low σ,
    where it ends.
    """

    def _loss(self, samples: Samples) -> torch.Tensor:
        first, last = self._outer
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bfloat16):
            stack = in_layers([first, *self._inner, last], self._biases)
            denoised = run_network(samples.inputs, stack, gives_noise=self._gives_noise)
        # float32 again: the differences at low σ are below the resolution of bfloat16.
        return F.l1_loss(denoised.float(), samples.truth)


def run_network(
    inputs: torch.Tensor, stack: Stack, *, gives_noise: bool, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return the frames that `denoised_subpixels` of the same arguments makes, (N, 1, H, W)."""
    clean = denoised_subpixels(inputs, stack, gives_noise=gives_noise, dtype=dtype)
    # Several times faster on a processor than `F.pixel_shuffle` from channels last.
    n, _, height, width = clean.shape
    blocks = clean.permute(0, 2, 3, 1).reshape(n, height, width, 2, 2)
    return blocks.transpose(2, 3).reshape(n, 1, 2 * height, 2 * width)
