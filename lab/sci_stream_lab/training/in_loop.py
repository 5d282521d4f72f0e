"""Training of a network of frames in the loop: through all iterations of the solve that will use
it.

As a denoiser of white noise, a network learns the look of images. In a solve it removes other
errors: motion in the wrong frames, patterns of the masks, rests of the iterations before. Here it
is trained on the error of the result, behind masks of each class. Gradients pass through
`sci_stream.recon.engine.Engine` as it is; nothing of the solve is written a second time.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from sci_stream.model import BayerPhase
from sci_stream.recon.algorithms.noise_level import Sigma, on_device
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.ffdnet import (
    FfdnetDenoiser,
    Stack,
    denoised_subpixels,
    frame_input,
    in_layers,
    mosaic_sigma,
    network_sigma,
    with_level,
)
from sci_stream.recon.denoisers.weights import FfdnetWeights
from sci_stream.recon.settings import SolverSettings, default_settings
from sci_stream_lab.training.learner import FrameLearner, error_of_solves, run_network
from sci_stream_lab.training.unrolled.data import CodedScenes
from sci_stream_lab.training.unrolled.samples import (
    SHORT,
    SHORT_SHARE,
    WARM_SHARE,
    StartedSolve,
    StartOf,
    draw_solve,
)

# Iterations of the solves, and how likely they are: any may be the last where time is short.
# Chosen, not tuned.
_ITERATIONS, _LIKELY = (4, 8, 12, 16, 24), (0.1, 0.2, 0.45, 0.15, 0.1)
# Weight of the estimates after a third and two thirds of them.
_EARLY = 0.1


class LearningDenoiser:
    """FFDNet whose layers are replaced in every step; see `sci_stream.ports.LocalDenoiser`."""

    name, takes_relative = "in training", True

    def __init__(self) -> None:
        self.stack: Stack | None = None
        self.gives_noise, self.dtype = True, torch.float32

    def __call__(
        self, x: torch.Tensor, sigma: Sigma, relative: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Denoise (N, H, W), H and W even, or mosaics, (4, N, h, w). Gradients pass."""
        if self.stack is None:
            # A start is drawn before the network is known: it keeps the first guess of pixels
            # that no mask opens.
            return x.clone()
        if x.ndim == 4:
            planes = x.transpose(0, 1)
            inputs = with_level(planes, mosaic_sigma(on_device(sigma, x), relative))
            network = denoised_subpixels
        else:
            level = network_sigma(on_device(sigma, x), relative, len(x))
            inputs = frame_input(x.unsqueeze(1), level)
            network = run_network
        images = network(inputs, self.stack, gives_noise=self.gives_noise, dtype=self.dtype)
        return images.transpose(0, 1).reshape(x.shape)

    def for_mosaic(self, _bayer: BayerPhase) -> LearningDenoiser:
        """Return itself; see `sci_stream.ports.MosaicDenoiser`."""
        return self


class SolvesToLearnFrom(NamedTuple):
    """Solves of this many iterations with a denoiser in training."""

    solves: list[StartedSolve]
    iterations: int
    denoiser: LearningDenoiser


class LoopData(CodedScenes[SolvesToLearnFrom, SolvesToLearnFrom]):
    """Solves that can begin, of scenes of ``settings.patch_px``."""

    def _draw(self, rng: np.random.Generator, number: int, n_frames: int) -> SolvesToLearnFrom:
        if rng.random() < SHORT_SHARE:
            iterations = int(rng.choice(SHORT))
            warm_share = 1.0
        else:
            iterations = int(rng.choice(_ITERATIONS, p=_LIKELY))
            warm_share = WARM_SHARE
        denoiser = LearningDenoiser()
        start_of = StartOf(denoiser, self._solver(iterations), self._device, self._bayer)
        draw = partial(
            draw_solve,
            *(rng, self._scenes, self._measured, start_of),
            n_frames=n_frames,
            size=self._settings.patch_px,
            warm_share=warm_share,
        )
        solves = [draw() for _ in range(number)]
        return SolvesToLearnFrom(solves, iterations, denoiser)

    def _batch(self, _rng: np.random.Generator, drawn: SolvesToLearnFrom) -> SolvesToLearnFrom:
        return drawn

    def _solver(self, iterations: int) -> SolverSettings:
        settings = default_settings(self._device, self._settings.denoiser)
        return dataclasses.replace(
            settings, iterations=iterations, min_iterations=min(4, iterations)
        )

    def psnr_db(self, weights: FfdnetWeights) -> dict[str, float]:
        """Return the mean PSNR behind masks of each class on held-out clips,
        after 12 iterations.
        """
        mosaic = weights if self._settings.is_mosaic else None
        denoiser = FfdnetDenoiser(weights, self._device, Precision.AUTO, mosaic=mosaic)
        return self._psnr_db(denoiser, self._solver(12))


class LoopLearner(FrameLearner[SolvesToLearnFrom]):
    """Train on the errors of solves."""

    def _loss(self, samples: SolvesToLearnFrom) -> torch.Tensor:
        solves, iterations, denoiser = samples
        denoiser.dtype = torch.bfloat16 if self._bfloat16 else torch.float32
        denoiser.gives_noise = self._gives_noise
        first, last = self._outer
        kernels = [kernel.to(denoiser.dtype) for kernel in (first, *self._inner, last)]
        denoiser.stack = in_layers(kernels, [bias.to(denoiser.dtype) for bias in self._biases])
        early = {iterations // 3, 2 * iterations // 3}
        losses = []
        for engine, measurement, start, truth in solves:
            for k, video in enumerate(engine.solve(measurement, start, iterations), 1):
                if k in early or k == iterations:
                    loss = error_of_solves((video - truth).square().mean())
                    losses.append(loss if k == iterations else _EARLY * loss)
        return torch.stack(losses).sum() / len(solves)
