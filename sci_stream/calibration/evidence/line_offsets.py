"""Find offsets of whole columns or rows of a sensor, which its dark frame does not have.

A line of the scene is as bright as its masks say: it adds to y in proportion to the light of the
masks at each pixel. An offset adds the same everywhere along the line. So a straight line through
the pixels of a column, y over the light of the masks, separates them. Both halves of a column have
its offset, and nothing else in common.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from sci_stream.model import F64

# Figures: eight simulated rigs of 96 to 160 px, right ones and with offsets of 25 DN.
# Looks whose sums count.
_LOOKS = 10
# Fewer looks show nothing.
_FEWEST = 4
# Offsets are differences from the mean of so many lines around.
_AROUND = 9
# Products of both halves exceed chance by so many standard errors: right rigs by up to 1.5, with
# offsets 4.6 to 5.6.
_LEAST_SIGN = 4.0
# Their correlation: 0.12 and less, with offsets 0.45 to 0.67.
_LEAST_ALIKE = 0.3
# Offsets as a standard deviation, as a share of the light: with offsets 0.08 to 0.4.
_LEAST = 0.03
# Larger offsets, over the usual ones, count as this: hot lines are other defects.
_MAX = 4.5
_TINY = 1e-12


class LineOffsets:
    """Sums over both halves of each line of the latest looks."""

    def __init__(self) -> None:
        self._looks: deque[list[F64]] = deque(maxlen=_LOOKS)

    def forget(self) -> None:
        """Forget all looks."""
        self._looks.clear()

    def add(self, rest: F64, modulation: F64, weight: F64, level: F64) -> None:
        """Add a look, each (H, W): the part of y that frames of the neighbours leave unexplained,
        the modulation of the masks, weights, and the local mean of y.
        """
        t = modulation
        parts = np.stack([np.ones_like(t), t, t * t, rest, rest * t, level]) * weight
        self._looks.append([_of_halves(parts), _of_halves(parts.swapaxes(1, 2))])

    def spread(self, axis: int) -> float:
        """Return the standard deviation of the offsets of the columns (0) or rows (1) that last,
        in units of y; 0 if they are right.
        """
        return self._common([np.sum([look[axis] for look in self._looks], 0)])

    def noise(self, axis: int) -> float:
        """Return the same of offsets that differ from look to look."""
        return self._common([look[axis] for look in self._looks])

    def _common(self, sums: list[F64]) -> float:
        """Return the standard deviation that both halves of each line have in common."""
        if len(self._looks) < _FEWEST:
            return 0.0
        pairs = [_offsets(one) for one in sums]
        first, second = (np.concatenate(halves) for halves in zip(*pairs, strict=True))
        products = first * second
        mean = float(products.mean())
        sign = float(products.sum()) / max(float(np.sqrt(np.square(products).sum())), _TINY)
        alike = mean / max(float(first.std() * second.std()), _TINY)
        weight = sum(float(one[0].sum()) for one in sums)
        level = sum(float(one[-1].sum()) for one in sums) / max(weight, _TINY)
        if sign < _LEAST_SIGN or alike < _LEAST_ALIKE or mean < (_LEAST * level) ** 2:
            return 0.0
        return float(np.sqrt(mean))


def _offsets(sums: F64) -> tuple[F64, F64]:
    """Return the offset of each line by its halves, less that of the lines around."""
    one, t, tt, rest, rest_t, _ = sums
    fit = np.maximum(one * tt - t * t, _TINY)
    slope = (one * rest_t - t * rest) / fit
    offsets = (rest - slope * t) / np.maximum(one, _TINY) - slope
    first, second = (_clipped(half - _around(half)) for half in offsets)
    return first, second


def _of_halves(parts: F64) -> F64:
    """Return the sums over the upper and the lower half of each column, (n, 2, W)."""
    n, height, width = parts.shape
    half = height // 2
    return np.asarray(parts[:, : 2 * half].reshape(n, 2, half, width).sum(2))


def _around(values: F64) -> F64:
    """Return the mean around each value."""
    padded = np.pad(values, _AROUND // 2, mode="reflect")
    return np.convolve(padded, np.full(_AROUND, 1 / _AROUND), "valid")


def _clipped(values: F64) -> F64:
    """Return values without the size of the largest ones."""
    usual = _MAX * float(np.median(np.abs(values)))
    return np.clip(values, -usual, usual)
