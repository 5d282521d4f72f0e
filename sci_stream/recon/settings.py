"""Solver settings, and their defaults by prior and device."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch

from sci_stream.errors import ConfigError
from sci_stream.recon.denoisers.external import DenoiserDefaults
from sci_stream.recon.denoisers.registry import denoiser_spec

# Iterations with the correlated data step. Tuned on twelve sequences: 4 iterations of it give 29.1,
# 30.1 and 30.35 dB after 4, 8 and 12 iterations, none 28.05, 29.5 and 30.1; 6 gain nothing more
# (lab/research/correlated-errors.md).
_CORRELATED_ITERATIONS = 4


@dataclass(frozen=True)
class SolverSettings:
    """Solver settings of a snapshot.

    Parameters
    ----------
    relaxation
        α of `sci_stream.recon.algorithms.gap.gap`, 0 ≤ α < 2.
    iterations, min_iterations
        Iterations, and the fewest under load; 1 ≤ min ≤ iterations.
    sigma_first, sigma_last
        Noise level of the first and the last iteration, 0–1 scale. With a linear start the first is
        lower if the start is better than that, and solves of few iterations end above
        ``sigma_last``; see `sci_stream.recon.initialization.initializer`.
    weigh_noise
        Weight the measurement by its noise: of the calibration, or as
        `sci_stream.recon.noise_estimation` finds it in the snapshot, whichever is larger; see
        `sci_stream.recon.algorithms.gap.data_weight`. False: fit every measured pixel exactly, as
        in the paper.
    along_time
        In every other iteration, denoise the temporal frequencies of groups of frames instead of
        the frames; see `sci_stream.recon.denoisers.temporal`.
    linear_start
        Start a cold solve from the linear MMSE estimate where the scene moves, not from ȳ
        everywhere; see `sci_stream.recon.initialization.lmmse`.
    correlated
        With a linear start, the number of iterations, ≥ 0, with the correlated data step behind
        fine masks; see `sci_stream.recon.algorithms.gap.CorrelatedResidual`. 0: all of them
        project, as in the paper. Behind coarser ones, more in proportion to the squared area of
        their elements.
    local_sigma
        Denoise each pixel in proportion to the estimated error of the start there, if the prior has
        a noise map; see `sci_stream.recon.initialization.error_map.InitialErrorMap.levels`. False:
        σ is the same everywhere.
    warm_start
        Start a snapshot from the video of the preceding one if that predicts it.
    moving_image
        Where the scene moves as one, replace frames by one image that moves; see
        `sci_stream.recon.moving_image`.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    relaxation: float = 1.0
    iterations: int = 40
    min_iterations: int = 4
    sigma_first: float = 50 / 255
    sigma_last: float = 6 / 255
    weigh_noise: bool = True
    along_time: bool = False
    linear_start: bool = False
    correlated: int = 0
    local_sigma: bool = False
    warm_start: bool = False
    moving_image: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.min_iterations <= self.iterations:
            raise ConfigError(
                "The iterations of the solver are inconsistent",
                expected="1 <= min_iterations <= iterations",
                got=f"min_iterations = {self.min_iterations}, iterations = {self.iterations}",
            )
        if not 0 <= self.relaxation < 2:
            raise ConfigError(
                "relaxation is out of range", expected="0 <= relaxation < 2", got=self.relaxation
            )
        if self.correlated < 0:
            raise ConfigError(
                "correlated is out of range", expected="correlated >= 0", got=self.correlated
            )
        if not (math.isfinite(self.sigma_first) and 0 < self.sigma_last <= self.sigma_first <= 1):
            raise ConfigError(
                "The noise levels of the solver are inconsistent",
                expected="0 < sigma_last <= sigma_first <= 1, on the scale where white is 1",
                got=f"sigma_first = {self.sigma_first}, sigma_last = {self.sigma_last}",
                hint="Divide levels on the 0–255 scale by 255.",
            )


def default_settings(
    device: torch.device, denoiser: str, *, linear_start: bool | None = None
) -> SolverSettings:
    """Return the settings that suit a prior on a device; ``linear_start`` if that is decided
    already.

    Raises `ConfigError` if there is no such denoiser.
    """
    return settings_for(denoiser_spec(denoiser).defaults, device, linear_start=linear_start)


def settings_for(
    defaults: DenoiserDefaults, device: torch.device, *, linear_start: bool | None = None
) -> SolverSettings:
    """Return the settings that suit a denoiser with these defaults; see `default_settings`."""
    linear = defaults.linear_start if linear_start is None else linear_start
    on_gpu = device.type == "cuda" and defaults.gpu_iterations
    return SolverSettings(
        relaxation=defaults.relaxation,
        iterations=on_gpu or defaults.iterations,
        min_iterations=defaults.min_iterations,
        sigma_first=defaults.sigma_first if linear else defaults.sigma_still,
        sigma_last=defaults.sigma_last,
        along_time=defaults.along_time,
        linear_start=linear,
        correlated=_CORRELATED_ITERATIONS,
        local_sigma=True,
        # On the host, whose cores a GPU leaves far behind.
        moving_image=linear and device.type == "cpu",
    )


def suited_to_masks(settings: SolverSettings, fineness: float) -> SolverSettings:
    """Return settings with as many iterations as masks of this fineness need, at most twice as
    many.

    Frames that such masks mix separate more slowly: behind the masks of 4fan14, 40 iterations gain
    0.4 dB over 20 on four scenes, behind white ones 0.1 (lab/research/real-light.md).
    """
    return dataclasses.replace(
        settings, iterations=round(settings.iterations * min(2.0, 1 / fineness))
    )
