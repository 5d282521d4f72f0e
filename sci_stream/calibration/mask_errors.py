r"""Estimate the errors of single masks over snapshots: shift and gain of each mask, and the black level.

Each snapshot gives a linear model of the residual, r ≈ J θ, from blocks in which the scene is eliminated
(`sci_stream.calibration.mask_registration`). Information JᵀWJ and score JᵀWr are averaged over snapshots, not added up:
a scene that stays repeats its own misfit. The prior is the errors that rigs have, so that what snapshots do not show
stays at 0. Two things reduce the information: if scores of blocks scatter more than it says, since texture is no white
noise; and if those of snapshots do, since only errors of the masks say the same each time, and a lamp that is turned up
does not. Whether to correct anything is decided by evidence: the probability of what was measured with errors of the
prior's size against that with none, for shapes (shift and blur), gains and black level in all combinations.

References
----------
Information filter: Anderson and Moore, "Optimal Filtering" (1979), section 6.3. Evidence of linear Gaussian models:
MacKay, "Bayesian interpolation", Neural Computation 4 (1992).
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sci_stream.optics.mask_errors import MaskError

F64 = npt.NDArray[np.float64]

# Standard deviations of the errors of a rig that was calibrated with care and has since warmed up: shift of a mask,
# pixels; gain of a frame; black level relative to the brightest y there is.
JITTER_PX, BLUR_PX2, GAIN, BLACK = 0.2, 0.05, 0.05, 0.01
# Weight of a snapshot in the mean: errors that drift are followed within some ten of them.
_NEWEST = 0.1
# Least logarithm of the odds to correct anything: 150 to 1, "very strong".
_LEAST_LOG_ODDS = 5.0
_TINY = 1e-30


class Evidence(NamedTuple):
    """What snapshots say of θ = (shifts to the right and down, blurs and gains of all masks, black level), (4B + 1,).

    Information and score, JᵀWJ, (p, p), and JᵀWr + JᵀWJθ₀, (p,), where θ₀ was in use.
    """

    information: F64
    score: F64


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
        self.snapshots = 0
        """Number of snapshots so far."""
        self.theta: F64 = np.zeros(len(sd))
        self.log_odds = 0.0
        """Natural logarithm of the evidence for errors against none."""

    def add(self, snapshot: Evidence) -> None:
        """Take a snapshot into account."""
        information, score = snapshot
        if self.snapshots:
            # What this snapshot says beyond the earlier ones, against what chance allows for: twice the information,
            # since they are uncertain too. Only errors of the masks say the same in each.
            surprise = score - information @ self._mean(np.arange(len(score)))
            self._scatter += float((surprise**2 / (2 * information.diagonal() + _TINY)).mean())
        self.snapshots += 1
        weight = max(_NEWEST, 1 / self.snapshots)
        self._information += weight * (information - self._information)
        self._score += weight * (score - self._score)
        self.theta, self.log_odds = np.zeros(len(self._sd)), _LEAST_LOG_ODDS
        if self.snapshots == 1:
            return
        for count in range(1, len(self._groups) + 1):
            for groups in itertools.combinations(self._groups, count):
                self._consider(np.concatenate(groups))

    @property
    def _excess(self) -> float:
        """By how much snapshots scatter more than their information says."""
        return max(1.0, self._scatter / max(1, self.snapshots - 1))

    def _scaled(self, some: npt.NDArray[np.intp]) -> tuple[F64, F64]:
        """Return information and score of some parameters, in units of their prior."""
        sd = self._sd[some]
        information = self._information[np.ix_(some, some)] * np.outer(sd, sd)
        return information / self._excess + np.eye(len(some)), sd * self._score[some] / self._excess

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
            self.log_odds, self.theta = log_odds, self._mean(some)

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
