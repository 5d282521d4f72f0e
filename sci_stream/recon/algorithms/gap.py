r"""Plug-and-play generalized alternating projection, the paper's Algorithm 1.

GAP solves ``min ½‖x − v‖² + λ g(v)  s.t.  y = Φx`` by alternating two steps: x is the projection of
v onto the measurement, v the denoised x. The prior g is implicit: its proximal map is a denoiser
D_σ, σ = √λ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sci_stream.optics.forward import accumulate_and_project, forward
from sci_stream.recon.algorithms.noise_level import Sigma, on_device

Denoise = Callable[..., Tensor]
"""D_σ on whole videos: (…, B, H, W), σ → the same shape, not aliasing its input; see
`Problem.relative`."""

PosteriorMean = Callable[[Tensor, Tensor], Tensor]
"""Residual, (…, H, W), and the mask of measured pixels, 1 or 0, → posterior mean of the frames'
error, (…, B, H, W)."""


_TINY = 1e-20

DataStep = Callable[..., tuple[Tensor, Tensor]]
"""As `data_step`."""


class CorrelatedResidual(NamedTuple):
    """Data step of the first ``iterations`` whole steps: errors are correlated in space and time.

    ``where``, (…, H, W), 0–1, is the weight of this step at each pixel; the projection has the
    remaining weight.
    """

    posterior_mean: PosteriorMean
    where: Tensor
    iterations: int


# Variance of the error of v that the noise of y causes, in units of that of one projection. On a
# noisy simulated scene, by 8 iterations, 4, 16 and 64 gain 0.71, 0.65 and 0.26 dB; on scenes with
# little noise all of them change less than 0.1 dB (lab/research/colour.md).
_NOISE_IN_ESTIMATE = 8.0


class Anchor(NamedTuple):
    """A warm start as a second measurement of the video.

    It knows the snapshots before, which y does not say again. Without the anchor, iterations forget
    them, and follow the noise of y alone.

    ``video``, (…, B, H, W); ``share``, (…, H, W), 0–1, its weight beside an estimate.
    """

    video: Tensor
    share: Tensor

    @classmethod
    def of(cls, video: Tensor, variance: Tensor, noise_ratio: Tensor) -> Anchor:
        """Return a start whose error has this variance, (), infinite to forget it.

        ``noise_ratio`` as of `Problem`: where y has little noise, v knows more than the start.
        """
        error = _NOISE_IN_ESTIMATE * noise_ratio
        # A start without error behind y without noise is equal to v.
        return cls(video, error / (error + variance).clamp_min(_TINY))

    def drawn(self, v: Tensor) -> Tensor:
        """Return the mean of v and the start, a new tensor."""
        return torch.lerp(v, self.video, self.share.unsqueeze(-3))


class Problem(NamedTuple):
    """A measurement y = Φx + noise with the prior and the parameters of a solve; by default those
    of the paper.
    """

    y: Tensor
    """(…, H, W), the measurement, finite."""
    phi: Tensor
    """(…, B, H, W), the mask stack Φ."""
    r_inv: Tensor
    """(…, H, W), (ΦΦᵀ)⁻¹ with 0 at pixels without a valid measurement, which keep v."""
    priors: tuple[Denoise, ...]
    """D_σ, used in turn from one iteration to the next (`sci_stream.recon.denoisers.temporal`)."""
    relaxation: float = 1.0
    """α ≥ 0 of `gap`."""
    noise_ratio: Tensor | None = None
    """(…, H, W), the noise of y as from `noise_variance_ratio`; None to fit y exactly."""
    correlated: CorrelatedResidual | None = None
    """Data step of the first iterations; None if all of them project."""
    relative: Tensor | None = None
    """(…, H, W), σ at each pixel as a multiple of σ, the third argument of priors with a noise map;
    None for σ
    everywhere."""
    anchor: Anchor | None = None
    """The warm start; None for iterations from y alone."""
    shares: tuple[float, ...] = ()
    """Share of the way from v to D_σ(x) that each iteration goes, from
    `sci_stream.recon.algorithms.schedule.step_shares`; beyond them all of it."""

    def advanced(self, v: Tensor, denoised: Tensor, iteration: int) -> Tensor:
        """Return the estimate after an iteration, from 0: ``denoised``, or on the way to it."""
        share = self.shares[iteration] if iteration < len(self.shares) else 1.0
        return denoised if share == 1.0 else torch.lerp(v, denoised, share)

    def correlated_at(self, iteration: int) -> CorrelatedResidual | None:
        """Return the correlated data step of an iteration, from 0;
        None for the projection alone.
        """
        whole_steps = sum(self.shares[:iteration]) + max(0, iteration - len(self.shares))
        if self.correlated is not None and whole_steps < self.correlated.iterations:
            return self.correlated
        return None

    def denoise(self, x: Tensor, sigma: Sigma, iteration: int) -> Tensor:
        """Return D_σ(x) of an iteration, from 0."""
        prior = self.priors[iteration % len(self.priors)]
        return prior(x, sigma) if self.relative is None else prior(x, sigma, self.relative)


def gap(
    v: Tensor, problem: Problem, sigmas: Iterable[Sigma], step: DataStep | None = None
) -> Iterator[Tensor]:
    r"""Yield the denoised estimate v of each iteration, as long as there is a σ for the next.

    ::

        y_acc ← y_acc + α (y − Φv)
        x ← v + Φᵀ(ΦΦᵀ)⁻¹(y_acc − Φv)
        v ← v + β (D_σ(x) − v)

    β is 1, but for long solves and the last iteration (`Problem.shares`). With α = 0 and β = 1 that
    is the paper's Algorithm 1, with α = 1 its accelerated form. α beyond 1 saves iterations at high
    σ and oscillates at low σ: 1.86 gains in the first ten iterations with FFDNet, and loses seven
    decibels with total variation as σ falls below 20/255; 1.5 holds down to 10/255.

    If the noise of y is known, x should not reproduce it and y_acc should not accumulate it: both
    steps are scaled by the share w of the residual that is likely an error of v (`data_weight`,
    with the σ of the pixel)::

        w ← 2σ² / (2σ² + n²/R)
        y_acc ← y + w (y_acc − y + α (y − Φv))
        x ← v + Φᵀ(ΦΦᵀ)⁻¹ w (y_acc − Φv)

    Φᵀ(ΦΦᵀ)⁻¹ is the smallest change that fits the residual, independently at each pixel: optimal
    for white errors, which they are after some iterations. Before that, errors are smooth like the
    missing image content; ``correlated`` iterations use their covariance C in space and time
    (`sci_stream.recon.initialization.gaussian_prior`)::

        x ← v + CΦᵀ(ΦCΦᵀ + νI)⁻¹ (y_acc − Φv)

    From a warm start, v is first drawn back to it (`Anchor`)::

        v ← v + s²/(s² + e²) (v⁰ − v),   s² = 8 n²/2R, e² the variance of the error of v⁰

    The caller may stop at any iteration: the last estimate is the result. y_acc starts at y, not at
    0 as in the published code: there the first projection discards v⁰ (28.2 against below 10 dB
    after one iteration on Drop).

    Parameters
    ----------
    v
        (…, B, H, W), the start v⁰. Not modified. See `cold_start`.
    problem
        y, Φ, the prior and α.
    sigmas
        σ_k of each iteration, consumed one at a time.
    step
        `data_step`, where it is compiled.

    Yields
    ------
    v, (…, B, H, W), which the caller must not write to.

    References
    ----------
    PnP-GAP, Algorithm 1, Eqs. for x^(k+1) and v^(k+1); acceleration after Liao, Li, Carin,
    "Generalized alternating projection for weighted-ℓ2,1 minimization", SIAM J. Imaging Sci. 7
    (2014).
    """
    y_acc = problem.y
    for k, sigma in enumerate(sigmas):
        x, y_acc = (step or data_step)(v, y_acc, problem, sigma, problem.correlated_at(k))
        v = problem.advanced(v, problem.denoise(x, sigma, k), k)  # v ← v + β (D_σ(x) − v)
        yield v


def data_step(
    v: Tensor,
    y_acc: Tensor,
    problem: Problem,
    sigma: Sigma,
    correlated: CorrelatedResidual | None,
) -> tuple[Tensor, Tensor]:
    """Return x and y_acc of an iteration of `gap`: new tensors."""
    if problem.anchor is not None:
        v = problem.anchor.drawn(v)
    y = problem.y
    phi = problem.phi
    r_inv = problem.r_inv
    w = None if problem.noise_ratio is None else data_weight(problem.noise_ratio, sigma)
    # y_acc ← y + w (y_acc − y + α (y − Φv)),   x ← v + Φᵀ(ΦΦᵀ)⁻¹ w (y_acc − Φv)
    x, y_acc = accumulate_and_project(
        v, y_acc, y, phi, r_inv, relaxation=problem.relaxation, weight=w
    )
    if correlated is not None:
        # x ← v + CΦᵀ(ΦCΦᵀ + νI)⁻¹ w (y_acc − Φv) where something moves
        residual = y_acc - forward(phi, v)
        x = data_step_gaussian(v, x, residual if w is None else residual * w, r_inv, correlated)
    return x, y_acc


def data_step_gaussian(
    v: Tensor,
    projected: Tensor,
    residual: Tensor,
    r_inv: Tensor,
    correlated: CorrelatedResidual,
) -> Tensor:
    """Correct v by the posterior mean of its correlated errors where these are likely, else by the
    projection.

    Returns
    -------
    ``projected``, which is overwritten.
    """
    measured = (r_inv > 0).to(v.dtype)
    changed = correlated.posterior_mean(residual * measured, measured).add_(v)
    return projected.lerp_(changed, correlated.where.unsqueeze(-3))


ERROR_PER_SIGMA = 2.0
"""Variance of an error of v in units of the σ² that it is then denoised with. Tuned on eight scenes
with white noise of
0.1: 1 and 4 lose 0.8 dB each after 12 iterations (lab/research/noise.md)."""


def noise_variance_ratio(
    noise: Tensor | None, r_inv: Tensor, relative: Tensor | None
) -> Tensor | None:
    """Return ½ n²/R: the noise variance that a projection would put into x, to compare with σ².

    None if n is unknown.

    Where the level differs from place to place, σ_p = relative·σ, it is divided by the square of
    ``relative`` to be compared with σ_p². Otherwise places that are denoised little would reproduce
    the noise.

    Parameters
    ----------
    noise, r_inv, relative
        n², (…, H, W), the variance of y's noise, None if unknown; and as in `Problem`. Pixels
        without a measurement keep full weight, which the projection ignores.
    """
    if noise is None:
        return None
    ratio = noise * r_inv / ERROR_PER_SIGMA
    return ratio if relative is None else ratio / relative.square()


def data_weight(noise_ratio: Tensor, sigma: Sigma) -> Tensor:
    r"""Return w = σ²/(σ² + ½ n²/R), (…, H, W): the share of the residual that is attributed to v.

    An error of v with variance s² gives y − Φv the variance R s² + n². The linear minimum mean
    square error estimate attributes R s²/(R s² + n²) of it to the error, here with s² = 2σ².
    """
    variance = on_device(sigma, noise_ratio).square()
    return variance / (variance + noise_ratio)


def cold_start(y: Tensor, phi: Tensor, r_inv: Tensor) -> Tensor:
    r"""Return v⁰ = ȳ = y/Σ_b φ_b in every frame: the still image that fits the measurement.

    Its residual y − Φv⁰ is zero at every measured pixel, for grey masks too; that of y/Σφ², equal
    for binary masks, is not. Pixels without a measurement take the mean of the measured ones around
    them, or else of all.

    Parameters
    ----------
    y, phi, r_inv
        As in `Problem`. Keep saturated pixels here: although clipped, y/Σφ is nearer to the truth
        than the surroundings of a highlight.

    Returns
    -------
    (…, B, H, W), a new tensor.
    """
    # R > 0 implies Σφ > 0, since φ is in [0, 1]; pixels masked out here may be 0/0.
    measured = r_inv > 0
    still = torch.where(measured, y / phi.sum(-3), 0.0)
    weight = measured.to(still.dtype)
    near = _box_sum(still)
    near_weight = _box_sum(weight)
    everywhere = still.sum((-2, -1), keepdim=True) / weight.sum((-2, -1), keepdim=True).clamp_min(
        1.0
    )
    filled = torch.where(near_weight > 0, near / near_weight.clamp_min(1.0), everywhere)
    still = torch.where(measured, still, filled)
    return still.unsqueeze(-3).expand(phi.shape).clone()


def _box_sum(image: Tensor) -> Tensor:
    """Sum over the 5 × 5 pixels around each one, zero outside, (…, H, W) → (…, H, W)."""
    flat = image.reshape(-1, 1, *image.shape[-2:])
    summed = torch.nn.functional.avg_pool2d(flat, 5, stride=1, padding=2, divisor_override=1)
    return summed.reshape(image.shape)
