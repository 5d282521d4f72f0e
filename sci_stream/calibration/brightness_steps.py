"""Tell from consecutive snapshots when exposure time, gain or lamp change.

One snapshot does not tell a change of gain from a brighter scene. From one snapshot to the next, a
change of gain multiplies dark and bright places by one factor, also where the scene moves on.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.model import F32, F64, Array, Flags, SnapshotId
from sci_stream.optics.calibration import Calibration

# Means over cells of so many pixels hardly know of the masks.
_CELL_PX = 8
# Fewer cells show no picture.
_FEWEST_CELLS = 64
# Darker cells do not count, relative to the mean.
_LIT = 0.1
# Cells sorted by their brightness show a factor at these places.
_QUANTILES = np.linspace(0.1, 0.9, 9)
# Figures: 52 drawn rigs of 128 to 160 px, right ones, and 27 of them whose light rose by a tenth.
# Smaller steps, as the logarithm of the factor, may be the scene's: 0.018 at most where they are
# uniform.
_LEAST_STEP = 0.05
# Three quarters of the places have the same factor within this share of its logarithm, and within
# this number: in 24 of 27 rigs.
_ALIKE = 0.4
_UNIFORM = 0.06
# A step of the quantiles is so many times the usual one of the scene: a balloon that bursts has
# uniform steps of 0.16, where 0.09 to 0.17 are usual.
_UNUSUAL = 4.0
_USUAL_PAIRS = 8
_FEWEST_PAIRS = 3
# A white area shows no picture: less than this contrast, as the standard deviation of logarithms.
_LEAST_CONTRAST = 0.1
# The contrast is as strong as before within this share: 0.97 to 1.03 times after a change of gain,
# 0.64 to 0.77 times after stray light or a gamma.
_AS_STRONG = 0.1
# A sum of steps is named from this factor on.
_LEAST_FACTOR = 1.05
# A smaller share of the largest step is an error of its measurement.
_ERROR = 0.2
# Snapshots in a row that it lasts: a flash is none.
_LASTS = 3
_TINY = 1e-6


class BrightnessSteps:
    """The factor by which steps have changed the brightness since the first snapshot."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._light = _cells(calibration.phi.sum(0) * calibration.good)
        self._before: tuple[SnapshotId, F64, Flags] | None = None
        self._usual = deque[float](maxlen=_USUAL_PAIRS)
        """Steps of the quantiles, whatever their sign."""
        self._steps = 0.0
        self._largest = 0.0
        self._lasts = 0

    def add(self, id_: SnapshotId, counts: Array) -> bool:
        """Add each snapshot, (H, W) DN; return whether the defects are others now."""
        known = self.defects
        if self._light.size >= _FEWEST_CELLS:
            self._compare(id_, counts)
        return self.defects != known

    def _compare(self, id_: SnapshotId, counts: Array) -> None:
        calibration = self._calibration
        y = np.nan_to_num(calibration.measurement(counts)) * calibration.good
        level = _cells(y) / np.maximum(self._light, _TINY)
        usable = (level > _LIT * level.mean()) & (self._light > _LIT * self._light.mean())
        if calibration.saturation_dn is not None:
            clipped = (counts >= calibration.saturation_dn).astype(np.float32)
            usable &= _cells(clipped) == 0
        now = (id_, np.log(np.maximum(level, _TINY)), usable)
        before = self._before
        self._before = now
        self._lasts += 1
        if before is None or (before[0].series, before[0].epoch) != (id_.series, id_.epoch):
            return
        usable = before[2] & usable
        if usable.sum() < _FEWEST_CELLS:
            return
        step = self._step(before[1][usable], now[1][usable])
        if step:
            self._steps += step
            self._largest = max(self._largest, abs(step))
            self._lasts = 1

    def _step(self, first: F64, second: F64) -> float:
        """Return the logarithm of the factor between the cells of two pictures, as logarithms; 0 if
        it is not the same one for dark and bright cells.
        """
        contrast = first.std()
        if min(contrast, second.std()) < _LEAST_CONTRAST:
            return 0.0
        of_scene = np.quantile(second, _QUANTILES) - np.quantile(first, _QUANTILES)
        step, is_uniform = _factor(of_scene)
        is_usual = len(self._usual) < _FEWEST_PAIRS
        is_usual = is_usual or abs(step) < _UNUSUAL * float(np.median(self._usual))
        self._usual.append(abs(step))
        if abs(second.std() / contrast - 1) > _AS_STRONG:
            return 0.0
        if is_uniform and not is_usual:
            return step
        # A part of the scene that changes by itself changes the quantiles, and few cells.
        step, is_uniform = _factor(second - first)
        return step if is_uniform else 0.0

    @property
    def has_changed(self) -> bool:
        """Whether the brightness is another one since a step."""
        return abs(self._steps) >= max(math.log(_LEAST_FACTOR), _ERROR * self._largest)

    @property
    def defects(self) -> list[Defect]:
        """The change that lasts; empty for none."""
        if not self.has_changed or self._lasts < _LASTS:
            return []
        text = (
            f"the picture became {math.exp(self._steps):.2f} times as bright at once, everywhere "
            "alike: exposure time, gain or lamp have changed, or the sensor keeps a part of the "
            "snapshot before; set them back, or calibrate again"
        )
        return [Defect("brightness", text)]


def _factor(steps: F64) -> tuple[float, bool]:
    """Return the logarithm of the factor of most places, and whether it is one for all of them."""
    step = float(np.median(steps))
    spread = float(np.quantile(np.abs(steps - step), 0.75))
    is_uniform = spread < min(_ALIKE * abs(step), _UNIFORM)
    return step, is_uniform and abs(step) > _LEAST_STEP


def _cells(image: F32) -> F64:
    """Return the means over cells, (h, w)."""
    rows, columns = (size // _CELL_PX for size in image.shape)
    whole = image[: rows * _CELL_PX, : columns * _CELL_PX].astype(np.float64)
    return np.asarray(whole.reshape(rows, _CELL_PX, columns, _CELL_PX).mean((1, 3)))
