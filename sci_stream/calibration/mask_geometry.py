"""Measure rotation, magnification and shear of the masks from a single snapshot.

The light of all masks shows in y wherever they are: within a tile, the correlation of both has a
clear peak, whose place is the displacement of the masks there. Displacements that grow with the
place are a turned or magnified mask. Peaks between pixels are drawn to whole ones, so that the
masks are warped by the result and measured again, until nothing remains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from sci_stream.calibration.measurement import cells, surroundings
from sci_stream.model import F32, F64, BayerPhase, Flags
from sci_stream.optics.displacement import RIGID, Linear
from sci_stream.optics.mask_warp import warped_masks

# Sides of a tile and of the sensor from which it is used: a tile holds enough elements for a clear
# peak, and a turn by a degree blurs it by less than a pixel.
_TILES = ((640, 64), (200, 48), (0, 32))
# So many tiles along a side at most: more add time and little certainty.
_MAX_TILES = 12
_MIN_TILES = 9
# The masks are looked for up to this share of a sensor's side away.
_REACH = 0.0125
# On a small sensor that share is less than a pixel: so many are added.
_REACH_PX = 4
# Peaks of tiles with other masks, or without light, are lower (`mask_match.MATCH`).
_MIN_PEAK = 0.3
# Displacement of a corner, px, below which masks are left as they are: it costs less than 0.1 dB.
# Right masks show at most 0.02 (faulty rig, 128 and 256 px).
_LEAST_PX = 0.06
# A field is settled once it displaces a corner by less.
_SETTLED_PX = 0.005
_MAX_ROUNDS = 10


@dataclass(frozen=True)
class _Field:
    """Displacements that grow with the place: of a corner, px, and the median peak of the tiles."""

    linear: Linear
    corner_px: float
    peak: float


class MaskGeometry:
    """Look for a rotation, magnification and shear of masks by their light, (H, W), their sum."""

    def __init__(self, light: F32, bayer: BayerPhase | None) -> None:
        self._light = torch.from_numpy(np.asarray(light, np.float32))
        self._bayer = bayer

    def measure(self, y: F32, valid: Flags, known: Linear = RIGID) -> Linear:
        """Return the geometry that a snapshot, (H, W), shows; ``known`` if it shows no other."""
        pattern = self._modulation(y.astype(np.float64), valid)
        first = self._field(pattern, known)
        if first is None or first.corner_px < _LEAST_PX:
            return known
        field = first
        linear = known
        for _ in range(_MAX_ROUNDS):
            linear = _sum(linear, field.linear)
            again = self._field(pattern, linear)
            if again is None:
                return known
            field = again
            if field.corner_px < _SETTLED_PX:
                break
        # An estimate that does not settle, or lowers the peaks, is none of the masks.
        settled = field.corner_px <= _LEAST_PX and field.peak > first.peak
        return linear if settled else known

    def _field(self, pattern: F64, linear: Linear) -> _Field | None:
        """Return the displacements that remain with masks warped so; None if they do not show."""
        light = self._light
        if linear != RIGID:
            light = warped_masks(light.unsqueeze(0), linear)[0].clamp_min(0)
        modulation = self._modulation(light.double().numpy(), np.ones(light.shape, np.bool_))
        found = _tile_displacements(pattern, modulation)
        if len(found) < _MIN_TILES:
            return None
        height, width = pattern.shape
        growth = _growth(found)
        corner = growth @ np.array([width, height]) / 2, growth @ np.array([width, -height]) / 2
        x_right, x_down, y_right, y_down = map(float, growth.ravel())
        return _Field(
            (x_right, x_down, y_right, y_down),
            max(float(np.hypot(*place)) for place in corner),
            float(np.median(found[:, 4])),
        )

    def _modulation(self, image: F64, valid: Flags) -> F64:
        """Return an image relative to its surroundings, within each colour of a mosaic."""
        out = np.zeros_like(image)
        for cell in cells(self._bayer):
            mean = surroundings(image[cell])
            lit = (mean > max(0.05 * mean.mean(), 0.0)) & valid[cell]
            out[cell] = np.where(lit, np.clip(image[cell] / np.where(lit, mean, 1.0) - 1, -2, 2), 0)
        return out


def _sum(one: Linear, other: Linear) -> Linear:
    a, b, c, d = (first + second for first, second in zip(one, other, strict=True))
    return a, b, c, d


def _tile_displacements(pattern: F64, modulation: F64) -> F64:
    """Return place to the right and down of the centre, displacement and peak of tiles, (n, 5)."""
    side = next(tile for least, tile in _TILES if min(pattern.shape) >= least)
    reach = min(side // 2 - 2, math.ceil(_REACH * max(pattern.shape)) + _REACH_PX)
    window = np.outer(np.hanning(side), np.hanning(side))
    near = np.s_[side // 2 - reach : side // 2 + reach + 1]
    found = []
    centre = [(size - 1) / 2 for size in pattern.shape]
    tops, lefts = (_starts(size, side) for size in pattern.shape)
    for top in tops:
        for left in lefts:
            part = np.s_[top : top + side, left : left + side]
            a, b = ((image[part] - image[part].mean()) * window for image in (pattern, modulation))
            scale = math.sqrt(float(np.square(a).sum() * np.square(b).sum())) or 1.0
            product = np.fft.irfft2(np.fft.rfft2(a) * np.conj(np.fft.rfft2(b)), a.shape) / scale
            peaks = np.fft.fftshift(product)[near, near]
            row, column = np.unravel_index(peaks.argmax(), peaks.shape)
            inside = 0 < row < 2 * reach and 0 < column < 2 * reach
            if not inside or peaks[row, column] < _MIN_PEAK:
                continue
            down = row - reach + _vertex(peaks[row - 1 : row + 2, column])
            right = column - reach + _vertex(peaks[row, column - 1 : column + 2])
            middle = (side - 1) / 2
            place = (left + middle - centre[1], top + middle - centre[0])
            found.append((*place, right, down, peaks[row, column]))
    return np.array(found, np.float64).reshape(-1, 5)


def _starts(size: int, side: int) -> list[int]:
    count = min(_MAX_TILES, 2 * size // side - 1)
    return [int(start) for start in np.linspace(0, size - side, max(count, 1))]


def _vertex(values: F64) -> float:
    """Return the place of the top of a parabola through three values, from the middle one."""
    before, middle, after = values
    bend = before - 2 * middle + after
    return float((before - after) / (2 * bend)) if bend < 0 else 0.0


def _growth(found: F64) -> F64:
    """Return how displacements grow with the place, (2, 2), by least squares in which tiles that
    contradict most others count little.
    """
    design = np.column_stack([np.ones(len(found)), found[:, :2]])
    weight = np.square(found[:, 4])
    for _ in range(10):
        root = np.sqrt(weight)[:, np.newaxis]
        fit = np.linalg.lstsq(design * root, found[:, 2:4] * root, rcond=None)[0]
        rest = np.hypot(*(found[:, 2:4] - design @ fit).T)
        usual = 2 * (np.median(rest) + 0.02)
        weight = np.square(found[:, 4]) / np.square(1 + np.square(rest / usual))
    return np.asarray(fit[1:].T)
