r"""The cold start: the best linear estimate of a snapshot's frames, where they move, and ȳ where they do not.

What is known of a snapshot before any denoiser has seen it is y = Φx, and how images behave on average. If the frames
differ from their local mean m by a stationary random field of covariance C, and y has noise of variance ν, the linear
estimate of least mean square error is (`sci_stream.recon.initialization.gaussian_prior`)::

    x⁰ = m + CΦᵀz,   (ΦCΦᵀ + νI) z = y − Φm

ȳ = y/Σφ, in which all frames are alike, has the blur of the whole exposure and the masks' pattern in it wherever
something moves; here the masks' differences already tell the frames apart.

**What y says of a guess.** z_p/[(ΦCΦᵀ + νI)⁻¹]_pp is the error with which the other pixels predict y_p, itself left
out, if the frames are a guess (here m) and such a field. Put all frames alike, S = Σφ in the place of Φ, and it is the
error of the assumption that nothing moves. Averaged around each pixel, the squares of such errors weigh one guess
against another: a guess of error e has the weight 1/(1 + (e/e')⁴) beside one of error e'. So x⁰ is weighed against ȳ,
which is exact where nothing moves and x⁰ takes texture for motion; and so a warm start is weighed against either. The
same errors, without what texture has in them, tell how far the start is from the truth, and so at which σ to begin.

References
----------
Leave-one-out residuals of a Gaussian process after Rasmussen and Williams, "Gaussian Processes for Machine Learning"
(2006), section 5.4.2. Settings and what they give: research/linear-start.md.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from sci_stream.optics.forward import forward
from sci_stream.recon.initialization.error_map import InitialErrorMap, start_error
from sci_stream.recon.initialization.gaussian_prior import ESTIMATES, FRAMES, CodedField, GaussianPrior
from sci_stream.recon.initialization.optical_flow import box_mean

# Radius of the windows in which brightness and prediction errors are averaged, twice.
_MEAN_PX, _CHOICE_PX = 2, 3

# Exponent of the ratio of two squared errors in a weight.
_DECISION = 4.0

# By which share squared prediction errors must be lower than those of frames that are all alike, to be of motion.
_SURELY_BETTER = 0.4

# Share of prediction errors that are not of motion, taken for errors of the frames all the same.
_TEXTURE = 0.1

_TINY = 1e-20


class InitialGuess(NamedTuple):
    """Frames to begin with, (P, B, H, W), and the local mean of the squares by which they mispredict y, (P, H, W)."""

    video: torch.Tensor
    error: torch.Tensor


class LmmseEstimator:
    """What is common to all snapshots of one mask stack.

    Parameters
    ----------
    phi
        (P, B, H, W), the mask stack Φ of each plane; kept, and not to be changed while this is in use.
    r_inv
        (P, H, W), (ΦΦᵀ)⁻¹ with 0 at pixels that are never valid.
    """

    def __init__(self, phi: torch.Tensor, r_inv: torch.Tensor) -> None:
        self._phi = phi
        self._r_inv = r_inv

    def evidence(self, y: torch.Tensor, r_inv: torch.Tensor, noise: torch.Tensor | None = None) -> LeaveOneOutError:
        """Return what a measurement says.

        Parameters
        ----------
        y, r_inv
            (P, H, W); ``r_inv`` with 0 at pixels without a valid measurement.
        noise
            n², (P, H, W), the variance of y's noise; None where it is not known.
        """
        return LeaveOneOutError(y, self._phi, r_inv, noise, self._models)

    @functools.cached_property
    def first_iterations(self) -> GaussianPrior:
        """What is left unexplained by the estimates of the first iterations of a solve."""
        return GaussianPrior(self._field.frames, self._field, ESTIMATES)

    @functools.cached_property
    def _models(self) -> tuple[GaussianPrior, GaussianPrior]:
        """Of frames that move, and of frames that are all alike."""
        field = self._field
        return GaussianPrior(field.frames, field, FRAMES), GaussianPrior(field.alike, field, FRAMES)

    @functools.cached_property
    def _field(self) -> CodedField:
        return CodedField(self._phi, (self._r_inv > 0).to(self._phi.dtype))


class LeaveOneOutError:
    """What one measurement says for and against guesses at its frames; made by `LmmseEstimator.evidence`."""

    def __init__(
        self,
        y: torch.Tensor,
        phi: torch.Tensor,
        r_inv: torch.Tensor,
        noise: torch.Tensor | None,
        models: tuple[GaussianPrior, GaussianPrior],
    ) -> None:
        self._measured = (r_inv > 0).to(y.dtype)
        self._r_inv = r_inv
        self._y = y * self._measured
        self._phi = phi
        self._noise = noise
        self._moving, self._alike = models

    def cold(self, still: torch.Tensor, *, linear: bool = True) -> InitialGuess:
        """Return the cold start.

        Parameters
        ----------
        still
            (P, B, H, W), ȳ from `sci_stream.recon.algorithms.gap.cold_start`; it stays where nothing valid was
            measured.
        linear
            Whether to take x⁰ where it is more likely; False for ȳ everywhere.

        Returns
        -------
        Of new tensors, finite. It explains the measurement nearly, not exactly.
        """
        alike = InitialGuess(still, self._alike_error)
        if not linear or self._phi.shape[1] == 1:  # a single frame is what was measured
            return alike
        return self.blended(self.refined(self._mean.unsqueeze(1).expand_as(self._phi)), alike)

    @functools.cached_property
    def _mean(self) -> torch.Tensor:
        """m, (P, H, W), the same in all frames."""
        return _local_mean(self._y, self._opened)

    @functools.cached_property
    def _opened(self) -> torch.Tensor:
        """Σφ where something valid was measured, else 0, (P, H, W)."""
        return self._alike.masks[:, 0] * self._measured

    @functools.cached_property
    def _exposure(self) -> torch.Tensor:
        """Σφ², likewise."""
        return torch.where(self._r_inv > 0, self._r_inv, 1.0).reciprocal().mul_(self._measured)

    @functools.cached_property
    def _alike_error(self) -> torch.Tensor:
        """Local mean of the squares by which frames that are all alike mispredict y, (P, H, W)."""
        return self._squared_error(
            self._alike, self._alike.solve(self._y - self._opened * self._mean, self._measured).dual
        )

    def refined(self, video: torch.Tensor) -> InitialGuess:
        """Return the best linear estimate of frames of which these are a guess, (P, B, H, W)."""
        solution = self._moving.solve(self._residual(video), self._measured)
        return InitialGuess(solution.frames().add_(video), self._squared_error(self._moving, solution.dual))

    def blended(self, one: InitialGuess, other: InitialGuess) -> InitialGuess:
        """Return two guesses in one, each pixel by the weight that y gives it; the other where nothing was measured."""
        weight = self._measured / (1 + (one.error / other.error.clamp_min(_TINY)).pow(_DECISION))
        return InitialGuess(other.video.lerp(one.video, weight.unsqueeze(1)), other.error.lerp(one.error, weight))

    def without_texture(self, guess: InitialGuess, moves: torch.Tensor) -> InitialGuess:
        """Return a guess with less of the prediction errors that are likely texture's.

        Fine texture mispredicts y, since its neighbourhood does not tell of it, though the frames be right. Where
        nothing speaks for motion, the errors are taken for texture's.

        Parameters
        ----------
        guess
            Frames to begin with.
        moves
            (P or 1, H, W), 0–1: where something moves; see `moving`.
        """
        texture, noise = guess.error, torch.zeros_like(guess.error)
        if self._noise is not None:
            # What the noise of y mispredicts is not texture's, and only a part of it is in ȳ.
            texture = (guess.error - self._noise).clamp_min_(0.0)
            noise = self._noise * self._exposure / self._opened.square().clamp_min(_TINY)
        still = _TEXTURE**2 * texture + noise
        return InitialGuess(guess.video, still.lerp(guess.error, moves))

    def moving(self, guess: InitialGuess) -> torch.Tensor:
        """Return where something moves: a cold start predicts y better there than frames that are all alike; (P, H, W).

        0 where it does not, 1 where it surely does.
        """
        better = 1 - guess.error / self._alike_error.clamp_min(_TINY)
        return (better / _SURELY_BETTER).clamp_(0.0, 1.0)

    def start_error(self, guess: InitialGuess, moves: torch.Tensor) -> InitialErrorMap:
        """Return how far the frames of a guess are from the truth, as its prediction errors tell.

        ``moves``, (P, H, W), 0–1: where something moves.
        """
        return start_error(guess.error * self._measured, self._exposure, moves)

    def misfit(self, video: torch.Tensor) -> torch.Tensor:
        """Return ‖y − Φx‖₂/‖y‖₂ of frames, (P, B, H, W), over the pixels that count; ()."""
        return (self._residual(video).square().sum() / self._y.square().sum().clamp_min(_TINY)).sqrt()

    def _residual(self, video: torch.Tensor) -> torch.Tensor:
        return (self._y - forward(self._phi, video)).mul_(self._measured)

    @staticmethod
    def _squared_error(model: GaussianPrior, dual: torch.Tensor) -> torch.Tensor:
        """Return the local mean of the squares by which the other pixels mispredict each, (P, H, W)."""
        return box_mean((dual / model.expected).square_(), _CHOICE_PX)


def _local_mean(y: torch.Tensor, opened: torch.Tensor) -> torch.Tensor:
    """Average y/Σφ around each pixel, each weighed by Σφ; where nothing near is measured, over the whole plane."""
    near = box_mean(opened, _MEAN_PX)
    everywhere = y.sum((-2, -1), keepdim=True) / opened.sum((-2, -1), keepdim=True).clamp_min(_TINY)
    known = near > 1e-6 * opened.amax((-2, -1), keepdim=True)
    return torch.where(known, box_mean(y, _MEAN_PX) / torch.where(known, near, 1.0), everywhere)
