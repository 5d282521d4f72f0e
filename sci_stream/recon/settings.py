"""How a snapshot is solved, and the choice of it where a rig does not say."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sci_stream.errors import ConfigError
from sci_stream.recon.algorithms.schedule import LambdaRule, Shape, SigmaSchedule
from sci_stream.recon.denoisers.registry import DenoiserSpec, denoiser_spec

# Iterations that explain what is left as errors that neighbours share, where nothing is said.
_CORRELATED_ITERATIONS = 4


@dataclass(frozen=True, slots=True)
class SolverSettings:
    """How a snapshot is solved where time does not press.

    Parameters
    ----------
    solver
        Name of the algorithm: ``"gap"``, or ``"admm"`` for noisy measurements.
    accelerate
        Accumulate the measurement's residual; False for the plain algorithm, which α and μ then do not change.
    relaxation
        α of `sci_stream.recon.algorithms.gap.gap`, 0 ≤ α < 2.
    gamma
        γ of `sci_stream.recon.algorithms.admm.admm`, ≥ 0, in units of Σφ²: how far the measurement is weighted down.
    iterations, min_iterations
        What a snapshot is given if there is time, and what it is given however short time is; 1 ≤ min ≤ iterations.
    sigma_first, sigma_last
        Most noise level handed to the denoiser in the first and the last iteration, 0–1 scale. With a linear start
        both are lower where the start is nearer than that, and solves of few iterations end higher than
        ``sigma_last``, see `sci_stream.recon.initialization.initializer`.
    sigma_shape
        How σ falls between them.
    lambda_rule, xi, eta
        What decides how σ falls; for the adaptive rule by what factor ξ λ falls, 0 < ξ < 1, and at what rest η,
        0 ≤ η < 1.
    switch_at
        Share of a solve, 0–1, that the first of two priors in sequence is given.
    weigh_noise
        Weight the measurement by its noise: of the calibration, or as `sci_stream.recon.noise_estimation` finds it in
        the snapshot, whichever is larger; see `sci_stream.recon.algorithms.gap.data_weight`. False: explain every
        measured pixel exactly, as in the paper.
    along_time
        Denoise every other time the temporal frequencies of groups of frames instead of the frames; see
        `sci_stream.recon.denoisers.temporal`.
    linear_start
        Begin a cold solve with the best linear estimate of the frames where they move, not with ȳ everywhere; see
        `sci_stream.recon.initialization.lmmse`.
    correlated
        With a linear start, how many iterations, ≥ 0, explain what is left as errors that neighbours share; see
        `sci_stream.recon.algorithms.gap.CorrelatedResidual`. 0: all of them project, as in the paper.
    local_sigma
        Where it is known how far the start is from the truth, denoise each place by how wrong it is, if the prior can
        tell places apart; see `sci_stream.recon.initialization.error_map.InitialErrorMap.levels`. False: σ is the
        same everywhere.
    warm_start
        Begin a snapshot from the video of the one directly before it, where that predicts it.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    solver: str = "gap"
    accelerate: bool = True
    relaxation: float = 1.0
    iterations: int = 40
    min_iterations: int = 4
    sigma_first: float = 50 / 255
    sigma_last: float = 6 / 255
    sigma_shape: Shape = Shape.GEOMETRIC
    lambda_rule: LambdaRule = LambdaRule.MONOTONE
    xi: float = 0.7
    eta: float = 0.9
    switch_at: float = 0.5
    gamma: float = 0.3
    weigh_noise: bool = True
    along_time: bool = False
    linear_start: bool = False
    correlated: int = 0
    local_sigma: bool = False
    warm_start: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.min_iterations <= self.iterations:
            raise ConfigError(
                "The iterations of the solver do not fit together",
                expected="1 <= min_iterations <= iterations",
                got=f"min_iterations = {self.min_iterations}, iterations = {self.iterations}",
            )
        if not 0 <= self.relaxation < 2:
            raise ConfigError("relaxation is out of range", expected="0 <= relaxation < 2", got=self.relaxation)
        if self.correlated < 0:
            raise ConfigError(
                "The iterations that explain by neighbours are too few", expected=">= 0", got=self.correlated
            )
        if not (0 <= self.gamma < math.inf):
            raise ConfigError("gamma of ADMM is out of range", expected="gamma >= 0", got=self.gamma)
        if not (0 < self.xi < 1 and 0 <= self.eta < 1 and 0 <= self.switch_at <= 1):
            raise ConfigError(
                "The rule that lowers sigma is out of its range",
                expected="0 < xi < 1, 0 <= eta < 1 and 0 <= switch_at <= 1",
                got=f"xi = {self.xi}, eta = {self.eta}, switch_at = {self.switch_at}",
            )
        if not (math.isfinite(self.sigma_first) and 0 < self.sigma_last <= self.sigma_first <= 1):
            raise ConfigError(
                "The noise levels of the solver do not fit together",
                expected="0 < sigma_last <= sigma_first <= 1, on the scale where white is 1",
                got=f"sigma_first = {self.sigma_first}, sigma_last = {self.sigma_last}",
                hint="Levels given on the 0–255 scale are to be divided by 255.",
            )

    @property
    def schedule(self) -> SigmaSchedule:
        """The noise levels as a schedule."""
        return SigmaSchedule(self.sigma_first, self.sigma_last, self.sigma_shape)

    @property
    def switch_sigma(self) -> float:
        """Noise level at which the second of two priors in sequence takes over."""
        return self.schedule.sigma(self.switch_at)


def default_settings(device: torch.device, denoiser: str, *, linear_start: bool | None = None) -> SolverSettings:
    """Return the settings that suit a prior on a device; ``linear_start`` if that is decided already.

    Raises
    ------
    ConfigError
        If there is no such denoiser.
    """
    return settings_for(denoiser_spec(denoiser), device, linear_start=linear_start)


def settings_for(spec: DenoiserSpec, device: torch.device, *, linear_start: bool | None = None) -> SolverSettings:
    """Return the settings that suit a denoiser of this description; see `default_settings`."""
    linear = spec.linear_start if linear_start is None else linear_start
    return SolverSettings(
        relaxation=spec.relaxation,
        lambda_rule=spec.lambda_rule,
        iterations=spec.iterations_on(device),
        min_iterations=spec.min_iterations,
        sigma_first=spec.sigma_first if linear else spec.sigma_still,
        sigma_last=spec.sigma_last,
        along_time=spec.along_time,
        linear_start=linear,
        correlated=_CORRELATED_ITERATIONS,
        local_sigma=True,
    )
