"""Fit a round speck of dust to a place of the mean picture of many scenes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sci_stream.model import F32, F64
from sci_stream.optics.sensor_errors import Speck

# The fit reads a square that reaches so far from the place, pixels.
_REACH_PX = 20
# The fit begins with each of these radii, pixels, and this share of the light.
_RADII_PX = (2.5, 4.0, 6.0, 9.0)
_SHARE = 0.4
# Centre (x, y) relative to the place, radius, share, edge: their bounds.
_LEAST = np.array([-8.0, -8.0, 1.0, 0.15, 0.3])
_LARGEST = np.array([8.0, 8.0, 14.0, 0.97, 3.0])
_STEP = 0.01
_MAX_STEPS = 20
# A step that gains a smaller share of the misfit is the last one.
_SETTLED = 1e-4
# A speck takes at least this share of the light.
_LEAST_TAKEN = 0.2
# It explains at least this share of the contrast beside a smooth scene: a place of a scene is not
# round.
# Specks in two scenes explain 0.8 to 0.95 of it.
_EXPLAINS = 0.7
# Darker pixels count as having this share of the mean light.
_DARK = 0.02


def log_light(y: F32, masks_sum: F32) -> F32:
    """Return the logarithm of the light of each pixel, (H, W), of a measurement."""
    lit = y / masks_sum
    return np.asarray(np.log(np.maximum(lit, max(_DARK * float(lit.mean()), 1e-6))))


class SpeckFit(NamedTuple):
    """A speck, and the share of the contrast of its place that it explains."""

    speck: Speck
    explained: float

    @property
    def is_round(self) -> bool:
        """Whether the place looks like a speck."""
        return self.explained >= _EXPLAINS


def fitted_speck(picture: F32, x_px: float, y_px: float) -> Speck | None:
    """Return the speck near a place; None if the place does not look like one; see `fit_speck`."""
    fit = fit_speck(picture, x_px, y_px)
    return fit.speck if fit is not None and fit.is_round else None


def fit_speck(picture: F32, x_px: float, y_px: float) -> SpeckFit | None:
    """Fit a speck near a place; return None if the best one takes little light, or is too large.

    ``picture``, (H, W), is the mean logarithm of the light. Beside the speck it is a polynomial of
    the second degree.
    """
    height, width = picture.shape
    row, column = round(y_px), round(x_px)
    rows = slice(max(0, row - _REACH_PX), min(height, row + _REACH_PX + 1))
    columns = slice(max(0, column - _REACH_PX), min(width, column + _REACH_PX + 1))
    part = picture[rows, columns].astype(np.float64)
    for first in np.ndindex(2, 2):
        # Colour filters take light, too.
        one = (slice(first[0], None, 2), slice(first[1], None, 2))
        part[one] -= np.median(part[one])
    down, right = np.mgrid[rows, columns].astype(np.float64)
    place = _Place(part, right - x_px, down - y_px)
    fits = [place.fit(radius_px) for radius_px in _RADII_PX]
    misfit, best = min(fits, key=lambda fit: fit[0])
    x, y, radius, share, edge = (float(value) for value in best)
    explained = 1 - misfit / max(place.without_speck, 1e-12)
    at_bound = bool((best[:3] <= _LEAST[:3]).any() or (best[:3] >= _LARGEST[:3]).any())
    if at_bound or share > 1 - _LEAST_TAKEN:
        return None
    return SpeckFit(Speck(x_px + x, y_px + y, radius, share, edge), explained)


class _Place:
    """A part of a picture, and pixels of it relative to a place."""

    def __init__(self, part: F64, right: F64, down: F64) -> None:
        self._right = right
        self._down = down
        x = right.ravel() / _REACH_PX
        y = down.ravel() / _REACH_PX
        powers = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], 1)
        self._scene, _ = np.linalg.qr(powers)
        self._part = self._beside(part.ravel())
        self.without_speck = float(self._part @ self._part)
        """Sum of the squares that a smooth scene leaves."""

    def _beside(self, values: F64) -> F64:
        """Return values without the smooth scene among them."""
        return values - self._scene @ (self._scene.T @ values)

    def _rest(self, speck: F64) -> F64:
        x, y, radius, share, edge = speck
        beyond = (np.hypot(self._down - y, self._right - x) - radius) / edge
        light = 1 - (1 - share) / (1 + np.exp(np.clip(beyond, -30.0, 30.0)))
        return self._part - self._beside(np.log(light).ravel())

    def fit(self, radius_px: float) -> tuple[float, F64]:
        """Return the misfit and the parameters of the best speck near a radius, by Levenberg and
        Marquardt's method.
        """
        speck = np.array([0.0, 0.0, radius_px, _SHARE, 1.0])
        rest = self._rest(speck)
        misfit = float(rest @ rest)
        damping = 0.01
        for _ in range(_MAX_STEPS):
            steps = _STEP * np.eye(len(speck))
            slopes = np.stack([(self._rest(speck + one) - rest) / _STEP for one in steps], 1)
            normal = slopes.T @ slopes
            normal += damping * np.diag(np.diag(normal)) + 1e-9 * np.eye(len(speck))
            moved = speck - np.linalg.solve(normal, slopes.T @ rest)
            moved = np.clip(moved, _LEAST, _LARGEST)
            moved_rest = self._rest(moved)
            moved_misfit = float(moved_rest @ moved_rest)
            if moved_misfit >= misfit:
                damping *= 5
                continue
            is_settled = misfit - moved_misfit < _SETTLED * misfit
            speck = moved
            rest = moved_rest
            misfit = moved_misfit
            damping /= 3
            if is_settled:
                break
        return misfit, speck
