"""Pixels and lines that are brighter or darker than their surroundings and the masks allow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sci_stream.calibration.evidence.mask_match import local_mean
from sci_stream.model import F64, Array, BayerPhase, Flags
from sci_stream.optics import bayer as mosaics

Places = npt.NDArray[np.intp]
# The frames are fitted to the 7×7 pixels around each one that may be stuck.
_AROUND = 3
# A pixel may be stuck whose brightness over the local mean is outside these.
_STANDS_OUT = (0.4, 1.3)
# A stuck pixel differs from the fit by this many times the error of its surroundings: right ones by
# at most 7.3 (16 behind four masks) in 556 right snapshots, and above 9 in one of 391 more.
_STUCK = 11.0
# With fewer open masks at a pixel than this, in the mean, the fit is worse in proportion.
_MANY_OPEN = 4
# A dead pixel differs downwards by this many times the error: right ones by at most 2.7.
_DEAD = -3.5
# A dead pixel has less than this share of the light that the fit expects.
_DARK = 0.05
# A stuck pixel is brighter or darker than its surroundings by this factor. Without it, edges over
# black behind masks that are 12 % open and one-hot looked stuck.
_BEYOND = 1.2
# So many pixels of the surroundings may be stuck, too.
_OTHERS = 2
# A point of light that optics spread over 3×3 pixels is brighter than its neighbours, above the
# rest, by less than this factor. It hides 1 of 592 stuck pixels in four scenes.
_OF_SPOT = 8.0
# Behind sparser masks, few pixels around one show the same frame: it must outshine the whole scene.
_SPARSE = 0.2
# Ridge of the fit, relative to the mean of the diagonal.
_RIDGE = 0.1
# Noise floor, as a share of the top of the scene, or of the mean of y.
_FLOOR = 0.03
# The fit is made for so many pixels, those that stand out most.
_MAX_PLACES = 4000
# A stuck pixel has this share of the brightest of the scene: thin lines on black stand out, too,
# where few masks show them.
_BRIGHT = 0.8
# Stuck lines are less than this many pixels wide.
_LINES = 4
# A hot line varies by less than this share of the variation of the masks.
_MODULATED = 0.5
# A line is stuck with this share of its pixels.
_OF_LINE = 0.2
# A dead line is darker than this share of the lines beside it.
_DEAD_LINE = 0.1
# The lines beside a dead one have this share of the mean brightness.
_LIT_LINE = 0.3
# A hot line is brighter than its neighbours and the mean by this factor.
_HOT_LINE = 2.0
# Behind a mosaic, a point of the scene shows in neighbours of other colours, too. Relative to the
# surroundings, a bright one is brighter than the median of the eight by less than this factor: 2 to
# 4 in a splash of 96 px, where stuck pixels have 14 and more.
_OF_POINT = 8.0
# A dark one is darker than the third darkest of the eight by less than this factor: 2.4 in a fan
# and a balloon, where most dead pixels have 5 and more.
_OF_HOLE = 3.0


def stuck_pixels(y: Array, phi: Array, bayer: BayerPhase | None = None) -> Flags:
    """Return the pixels, (H, W), that the frames of their neighbours of one colour cannot make so
    bright, or so dark.

    Lines of such pixels count as well.
    """
    if bayer is not None:
        planes = zip(mosaics.split(np.asarray(y)), mosaics.split(np.asarray(phi)), strict=True)
        stuck = mosaics.merge(np.stack([stuck_pixels(*plane) for plane in planes]))
        return stuck & ~_of_scene(stuck, np.asarray(y), np.asarray(phi), bayer)
    y = np.nan_to_num(np.asarray(y, np.float64), nan=0.0)
    phi = np.asarray(phi, np.float64)
    light = phi.sum(0)
    least = 0.1 * float(light.mean())
    lit = light > least
    light = np.maximum(light, least)
    level = y / light
    top = float(np.quantile(level, 0.98))
    if min(y.shape) <= 2 * _AROUND or top <= 0:
        return np.zeros(y.shape, np.bool_)
    singles = _single_pixels(y, phi, level, top)
    stuck = singles
    for axis in (0, 1):
        line, darker, brighter = _lines(level, top, axis)
        dead = (line < _DEAD_LINE * darker) & (darker > _LIT_LINE * level.mean())
        dead &= lit.mean(axis, keepdims=True) > 0.5  # a line that no mask opens is dark
        hot = line > _HOT_LINE * np.maximum(brighter, level.mean())
        # The masks modulate a bright line of the scene.
        hot &= _variation(y, axis) < _MODULATED * _variation(light, axis)
        stuck = stuck | (singles.mean(axis, keepdims=True) > _OF_LINE) | dead | hot
    return stuck


def _of_scene(suspects: Flags, y: Array, phi: Array, bayer: BayerPhase) -> Flags:
    """Return which pixels that look stuck, (H, W), neighbours of other colours show as well.

    Stuck lines do not count.
    """
    light = phi.sum(0)
    level = np.nan_to_num(y / np.maximum(light, 0.1 * light.mean())).clip(0)
    floor = _FLOOR * float(np.quantile(level, 0.98)) + 1e-300
    ratio = (level + floor) / (local_mean(level.astype(np.float64), bayer) + floor)
    of_scene = np.zeros_like(suspects)
    in_line = (suspects.mean(0) > _OF_LINE) | (suspects.mean(1) > _OF_LINE)[:, np.newaxis]
    padded = np.pad(ratio, 1, mode="reflect")
    for row, column in np.argwhere(suspects & ~in_line):
        around = padded[row : row + 3, column : column + 3].ravel()
        beside = np.sort(np.delete(around, 4)) - 1
        excess = ratio[row, column] - 1
        near = _OF_POINT * np.median(beside) if excess > 0 else -_OF_HOLE * beside[_OTHERS]
        of_scene[row, column] = abs(excess) < near
    return of_scene


def _single_pixels(y: F64, phi: F64, level: F64, top: float) -> Flags:
    """Return the pixels that do not fit their surroundings, by the ``level`` of y over the light of
    the masks, and its ``top``.
    """
    stuck = np.zeros(y.shape, np.bool_)
    ratio = (np.maximum(level, 0) + _FLOOR * top) / (
        np.maximum(local_mean(level, None), 0) + _FLOOR * top
    )
    strength = np.maximum(ratio / _STANDS_OUT[1], _STANDS_OUT[0] / ratio)
    places = np.argsort(strength, axis=None)[-_MAX_PLACES:]
    places = places[strength.flat[places] > 1]
    if not len(places):
        return stuck
    rows, columns = np.unravel_index(places, y.shape)
    here = level[rows, columns]
    value = y[rows, columns]
    expected, error = _expected(y, phi, rows, columns)
    excess = (value - expected) / error
    low, high, spot = _range_around(level, rows, columns)
    if phi.mean() < _SPARSE:
        high = np.maximum(high, np.quantile(level, 0.999))
        low = np.full_like(low, -np.inf)  # a dark frame is no dead pixel
    bright = (here > _BRIGHT * top) & (here > _BEYOND * high) & (here > _OF_SPOT * spot)
    dark = (value < _DARK * expected) & (here * _BEYOND < low)
    few = max(1.0, _MANY_OPEN / float(phi.sum(0).mean()))
    stuck[rows, columns] = bright & (excess > _STUCK * few)
    # At the border, the surroundings of a dark object are out of sight.
    last_row, last_column = np.array(y.shape) - 1
    dark &= (rows % last_row > 0) & (columns % last_column > 0)
    stuck[rows, columns] |= dark & (excess < _DEAD)
    return stuck


def _lines(level: F64, top: float, axis: int) -> tuple[F64, F64, F64]:
    """Return the mean of each line, and of the darker and the brighter line beside it."""
    line = np.minimum(level, 2 * top).mean(axis, keepdims=True)
    padded = np.pad(line.ravel(), _LINES, mode="edge")
    beside = [padded[: -2 * _LINES], padded[2 * _LINES :]]
    darker, brighter = np.sort(beside, 0).reshape(2, *line.shape)
    return line, darker, brighter


def _variation(image: F64, axis: int) -> F64:
    """Return the standard deviation along lines over their mean."""
    mean = np.maximum(np.abs(image.mean(axis, keepdims=True)), 1e-30)
    return np.asarray(image.std(axis, keepdims=True) / mean)


def _range_around(level: F64, rows: Places, columns: Places) -> tuple[F64, F64, F64]:
    """Return the lowest and the highest brightness around pixels, and that of the nearest eight
    above the rest, but for `_OTHERS` of each.

    An edge of the scene is as bright as its surroundings on one side, a stuck pixel on none. Optics
    spread a point of light over its neighbours.
    """
    reach = np.arange(-_AROUND, _AROUND + 1)
    down, right = (grid.ravel() for grid in np.meshgrid(reach, reach, indexing="ij"))
    near = (down != 0) | (right != 0)
    padded = np.pad(level, _AROUND, mode="reflect")
    around = padded[
        rows[:, np.newaxis] + _AROUND + down[near], columns[:, np.newaxis] + _AROUND + right[near]
    ]
    beside = np.maximum(np.abs(down), np.abs(right))[near] == 1
    spot = np.sort(around[:, beside], axis=1)[:, -1 - _OTHERS]
    around.sort(axis=1)
    return around[:, _OTHERS], around[:, -1 - _OTHERS], spot - np.median(around, axis=1)


def _expected(y: F64, phi: F64, rows: Places, columns: Places) -> tuple[F64, F64]:
    """Return pixels of y as the frames of the squares around them make them, and the error of
    these.
    """
    size = 2 * _AROUND + 1
    top, left = (
        np.clip(places - _AROUND, 0, side - size)
        for places, side in zip((rows, columns), y.shape, strict=True)
    )
    square = (
        top[:, np.newaxis] + np.arange(size**2) // size,
        left[:, np.newaxis] + np.arange(size**2) % size,
    )
    around = y[square]
    masks = np.moveaxis(phi[:, *square], 0, -1)
    here = (np.arange(len(rows)), (rows - top) * size + columns - left)
    around[here] = 0
    masks[here] = 0
    lit = masks.sum(-1)
    # Other stuck pixels are not to be fitted.
    bound = 3 * np.quantile(around / np.maximum(lit, 1e-3 * lit.mean()), 0.8, 1, keepdims=True)
    around = np.minimum(around, lit * bound)
    mean = around.sum(1, keepdims=True) / np.maximum(lit.sum(1, keepdims=True), 1e-30)
    gram = masks.transpose(0, 2, 1) @ masks
    ridge = _RIDGE / len(phi) * np.trace(gram, axis1=1, axis2=2) + 1e-300
    gram += ridge[:, np.newaxis, np.newaxis] * np.eye(len(phi))
    rest = (around - lit * mean)[..., np.newaxis]
    frames = np.maximum(mean + np.linalg.solve(gram, masks.transpose(0, 2, 1) @ rest)[..., 0], 0)
    errors = np.abs(around - (masks @ frames[..., np.newaxis])[..., 0])
    error = np.quantile(errors, 0.8, 1) + _FLOOR * float(np.maximum(y, 0).mean())
    beside = (rows - top != _AROUND) | (columns - left != _AROUND)
    error = np.where(beside, 2 * error, error)  # extrapolated at the border
    return (phi[:, rows, columns].T * frames).sum(1), error
