r"""Detect masks that are given in a shuffled order, from single snapshots, without reconstructing
them.

A scene changes smoothly in time: the frames x_b of a block of pixels deviate from their mean with a
covariance that falls with |b − b′|. If the masks are in another order than they were shown in, so
does the covariance of the frames that they explain. Two steps, each snapshot by itself:

- *Find.* Where something moves, correlations of Φᵀ(ΦCΦᵀ)⁻¹y estimate how much two frames differ, up
  to a factor, with an exchangeable prior: every order is equally likely. The candidate is the order
  in which close frames differ least.
- *Test.* Other blocks decide between the candidate and the given order: log-likelihood of y in each
  block with the frames' covariance in either order, where a block that does not move supports
  neither.

An order and its reverse are the same to a single snapshot, see `sci_stream.calibration.mask_order`.

References
----------
Seriation as quadratic assignment: Hubert and Schultz, Brit. J. Math. Stat. Psychol. 29 (1976); a
start by the second eigenvector: Atkins, Boman, Hendrickson, SIAM J. Comput. 28 (1998).
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sci_stream.model import F64

Order = npt.NDArray[np.intp]

# Correlation length of a scene in space, pixels, and in time, as a fraction of B.
_LENGTH_PX, _LENGTH = 4.0, 0.5
# Variance of noise relative to that of the light, and of a block's plane, which the test must not
# depend on.
_NOISE, _PLANE = 1e-3, 30.0
# Variances of motion relative to the still scene: each block takes the likeliest. The middle one is
# for the search.
_MOTION = (0.03, 0.3)
_ANY_MOTION = 0.1
# Snapshots that are remembered, and how clearly they must prefer another order: in log-likelihood,
# and in standard errors over blocks. With right masks at most 18 and 3.6, in 82 series of six
# snapshots of which 47 with shuffled masks are found (both halves of `bench reality`, 128 × 128,
# three rigs); 4.5 finds 41 of them.
_WINDOW, _LEAST_SNAPSHOTS = 10, 3
# Blocks take turns: those of one fold find an order, those of the other test it.
_FOLDS = 2
_LEAST_LOG_ODDS, _LEAST_STANDARD_ERRORS = 20.0, 4.0
# Fraction of the snapshots that must prefer it.
_AGREED = 0.75
_ALL = slice(None)


class ShuffleDetector:
    """Look for an order of the masks that explains snapshots better than the given one."""

    def __init__(self, n_frames: int) -> None:
        self._given = np.arange(n_frames)
        self._covariances = [np.zeros((n_frames, n_frames)) for _ in range(_FOLDS)]
        self._candidates = [self._given] * _FOLDS
        self._gains = deque[F64](maxlen=_WINDOW)

    def add(self, measured: Tensor, masks: Tensor, space: Tensor) -> None:
        """Take a snapshot into account.

        Parameters
        ----------
        measured, masks
            Blocks of y, (N, p), and of the masks, (N, B, p), 0 at invalid pixels; the same blocks
            each time.
        space
            Functions that make a plane, (3, p).
        """
        blocks = _MovingBlocks(measured.double().cpu(), masks.double().cpu(), space.double().cpu())
        covariances = blocks.frame_covariances().numpy()
        gains = np.zeros(len(covariances))
        for fold in range(_FOLDS):
            self._covariances[fold] += covariances[fold::_FOLDS].sum(0)
            # Found in the other blocks: errors of the masks are the same in all snapshots, but
            # differ between blocks.
            candidate = _best_order(_differences(self._covariances[fold]), self._candidates[fold])
            self._candidates[fold] = candidate
            if not self._is_given(candidate):
                others = slice(1 - fold, None, _FOLDS)
                gains[others] = blocks.log_odds(candidate, self._given, others)
        self._gains.append(gains)

    @property
    def order(self) -> tuple[int, ...] | None:
        """A better order: the mask that is shown as number b, or B − 1 − b; None if the given one
        is as good.
        """
        log_odds, standard_errors = self.evidence
        if log_odds < _LEAST_LOG_ODDS or standard_errors < _LEAST_STANDARD_ERRORS:
            return None
        best = _best_order(_differences(sum(self._covariances, np.zeros(()))), self._candidates[0])
        return tuple(int(b) for b in best)

    @property
    def evidence(self) -> tuple[float, float]:
        """Gain of another order of the masks: in log-likelihood, and in standard errors over
        blocks.

        The snapshot that prefers it most does not count: a cut within an exposure is not smooth in
        any order.
        """
        if len(self._gains) < _LEAST_SNAPSHOTS:
            return 0.0, 0.0
        every = np.array(self._gains)
        if (every.sum(1) > 0).mean() < _AGREED:
            return 0.0, 0.0
        # The sum over snapshots first: a scene that stays gives the same each time.
        gains = np.delete(every, every.sum(1).argmax(), 0).sum(0)
        return float(gains.sum()), float(gains.sum() / (np.sqrt(np.square(gains).sum()) + 1e-9))

    def _is_given(self, order: Order) -> bool:
        return bool((order == self._given).all() or (order[::-1] == self._given).all())


class _MovingBlocks:
    """Likelihoods of blocks of one snapshot; the variance of each block is taken from itself."""

    def __init__(self, measured: Tensor, masks: Tensor, space: Tensor) -> None:
        pixels, frames = masks.shape[-1], masks.shape[1]
        self._masks, self._degrees = masks, pixels - len(space)
        self._distance = _spatial(pixels)
        light = masks.sum(1)
        plane = torch.einsum("np,sp->nps", light, space)
        level = light.square().mean(1).view(-1, 1, 1) + 1e-12
        self._fixed = _PLANE * plane @ plane.mT + _NOISE * level * torch.eye(
            pixels, dtype=masks.dtype
        )
        self._still = torch.ones(frames, frames, dtype=masks.dtype)
        root = self._root(self._still)
        self._y = measured
        self._base = self._likelihood(root)

    def _root(self, frames: Tensor, some: slice = _ALL) -> Tensor:
        """Return the Cholesky factor of the covariance of y for this covariance of frames, (N, p,
        p).
        """
        masks = self._masks[some]
        covariance = self._distance * (masks.mT @ (frames @ masks)) + self._fixed[some]
        root: Tensor = torch.linalg.cholesky(covariance)
        return root

    def _likelihood(self, root: Tensor, some: slice = _ALL) -> Tensor:
        """Return the log-likelihood of blocks, (N,)."""
        white: Tensor = torch.linalg.solve_triangular(
            root, self._y[some].unsqueeze(-1), upper=False
        ).squeeze(-1)
        misfit: Tensor = (white.square().sum(1) / self._degrees + 1e-12).log()
        return -self._degrees / 2 * misfit - root.diagonal(dim1=1, dim2=2).log().sum(1)

    def log_odds(self, order: Order, other: Order, some: slice) -> F64:
        """Return the log-likelihood of some blocks with an order less that with another."""
        return np.asarray((self._with_order(order, some) - self._with_order(other, some)).numpy())

    def _with_order(self, order: Order, some: slice) -> Tensor:
        """Return the log-likelihood of some blocks, still or moving, for this order."""
        place = torch.as_tensor(np.argsort(order)).double()
        smooth = torch.exp(-(place[:, None] - place[None]).abs() / (_LENGTH * len(order)))
        change = _centred(smooth)
        moving = [
            self._likelihood(self._root(self._still + motion * change, some), some)
            for motion in _MOTION
        ]
        return torch.stack([self._base[some], *moving]).amax(0)

    def frame_covariances(self) -> Tensor:
        """Return the score of the frames' covariance where no order is preferred, (N, B, B); 0
        where nothing moves.
        """
        eye = torch.eye(len(self._still), dtype=self._still.dtype)
        root = self._root(self._still + _ANY_MOTION * eye)
        inverse = torch.cholesky_inverse(root)
        solved = (inverse @ self._y.unsqueeze(-1)).squeeze(-1)
        scale = (self._y * solved).sum(1) / self._degrees + 1e-12
        explained = self._masks * solved.unsqueeze(1)
        seen = explained @ (self._distance @ explained.mT) / scale.view(-1, 1, 1)
        expected = self._masks @ ((self._distance * inverse) @ self._masks.mT)
        moves = torch.sigmoid(self._likelihood(root) - self._base - 2.0)
        return moves.view(-1, 1, 1) * (seen - expected)


def _spatial(pixels: int) -> Tensor:
    """Return the covariance of the pixels of a square block, (p, p)."""
    side = math.isqrt(pixels)
    axis = torch.arange(side, dtype=torch.float64)
    v, u = (part.flatten() for part in torch.meshgrid(axis, axis, indexing="ij"))
    return torch.exp(-torch.hypot(v[:, None] - v, u[:, None] - u) / _LENGTH_PX)


def _centred(matrix: Tensor) -> Tensor:
    matrix = matrix - matrix.mean(0)
    return matrix - matrix.mean(1, keepdim=True)


def _differences(covariance: F64) -> F64:
    """Return mean squared differences of frames, up to a factor and a constant, (B, B)."""
    variance = covariance.diagonal()
    return np.asarray(variance[:, None] + variance - 2 * covariance)


def _best_order(differences: F64, before: Order) -> Order:
    """Return the order in which close frames differ little: Σ differences · distance is largest."""
    similar = differences.max() - differences
    np.fill_diagonal(similar, 0.0)
    _, vectors = np.linalg.eigh(np.diag(similar.sum(1)) - similar)
    starts = np.argsort(vectors[:, 1]), before
    steps = np.arange(len(differences))
    distance = np.abs(np.subtract.outer(steps, steps)).astype(np.float64)
    ends = [_exchanged(differences, distance, start) for start in starts]
    return max(ends, key=lambda order: float((differences[np.ix_(order, order)] * distance).sum()))


def _exchanged(differences: F64, distance: F64, order: Order) -> Order:
    """Exchange the two masks that gain most, until none does."""
    for _ in range(4 * len(order)):
        placed = differences[np.ix_(order, order)]
        product = placed @ distance
        diagonal = product.diagonal()
        gain = product + product.T - diagonal[:, None] - diagonal + 2 * placed * distance
        i, j = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[i, j] <= 1e-9 * np.abs(diagonal).sum():
            break
        order = order.copy()
        order[[i, j]] = order[[j, i]]
    return order
