r"""Estimate the errors of an exposure: shift, blur and gain of each mask, and the black level.

Each snapshot gives a linear model of the residual, r ≈ J θ, from blocks in which the scene is
eliminated (`sci_stream.calibration.registration`); it is linearised again at the estimate
until that settles (Gauss–Newton). Information JᵀWJ and score JᵀWr are averaged over snapshots, not
added up: a scene that stays repeats its own misfit. The information is reduced if scores of blocks
scatter more than it predicts, since texture is no white noise, and if those of snapshots do, since
only errors of the masks are the same each time; a lamp that is turned up is not.

Errors of shape, gains, gains of both ends and black level each have a normal prior whose standard
deviation is the one of greatest evidence (MacKay's evidence approximation), 0 included: gains of a
shutter that wavers and of a stage that dwells at its turning points differ tenfold. Nothing is
corrected unless the evidence for errors against none is strong.

Within a snapshot a gain that rises linearly looks like a scene that fades in; alone, it is taken to
be of a scene that does not. But one snapshot continues the other: a scene continues where it ended,
and gains begin again, so that the jump of the brightness of all blocks from the end of one snapshot
to the beginning of the next shows the trend. A gain of all frames alike remains unknown: it is the
scene's brightness.

References
----------
Information filter: Anderson and Moore, "Optimal Filtering" (1979), section 6.3. Evidence and scale
of the prior: MacKay, "Bayesian interpolation", Neural Computation 4 (1992).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sci_stream.model import F32, F64
from sci_stream.optics.mask_errors import MaskCorrection, MaskError

# The errors of a rig that was calibrated with care and has since warmed up have these standard
# deviations; the priors are multiples of them.
JITTER_PX = 0.2
"""Of the shift of a mask."""
BLUR_PX2 = 0.1
"""Of the blur of a mask."""
GAIN = 0.05
"""Of the gain of a frame."""
BLACK = 0.01
"""Of the black level, relative to the brightest y there is."""
_SCALES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
# Largest of them for shapes, which are linear within a fraction of a pixel; for gains, which are
# shifts along a pattern that moves if they may be large; for those of both ends, where a stage
# dwells; and for the black level.
_MAX_SCALES = (2.0, 1.0, 16.0, 2.0)
# Weight of a snapshot in the mean: errors that drift are followed within some ten of them.
_NEWEST = 0.1
# Share of an error that is a mask's own, whatever it is like.
_APART = 0.02
# A frame has some light: of less, nothing could be recovered.
_LEAST_GAIN = 0.05
# Least logarithm of the odds to correct anything: 150 to 1, "very strong".
_LEAST_LOG_ODDS = 5.0
# Pairs of snapshots that show the trend of gains.
_PAIRS = 10
# Fewer pairs show no trend.
_LEAST_PAIRS = 2
# Least standard deviation of the trend.
_TREND_SD = 0.003
# Half of the relative change of most of a scene during a snapshot.
_FADE_SD = 0.005
_MAD = 1.4826
_TINY = 1e-30


class Brightness(NamedTuple):
    """Mean of the scene in blocks, and half of its change during a snapshot, of the masks without
    correction; (N,).
    """

    level: F64
    slope: F64


class MaskInformation(NamedTuple):
    """Information on θ = (shifts to the right and down, blurs and gains of all masks, black level),
    (4B + 1,).

    JᵀWJ, (p, p), and the score JᵀWr + JᵀWJθ₀, (p,), where θ₀ was in use; the mean logarithm of the
    residual's variance with θ₀; the brightness of the scene.
    """

    information: F64
    score: F64
    misfit: float = 0.0
    brightness: Brightness | None = None


class MaskErrorEstimator:
    """Mean of θ given all snapshots.

    Parameters
    ----------
    n_frames
        B.
    phi
        (B, H, W), the masks. Errors of masks that are alike, as of one pattern that moves, are
        alike: their difference is hardly seen, and a stage moves smoothly.
    """

    def __init__(self, phi: F32) -> None:
        B = self._n_frames = len(phi)
        brightest = float(phi.sum(0).max())
        alike = np.linalg.cholesky(mask_correlation(phi) + _APART * np.eye(B))
        self._sd = sd = np.repeat(
            [JITTER_PX, JITTER_PX, BLUR_PX2, GAIN, BLACK * brightest], [B, B, B, B, 1]
        )
        self._gains = gains = slice(3 * B, 4 * B)
        each = np.zeros((len(sd), len(sd)))
        for first in range(0, 4 * B, B):
            each[first : first + B, first : first + B] = sd[first] * alike
        ends = np.zeros((len(sd), B))
        if B > 2:  # both ends of two frames are the brightness of the scene
            ends[gains] = np.eye(B)
        # Roots of the covariance of each kind of error, of which each counts by a factor.
        self._roots = (
            each[:, : 3 * B],
            each[:, gains],
            GAIN * ends[:, [0, -1]],
            sd[-1] * np.eye(len(sd))[:, -1:],
        )
        self.forget()

    def forget(self) -> None:
        """Forget all snapshots."""
        count = len(self._sd)
        self._information: F64 = np.zeros((count, count))
        self._score: F64 = np.zeros(count)
        self._scatter = 0.0
        self._before: Brightness | None = None
        self._trends = deque[tuple[float, float]](maxlen=_PAIRS)
        self.snapshots = 0
        """Number of snapshots so far."""
        self.theta: F64 = np.zeros(count)
        self.log_odds = 0.0
        """Natural logarithm of the odds for errors against none, ≥ 0."""

    def add(self, snapshot: MaskInformation, *, continues: bool = False) -> None:
        """Take a snapshot into account, which ``continues`` the one before or not."""
        information, score, _, brightness = snapshot
        if continues and brightness is not None and self._before is not None:
            self._trends.append(_trend(self._before, brightness, self._n_frames))
        self._before = brightness
        if self.snapshots:
            # What this snapshot shows beyond the earlier ones, against what chance allows for:
            # twice the information, since they are uncertain too. Only errors of the masks say the
            # same in each.
            surprise = score - information @ self.theta
            self._scatter += float((surprise**2 / (2 * information.diagonal() + _TINY)).mean())
        self._information, self._score = self._mean_with(snapshot)
        self.snapshots += 1
        self.theta, self.log_odds = self._estimate(self._information, self._score)

    @property
    def shows_trend(self) -> bool:
        """Whether enough consecutive snapshots tell gains that rise from a scene that fades."""
        return len(self._trends) >= _LEAST_PAIRS

    def with_snapshot(self, snapshot: MaskInformation) -> F64:
        """Return θ as it would be with one more snapshot."""
        return self._estimate(*self._mean_with(snapshot))[0]

    def of_one(self, snapshot: MaskInformation) -> F64:
        """Return θ as a snapshot alone shows it, however uncertain."""
        return self._estimate(snapshot.information, snapshot.score, 0.0)[0]

    def _mean_with(self, snapshot: MaskInformation) -> tuple[F64, F64]:
        weight = max(_NEWEST, 1 / (self.snapshots + 1))
        return (
            self._information + weight * (snapshot.information - self._information),
            self._score + weight * (snapshot.score - self._score),
        )

    def _estimate(
        self, information: F64, score: F64, least: float = _LEAST_LOG_ODDS
    ) -> tuple[F64, float]:
        """Return θ, 0 without strong evidence, and the logarithm of the odds.

        The scale that adds most evidence first: in a fixed order, shifts were taken for gains of a
        pattern that moves.
        """
        # Scatter of the snapshots relative to that expected from their information.
        # Errors that differ between snapshots average out.
        excess = max(
            1.0,
            self._scatter / max(1, self.snapshots - 1) / max(1, min(self.snapshots, 1 / _NEWEST)),
        )
        information, score = self._with_trend(information / excess, score / excess)
        scales = [0.0] * len(self._roots)
        theta = np.zeros(len(score))
        log_odds = 0.0
        while True:
            trials = [
                [scale if i == kind else used for i, used in enumerate(scales)]
                for kind, largest in enumerate(_MAX_SCALES)
                for scale in _SCALES
                if scale <= largest
            ]
            estimates = (self._posterior(information, score, trial) for trial in trials)
            (better, odds), trial = max(
                zip(estimates, trials, strict=True), key=lambda one: one[0][1]
            )
            if odds <= log_odds:
                return (theta if log_odds > least else np.zeros(len(score))), log_odds
            scales = trial
            theta = better
            log_odds = odds

    def _posterior(
        self, information: F64, score: F64, scales: Sequence[float]
    ) -> tuple[F64, float]:
        """Return the mean of θ, and the logarithm of the odds against 0, with the prior of each
        kind scaled.
        """
        if not any(scales):
            return np.zeros(len(score)), 0.0
        root = np.hstack(
            [scale * part for scale, part in zip(scales, self._roots, strict=True) if scale]
        )
        scaled = root.T @ information @ root + np.eye(root.shape[1])
        right = root.T @ score
        solution = np.linalg.solve(scaled, right)
        return root @ solution, 0.5 * float(right @ solution - np.linalg.slogdet(scaled)[1])

    def _with_trend(self, information: F64, score: F64) -> tuple[F64, F64]:
        """Return information and score given that scenes may fade, and with what consecutive
        snapshots show of it.
        """
        slope = np.zeros(len(score))
        slope[self._gains] = _slope(self._n_frames)
        along = slope / (slope @ slope)
        # A scene that fades is eliminated: it looks like the trend.
        seen = information @ along
        certain = float(along @ seen) + 1 / _FADE_SD**2
        information = information - np.outer(seen, seen) / certain
        score = score - seen * float(along @ score) / certain
        if not self.shows_trend:
            return information, score
        trends, errors = np.transpose(self._trends)
        trend = float(np.median(trends))
        variance = (
            max(_TREND_SD, _MAD * float(np.median(np.abs(trends - trend)))) ** 2
            + float(np.mean(errors)) ** 2
        )
        return information + np.outer(slope, slope) / variance, score + slope * trend / variance

    def errors(self, theta: F64) -> tuple[tuple[MaskError, ...], float]:
        """Return θ as the error of each mask, none where all are 0, and the excess of the black
        level.
        """
        if not theta.any():
            return (), 0.0
        each = theta[:-1].reshape(-1, self._n_frames).T
        each[:, 3] = each[:, 3].clip(_LEAST_GAIN - 1)
        return tuple(MaskError(*error) for error in each.tolist()), float(theta[-1])

    def theta_of(self, correction: MaskCorrection) -> F64:
        """Return a correction, apart from its displacement, as θ."""
        masks = correction.masks or (MaskError(),) * self._n_frames
        return np.array([*np.transpose(masks).ravel(), correction.black])

    def distance(self, one: F64, other: F64) -> float:
        """Return the largest difference of two θ in units of usual errors."""
        return float(np.abs((one - other) / self._sd).max())


def mask_correlation(phi: F32) -> F64:
    """Return the correlation of masks, (B, B)."""
    flat = phi.reshape(len(phi), -1)
    flat = flat - flat.mean(1, keepdims=True)
    flat /= np.sqrt(np.square(flat).sum(1, keepdims=True)) + _TINY
    return np.asarray(flat @ flat.T, np.float64)


def _slope(n_frames: int) -> F64:
    """Return the weights that give half of the change of a quantity over the frames, (B,)."""
    time = np.linspace(-1, 1, n_frames)
    return np.asarray(time / (time @ time))


def trend_of(gains: F64) -> float:
    """Return half of the linear change of gains over the frames."""
    return float(_slope(len(gains)) @ gains) if len(gains) > 1 else 0.0


def _trend(before: Brightness, after: Brightness, n_frames: int) -> tuple[float, float]:
    """Return the trend of gains that makes the brightness of most blocks continue, and its standard
    error.
    """
    reach = 1 + 1 / (
        n_frames - 1
    )  # from the middle of a snapshot to half a frame beyond its last one
    fall = (before.level + reach * before.slope) - (after.level - reach * after.slope)
    light = before.level + after.level
    lit = light > 0.1 * light.max()
    if not lit.any():
        return 0.0, 1.0
    trends = fall[lit] / (reach * light[lit])
    trend = float(np.median(trends))  # some blocks move
    return trend, _MAD * float(np.median(np.abs(trends - trend))) / math.sqrt(len(trends))
