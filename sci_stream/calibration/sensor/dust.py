"""Find dust before the sensor: places that take the same share of the light from every scene.

A dark place of a scene looks the same in one snapshot. Over several, a scene that passes changes
inside such a place as much as around it, and dust keeps its contrast. A scene at rest says nothing,
unless the dust arrives meanwhile; see `dust_arrival`.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch.nn import functional

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.sensor.dust_arrival import DustArrivals
from sci_stream.calibration.sensor.speck_fit import fitted_speck, log_light
from sci_stream.model import F32, F64, Flags
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.sensor_errors import MAX_SPECKS, Speck

# Figures: 96 rigs of eight scenes, 128 and 192 px, eleven snapshots each. Three specks of 3, 5 and
# 8 px that take 70 % of the light were found in 16 of them, and none without specks. Thresholds are
# those of 96 other rigs.
_LOOKS = 8
# Cells of so many pixels are compared, of twice as many on large sensors.
_CELL_PX = 2
_LARGE_PX = 640
# Sides of squares, in cells: a place, the gap around it, its ring, and its surroundings.
_PLACE = 3
_GAP = 7
_RING = 13
_SURROUNDINGS = 25
# Places beside the edge have no ring.
_EDGE = 6
# Dust takes at least this in the logarithm of the light, in the mean, and half of it in each look.
_LEAST = 0.3
# It stands out from usual contrasts of its surroundings by this factor. Right places reach 8 where
# they fail another bound.
_STANDS_OUT = 6.0
# Larger contrasts count as this one among the usual ones, since dust is around dust as well.
_LARGE = 0.3
# Contrast of dust varies less than this share of it.
_STEADY = 0.12
# The scene changes at the place by this share of the contrasts around, which move on with it.
_MOVES = 0.5
# It changes by this share of the changes around.
_ALIKE = 0.5
# The ring changes by this share of the changes at the place: a dark thing that moves has its own.
_WITH_RING = 0.8
# Fine texture that passes does not, but it hardly changes the contrast: by less than this share.
_VERY_STEADY = 0.05
# Smaller changes, in the logarithm, are noise.
_LEAST_CHANGE = 0.02
# So many cells of dust, at least.
_CELLS = 3
# Darker cells count as having this share of the mean light.
_DARK = 0.02
# Specks are fitted to the mean of so many looks, in which the scene fades.
_MEAN_LOOKS = 100
# Known specks are fitted again after so many looks.
_REFIT = 5
# A mean of fewer looks still shows the scene.
_FEWEST_OF_MEAN = 4


class Dust:
    """Compare the contrasts of places in the latest looks.

    ``correct``: fit a speck to each place, see `specks`.
    """

    def __init__(self, calibration: Calibration, *, correct: bool = False) -> None:
        self._correct = correct
        self._fitted: tuple[Speck, ...] = ()
        """Specks that were fitted to the mean."""
        self._mean: F32 | None = None
        """Mean logarithm of the light of each pixel."""
        self._added = 0
        open_to_light = calibration.phi.sum(0)
        self._light = np.maximum(open_to_light, _DARK * open_to_light.mean())
        large = max(calibration.shape) > _LARGE_PX
        self._cell_px = 2 * _CELL_PX if large else _CELL_PX
        self._looks = deque[F32](maxlen=_LOOKS)
        self._shown: tuple[Flags, F32] | None = None
        """Cells of dust, and the mean contrast of each cell; None while the looks show none."""
        light = self._cells(open_to_light)
        self._possible = min(light.shape) > _SURROUNDINGS
        self._arrivals = DustArrivals(self._light, self._cell_px)
        if self._possible:
            self._open = [np.maximum(_mean(light, _PLACE), _DARK), np.maximum(_ring(light), _DARK)]

    @property
    def specks(self) -> tuple[Speck, ...]:
        """Specks of dust whose light can be restored."""
        if not self._correct:
            return ()
        arrived = tuple(one.fit.speck for one in self._arrivals.known if one.fit.is_round)
        return (*arrived, *self._fitted)[:MAX_SPECKS]

    def begin_anew(self) -> None:
        """Forget all looks, and the dust that they show. Dust that arrived is still there."""
        self._looks.clear()
        self._shown = None
        self._forget_mean()

    def _forget_mean(self) -> None:
        self._mean = None
        self._added = 0
        self._fitted = ()

    def add(self, y: F32) -> None:
        """Add a measurement, (H, W)."""
        if not self._possible:
            return
        cells = self._cells(np.nan_to_num(y))
        places, rings = (
            part / light
            for part, light in zip((_mean(cells, _PLACE), _ring(cells)), self._open, strict=True)
        )
        least = max(_DARK * float(places.mean()), 1e-6)
        place, ring = (np.log(np.maximum(part, least)) for part in (places, rings))
        self._looks.append(np.stack((place, ring)))
        self._shown = self._dusty()
        known = self._arrivals.known
        self._arrivals.add(place - ring, y)
        if len(self._arrivals.known) > len(known):
            # The mean is of looks without this dust.
            self._forget_mean()
        if self._correct:
            self._renew_specks(y)

    def _renew_specks(self, y: F32) -> None:
        """Look for specks, and fit those that are known again."""
        latest = log_light(y, self._light)
        self._added += 1
        share = 1 / min(self._added, _MEAN_LOOKS)
        self._mean = latest if self._mean is None else self._mean + share * (latest - self._mean)
        if self._added % _REFIT == 0:
            again = (fitted_speck(self._mean, one.x_px, one.y_px) for one in self._fitted)
            self._fitted = tuple(one for one in again if one is not None)
        x_px, y_px = self._places()
        for known in self.specks:
            apart = np.hypot(x_px - known.x_px, y_px - known.y_px) > 2 * known.radius_px + 4
            x_px, y_px = x_px[apart], y_px[apart]
        if not len(x_px) or len(self.specks) >= MAX_SPECKS:
            return
        # Cells of one speck are near each other; another speck has its turn at the next look.
        turn = self._added % len(x_px)
        near = np.hypot(x_px - x_px[turn], y_px - y_px[turn]) < _RING * self._cell_px / 2
        speck = fitted_speck(self._mean, float(x_px[near].mean()), float(y_px[near].mean()))
        if speck is not None:
            self._fitted += (speck,)

    def _places(self) -> tuple[F64, F64]:
        """Return x and y of cells of dust, in pixels."""
        cells = np.zeros((0, 2)) if self._shown is None else np.argwhere(self._shown[0])
        if self._added >= _FEWEST_OF_MEAN:
            arrived = [(one.row, one.column) for one in self._arrivals.known]
            cells = np.vstack([cells, np.array(arrived).reshape(-1, 2)])
        y_px, x_px = self._cell_px * (cells.T + 0.5) - 0.5
        return x_px, y_px

    @property
    def defects(self) -> list[Defect]:
        """Dust that the looks show; empty for none."""
        arrived = self._arrivals.known
        if self.specks:
            deepest = min(self.specks, key=lambda speck: speck.share)
            place = round(deepest.x_px), round(deepest.y_px)
            return [_named(place, 1 - deepest.share, is_restored=True)]
        if arrived:
            darkest = min(arrived, key=lambda one: one.share)
            return [_named(self._pixel(darkest.row, darkest.column), 1 - darkest.share)]
        if self._shown is None:
            return []
        dusty, contrast = self._shown
        row, column = np.unravel_index(np.where(dusty, contrast, 0.0).argmin(), dusty.shape)
        share = 1 - float(np.exp(contrast[row, column]))
        return [_named(self._pixel(int(row), int(column)), share)]

    def _pixel(self, row: int, column: int) -> tuple[int, int]:
        """Return x and y of the middle of a cell."""
        return self._cell_px * column + self._cell_px // 2, self._cell_px * row + self._cell_px // 2

    def _dusty(self) -> tuple[Flags, F32] | None:
        """Return cells of dust, and the mean contrast of each cell, a logarithm; None for none."""
        if len(self._looks) < _LOOKS:
            return None
        places = np.stack(self._looks, 1)
        contrasts = places[0] - places[1]
        contrast = contrasts.mean(0)
        # What changes by itself also changes relative to the picture, and a place at rest does not.
        relative = places - np.median(places[0], (1, 2)).reshape(1, -1, 1, 1)
        change, of_ring = np.minimum(places.std(1), relative.std(1))
        around = 1.25 * _mean(np.minimum(np.abs(contrast), _LARGE), _SURROUNDINGS)
        dusty = (contrast < -_LEAST) & (contrasts.max(0) < -_LEAST / 2)
        dusty &= contrast < -_STANDS_OUT * around
        dusty &= change > np.maximum(_MOVES * around, _LEAST_CHANGE)
        dusty &= change > _ALIKE * _mean(change, _SURROUNDINGS)
        varies = contrasts.std(0)
        dusty &= varies < -_STEADY * contrast
        dusty &= (of_ring > _WITH_RING * change) | (varies < -_VERY_STEADY * contrast)
        # A single event is no scene that passes.
        jumps = np.abs(np.diff(places[0], axis=0)) > change / 2
        dusty &= jumps.sum(0) > 1
        inside = np.zeros_like(dusty)
        inside[_EDGE:-_EDGE, _EDGE:-_EDGE] = True
        dusty &= inside
        return (dusty, contrast) if dusty.sum() >= _CELLS else None

    def _cells(self, image: F32) -> F32:
        side = self._cell_px
        height, width = (size // side for size in image.shape)
        whole = image[: height * side, : width * side].reshape(height, side, width, side)
        return np.asarray(whole.mean((1, 3)), np.float32)


def _named(place: tuple[int, int], share: float, *, is_restored: bool = False) -> Defect:
    """Return dust at a place as a defect."""
    done = "this light is restored; " if is_restored else ""
    text = (
        f"something at ({place[0]}, {place[1]}) px in (x, y) takes {share:.0%} of the light "
        f"of every scene: dust on the window of the sensor, or on the masks; {done}clean them, or "
        "calibrate again"
    )
    return Defect("dust", text, corrected=is_restored)


def _mean(image: F32, side: int) -> F32:
    """Return the mean of the square around each cell."""
    planes = torch.from_numpy(image)[None, None]
    for kernel in ((side, 1), (1, side)):
        padding = (kernel[0] // 2, kernel[1] // 2)
        planes = functional.avg_pool2d(planes, kernel, 1, padding, count_include_pad=False)
    return np.asarray(planes[0, 0].numpy())


def _ring(image: F32) -> F32:
    """Return the mean of the ring around each cell."""
    whole = _RING**2
    hole = _GAP**2
    ring = _mean(image, _RING) * whole - _mean(image, _GAP) * hole
    return np.asarray(ring / (whole - hole), np.float32)
