r"""The cold start: the linear minimum mean square error (LMMSE) estimate where the scene moves, ȳ
where it does not.

If the frames differ from their local mean m by a stationary Gaussian random field of covariance C,
and y has noise of variance ν, the LMMSE estimate is
(`sci_stream.recon.initialization.gaussian_prior`)::

    x⁰ = m + CΦᵀz,   (ΦCΦᵀ + νI) z = y − Φm

ȳ = y/Σφ, with all frames equal, contains motion blur and the masks' pattern wherever something
moves; x⁰ uses the differences of the masks to separate the frames.

**Leave-one-out errors.** z_p/[(ΦCΦᵀ + νI)⁻¹]_pp is the error of predicting y_p from the other
pixels if the frames are a guess (here m) plus such a field. With equal frames, S = Σφ in place of
Φ, it is the error of assuming that nothing moves. The squared errors, averaged around each pixel,
weight one guess against another: a guess of error e has the weight 1/(1 + (e/e')¹⁰) against one of
error e'. So x⁰ is blended with ȳ, which is exact where nothing moves while x⁰ mistakes texture for
motion, and a warm start is blended with both. The same errors, without the part due to texture,
estimate the error of the start, from which the first σ is chosen.

References
----------
Leave-one-out residuals of a Gaussian process after Rasmussen and Williams, "Gaussian Processes for
Machine Learning" (2006), section 5.4.2. Settings and their results: lab/research/linear-start.md.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from sci_stream.optics.forward import forward
from sci_stream.recon.initialization.error_map import InitialErrorMap, start_error
from sci_stream.recon.initialization.gaussian_prior import (
    ESTIMATES,
    FRAMES,
    CodedField,
    GaussianPrior,
)
from sci_stream.recon.initialization.optical_flow import WINDOW_PX, box_mean

# Exponent of the ratio of two squared errors in a weight; of the errors themselves it is 10. 4 and
# 6 are as good within
# 0.1 dB in the mean of the tuning half of `bench reality`: 6 gains without errors of the masks and
# loses with jitter.
_DECISION = 5.0

_TINY = 1e-20


class InitialGuess(NamedTuple):
    """Frames to start from, (P, B, H, W), and the local mean of their squared prediction errors of
    y, (P, H, W).
    """

    video: Tensor
    error: Tensor


class LmmseEstimator:
    """LMMSE estimator of one mask stack.

    Parameters
    ----------
    phi
        (P, B, H, W), the mask stack Φ of each plane; not copied, and not to be modified while this
        is in use.
    r_inv
        (P, H, W), (ΦΦᵀ)⁻¹ with 0 at pixels that are never valid.
    fineness
        That of the masks, see `sci_stream.optics.calibration.Calibration.fineness`: coarser masks
        show coarser changes.
    """

    def __init__(self, phi: Tensor, r_inv: Tensor, fineness: float = 1.0) -> None:
        self._phi = phi
        self._fineness = fineness
        self._r_inv = r_inv

    def leave_one_out(self, y: Tensor, r_inv: Tensor, noise: Tensor | None) -> LeaveOneOutError:
        """Return the leave-one-out errors of a measurement.

        Parameters
        ----------
        y, r_inv
            (P, H, W); ``r_inv`` with 0 at pixels without a valid measurement.
        noise
            n², (P, H, W), the variance of y's noise; None if unknown.
        """
        return LeaveOneOutError(y, self._phi, r_inv, noise, self._models)

    @functools.cached_property
    def first_iterations(self) -> GaussianPrior:
        """Model of the errors of the estimates in the first iterations of a solve."""
        return GaussianPrior(self._field.frames, self._field, ESTIMATES)

    @functools.cached_property
    def _models(self) -> tuple[GaussianPrior, GaussianPrior]:
        """Models of moving frames and of equal frames."""
        field = self._field
        covariance = FRAMES._replace(kappa2=FRAMES.kappa2 * self._fineness)
        return GaussianPrior(field.frames, field, covariance), GaussianPrior(
            field.still, field, covariance
        )

    @functools.cached_property
    def _field(self) -> CodedField:
        return CodedField(self._phi, (self._r_inv > 0).to(self._phi.dtype))


class LeaveOneOutError:
    """Leave-one-out errors of guesses at the frames of one measurement; made by
    `LmmseEstimator.leave_one_out`.
    """

    def __init__(
        self,
        y: Tensor,
        phi: Tensor,
        r_inv: Tensor,
        noise: Tensor | None,
        models: tuple[GaussianPrior, GaussianPrior],
    ) -> None:
        self._measured = (r_inv > 0).to(y.dtype)
        self._y = y * self._measured
        self._phi = phi
        self._noise = noise
        self._moving, self._still = models
        # Σφ where something valid was measured, else 0, (P, H, W).
        self._transmission = self._still.masks[:, 0] * self._measured
        # Σφ² − (Σφ)²/B, likewise: B times the variance of the masks over the frames.
        exposure = torch.where(r_inv > 0, r_inv, 1.0).reciprocal().mul_(self._measured)
        self._contrast = (exposure - self._transmission.square() / phi.shape[1]).clamp_min_(0.0)
        # m, (P, H, W), the same in all frames.
        self._mean = _local_mean(self._y, self._transmission)
        # Local mean of the squared prediction errors of equal frames, (P, H, W).
        still = self._still.solve(self._y - self._transmission * self._mean, self._measured)
        self._still_error = self._squared_error(self._still, still.dual)
        # Each measured pixel is predicted as an unmeasured one is filled: from those around it.
        power = box_mean(self._transmission.square(), WINDOW_PX).clamp_min(_TINY)
        self._filled_error = (1 - self._measured) * self._still_error / power

    def cold(self, still: Tensor, *, linear: bool = True) -> InitialGuess:
        """Return the cold start.

        Parameters
        ----------
        still
            (P, B, H, W), ȳ from `sci_stream.recon.algorithms.gap.cold_start`; kept where nothing
            valid was measured.
        linear
            Whether to use x⁰ where it is more likely; False for ȳ everywhere.

        Returns
        -------
        New tensors, finite. It fits the measurement approximately.
        """
        equal = InitialGuess(still, self._still_error)
        if not linear or self._phi.shape[1] == 1:  # with a single frame ȳ is exact
            return equal
        return self.blended(self.refined(self._mean.unsqueeze(1).expand_as(self._phi)), equal)

    def refined(self, video: Tensor) -> InitialGuess:
        """Return the LMMSE estimate around a guess, (P, B, H, W)."""
        _ = (
            self._moving.expected
        )  # before the solution, a video: when it is first computed, it takes two
        solution = self._moving.solve(self._residual(video), self._measured)
        return InitialGuess(
            solution.frames().add_(video), self._squared_error(self._moving, solution.dual)
        )

    def blended(self, one: InitialGuess, other: InitialGuess) -> InitialGuess:
        """Blend two guesses by their prediction errors at each pixel; the other one where nothing
        was measured.
        """
        weight = self._measured * _weight(one.error, other.error)
        return InitialGuess(
            other.video.lerp(one.video, weight.unsqueeze(1)), other.error.lerp(one.error, weight)
        )

    def without_texture(self, guess: InitialGuess, moves: Tensor) -> InitialGuess:
        """Return a guess whose prediction errors count only where something moves.

        Fine texture cannot be predicted from its surroundings, so it causes prediction errors even
        if the frames are right. Without motion ȳ is exact but for its noise.

        Parameters
        ----------
        moves
            (P or 1, H, W), 0–1: where something moves; see `moving`.
        """
        noise = torch.zeros_like(guess.error)
        if self._noise is not None:
            # Of the noise of y only a part is in ȳ.
            noise = self._noise * self._contrast / self._transmission.square().clamp_min(_TINY)
        return InitialGuess(guess.video, noise.lerp(guess.error, moves))

    def moving(self, guess: InitialGuess) -> Tensor:
        """Return the degree of motion, (P, H, W), 0–1: 2w − 1, w ≥ ½ the weight of the guess
        against equal frames.
        """
        return (2 * _weight(guess.error, self._still_error) - 1).clamp_(0.0, 1.0)

    def start_error(self, guess: InitialGuess, moves: Tensor) -> InitialErrorMap:
        """Return the estimated error of a guess.

        ``moves``, (P, H, W), 0–1: where something moves.
        """
        mispredicted = guess.error * self._measured
        return start_error(mispredicted, self._contrast, moves, self._filled_error)

    def misfit(self, video: Tensor) -> Tensor:
        """Return ‖y − Φx‖₂/‖y‖₂ of frames, (P, B, H, W), over the pixels that count; ()."""
        return (
            self._residual(video).square().sum() / self._y.square().sum().clamp_min(_TINY)
        ).sqrt()

    def _residual(self, video: Tensor) -> Tensor:
        return (self._y - forward(self._phi, video)).mul_(self._measured)

    @staticmethod
    def _squared_error(model: GaussianPrior, dual: Tensor) -> Tensor:
        """Return the local mean of the squared leave-one-out errors, (P, H, W)."""
        return box_mean((dual / model.expected).square_(), WINDOW_PX)


def _weight(error: Tensor, other: Tensor) -> Tensor:
    """Return the weight of a guess against another one by their squared prediction errors.

    The planes of a mosaic move together: the errors of all of them decide for each. The covariance
    C stays that of a plane: one of all colours together predicts saturated colours wrongly
    (lab/research/colour.md).
    """
    if len(error) > 1:
        error, other = (one.mean(0).expand_as(one) for one in (error, other))
    return 1 / (1 + (error / other.clamp_min(_TINY)).pow(_DECISION))


def _local_mean(y: Tensor, transmission: Tensor) -> Tensor:
    """Average y/Σφ around each pixel, each weighed by Σφ; where nothing near is measured, over the
    whole plane.
    """
    near = box_mean(transmission, WINDOW_PX)
    everywhere = y.sum((-2, -1), keepdim=True) / transmission.sum((-2, -1), keepdim=True).clamp_min(
        _TINY
    )
    known = near > 1e-6 * transmission.amax((-2, -1), keepdim=True)
    return torch.where(known, box_mean(y, WINDOW_PX) / torch.where(known, near, 1.0), everywhere)
