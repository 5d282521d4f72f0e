r"""Estimate the errors of single masks over snapshots: shift and gain of each mask, and the black level.

Each snapshot gives a linear model of the residual, r ≈ J θ, from blocks in which the scene is eliminated
(`sci_stream.calibration.mask_registration`). Information JᵀWJ and score JᵀWr are averaged over snapshots, not added up:
a scene that stays repeats its own misfit. The prior is the errors that rigs have, so that what snapshots do not show
stays at 0. The information is reduced if scores of blocks scatter more than it predicts, since texture is no white
noise, and if those of snapshots do, since only errors of the masks are the same each time; a lamp that is turned up is
not. Whether to correct anything is decided by evidence: the probability of the measurement with errors of the
prior's size against that with none, for shapes (shift and blur), gains and black level in all combinations.

Within a snapshot a gain that rises linearly looks like a scene that fades in. But one snapshot continues the other: a
scene continues where it ended, and gains begin again. The jump of the brightness of all blocks from the end of one
snapshot to the beginning of the next shows the trend. A gain of all frames alike remains unknown: it is the scene's
brightness.

References
----------
Information filter: Anderson and Moore, "Optimal Filtering" (1979), section 6.3. Evidence of linear Gaussian models:
MacKay, "Bayesian interpolation", Neural Computation 4 (1992).
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sci_stream.optics.mask_errors import MaskError

F64 = npt.NDArray[np.float64]

# Standard deviations of the errors of a rig that was calibrated with care and has since warmed up: shift of a mask,
# pixels; gain of a frame; black level relative to the brightest y there is.
JITTER_PX, BLUR_PX2, GAIN, BLACK = 0.2, 0.1, 0.05, 0.01
# Weight of a snapshot in the mean: errors that drift are followed within some ten of them.
_NEWEST = 0.1
# Least logarithm of the odds to correct anything: 150 to 1, "very strong".
_LEAST_LOG_ODDS = 5.0
# Pairs of snapshots that show the trend of gains, how many it takes, and its least standard deviation.
_PAIRS, _LEAST_PAIRS, _TREND_SD = 10, 2, 0.003
_MAD = 1.4826
_TINY = 1e-30


class Brightness(NamedTuple):
    """Mean of the scene in blocks, and half of its change during a snapshot, of the masks without correction; (N,)."""

    level: F64
    slope: F64


class MaskInformation(NamedTuple):
    """Information on θ = (shifts to the right and down, blurs and gains of all masks, black level), (4B + 1,).

    JᵀWJ, (p, p), and the score JᵀWr + JᵀWJθ₀, (p,), where θ₀ was in use; the brightness of the scene.
    """

    information: F64
    score: F64
    brightness: Brightness | None = None


class MaskErrorEstimator:
    """Mean of θ given all snapshots.

    Parameters
    ----------
    n_frames
        B.
    brightest
        The largest y of a white scene, Σφ.
    """

    def __init__(self, n_frames: int, brightest: float) -> None:
        B = self._n_frames = n_frames
        sd = np.repeat([JITTER_PX, JITTER_PX, BLUR_PX2, GAIN, BLACK * brightest], [B, B, B, B, 1])
        self._sd = sd
        self._groups = np.arange(3 * B), np.arange(3 * B, 4 * B), np.arange(4 * B, 4 * B + 1)
        self._information: F64 = np.zeros((len(sd), len(sd)))
        self._score: F64 = np.zeros(len(sd))
        self._scatter = 0.0
        self._before: Brightness | None = None
        self._trends: deque[float] = deque(maxlen=_PAIRS)
        self.snapshots = 0
        """Number of snapshots so far."""
        self.theta: F64 = np.zeros(len(sd))
        self.log_odds = 0.0
        """Natural logarithm of the odds for errors against none, ≥ 0."""

    def add(self, snapshot: MaskInformation, *, continues: bool = False) -> None:
        """Take a snapshot into account, which ``continues`` the one before or not."""
        information, score, brightness = snapshot
        if continues and brightness is not None and self._before is not None:
            self._trends.append(_trend(self._before, brightness, self._n_frames))
        self._before = brightness
        if self.snapshots:
            # What this snapshot shows beyond the earlier ones, against what chance allows for: twice the information,
            # since they are uncertain too. Only errors of the masks say the same in each.
            surprise = score - information @ self._mean(np.arange(len(score)))
            self._scatter += float((surprise**2 / (2 * information.diagonal() + _TINY)).mean())
        self.snapshots += 1
        weight = max(_NEWEST, 1 / self.snapshots)
        self._information += weight * (information - self._information)
        self._score += weight * (score - self._score)
        self.theta, self.log_odds = np.zeros(len(self._sd)), 0.0
        if self.snapshots == 1:
            return
        for count in range(1, len(self._groups) + 1):
            for groups in itertools.combinations(self._groups, count):
                self._consider(np.concatenate(groups))

    @property
    def _excess(self) -> float:
        """Scatter of the snapshots relative to that expected from their information, ≥ 1."""
        return max(1.0, self._scatter / max(1, self.snapshots - 1))

    def _scaled(self, some: npt.NDArray[np.intp]) -> tuple[F64, F64]:
        """Return information and score of some parameters, in units of their prior."""
        sd = self._sd[some]
        information, score = self._with_trend()
        return information[np.ix_(some, some)] * np.outer(sd, sd) + np.eye(len(some)), sd * score[some]

    def _with_trend(self) -> tuple[F64, F64]:
        """Return information and score of the single snapshots and of their continuity."""
        information, score = self._information / self._excess, self._score / self._excess
        if len(self._trends) < _LEAST_PAIRS:
            return information, score
        trends = np.array(self._trends)
        trend = float(np.median(trends))
        sd = max(_TREND_SD, _MAD * float(np.median(np.abs(trends - trend))))
        gains = self._groups[1]
        slope = np.zeros(len(score))
        slope[gains] = _slope(self._n_frames)
        return information + np.outer(slope, slope) / sd**2, score + slope * trend / sd**2

    def _mean(self, some: npt.NDArray[np.intp]) -> F64:
        """Return the mean of some parameters, the others being 0, (p,)."""
        theta = np.zeros(len(self._sd))
        theta[some] = self._sd[some] * np.linalg.solve(*self._scaled(some))
        return theta

    def _consider(self, some: npt.NDArray[np.intp]) -> None:
        """Take errors of some parameters alone for the estimate if they explain the snapshots best."""
        scaled, score = self._scaled(some)
        log_odds = 0.5 * float(score @ np.linalg.solve(scaled, score) - np.linalg.slogdet(scaled)[1])
        if log_odds > self.log_odds:
            self.log_odds = log_odds
            if log_odds > _LEAST_LOG_ODDS:
                self.theta = self._mean(some)

    @property
    def masks(self) -> tuple[MaskError, ...]:
        """The estimated error of each mask; empty where evidence for any is not strong."""
        if not self.theta.any():
            return ()
        return tuple(MaskError(*error) for error in self.theta[:-1].reshape(-1, self._n_frames).T.tolist())

    @property
    def black(self) -> float:
        """The estimated excess of the black level."""
        return float(self.theta[-1])


def _slope(n_frames: int) -> F64:
    """Return the weights that give half of the change of a quantity over the frames, (B,)."""
    time = np.linspace(-1, 1, n_frames)
    return np.asarray(time / (time @ time))


def trend_of(gains: F64) -> float:
    """Return half of the linear change of gains over the frames."""
    return float(_slope(len(gains)) @ gains) if len(gains) > 1 else 0.0


def _trend(before: Brightness, after: Brightness, n_frames: int) -> float:
    """Return the trend of gains that makes the brightness of blocks continue; their median, since some blocks move."""
    reach = 1 + 1 / (n_frames - 1)  # from the middle of a snapshot to half a frame beyond its last one
    fall = (before.level + reach * before.slope) - (after.level - reach * after.slope)
    light = before.level + after.level
    lit = light > 0.1 * light.max()
    return float(np.median(fall[lit] / (reach * light[lit]))) if lit.any() else 0.0
