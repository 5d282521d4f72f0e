"""Tell from consecutive snapshots when exposure time, gain or lamp change.

One snapshot does not tell a change of gain from a brighter scene. From one snapshot to the next, a
change of gain multiplies dark and bright places by one factor, also where the scene moves on. A
gain that drifts does so over several snapshots.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

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
# this number: in 24 of 27 rigs. So does the median of the cells: not where a balloon bursts.
_ALIKE = 0.4
_UNIFORM = 0.06
# A step of the quantiles is so many times the usual one of the scene: a balloon that bursts has
# uniform steps of 0.16, where 0.09 to 0.17 are usual.
_UNUSUAL = 4.0
_USUAL_PAIRS = 8
_FEWEST_PAIRS = 3
# A drift shows over so many snapshots, and over fewer at the start of a run: one of 1.5 % a
# snapshot was known within ten in 179 of 320 drawn rigs (4000 to 4319), and none in 30 right
# snapshots of each.
_SPAN = 8
_SHORT_SPAN = 4
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
# So many steps in `_SPAN` snapshots are no flash: the light is unsteady.
_UNSTEADY = 3
_TINY = 1e-6


class _CellLight(NamedTuple):
    """Logarithms of the light of cells, and those of which it is known."""

    id: SnapshotId
    level: F64
    usable: Flags


class BrightnessSteps:
    """The factor by which steps have changed the brightness since the first snapshot."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._light = _cells(calibration.phi.sum(0) * calibration.good)
        self._pictures = deque[_CellLight](maxlen=_SPAN)
        """Those since the last step."""
        # Steps of the quantiles, whatever their sign: from snapshot to snapshot, and over many.
        self._usual = deque[float](maxlen=_USUAL_PAIRS)
        self._usual_of_many = deque[float](maxlen=_USUAL_PAIRS)
        self._steps = 0.0
        self._drifts = 0.0
        """The last step over many snapshots; another one must follow before it counts."""
        self._largest = 0.0
        self._latest = deque[bool](maxlen=_LASTS)
        """Whether the last snapshots had another brightness than the first one."""
        self._jumps = deque[bool](maxlen=_SPAN)
        """Whether the brightness of the last snapshots was another one than just before."""

    def add(self, id_: SnapshotId, counts: Array) -> bool:
        """Add each snapshot, (H, W) DN; return whether the defects are others now."""
        known = self.defects
        if self._light.size >= _FEWEST_CELLS:
            self._compare(self._picture(id_, counts))
        return self.defects != known

    def _picture(self, id_: SnapshotId, counts: Array) -> _CellLight:
        calibration = self._calibration
        y = np.nan_to_num(calibration.measurement(counts)) * calibration.good
        level = _cells(y) / np.maximum(self._light, _TINY)
        usable = (level > _LIT * level.mean()) & (self._light > _LIT * self._light.mean())
        if calibration.saturation_dn is not None:
            clipped = (counts >= calibration.saturation_dn).astype(np.float32)
            usable &= _cells(clipped) == 0
        return _CellLight(id_, np.log(np.maximum(level, _TINY)), usable)

    def _compare(self, now: _CellLight) -> None:
        pictures = self._pictures
        if pictures and not _is_one_run(pictures[-1].id, now.id):
            pictures.clear()
        step = _step(pictures[-1], now, self._usual) if pictures else 0.0
        self._jumps.append(step != 0)
        if not step and len(pictures) >= _SHORT_SPAN:
            drifts = self._drifts
            self._drifts = _step(pictures[0], now, self._usual_of_many)
            # A drift goes on, a scene hardly does.
            step = self._drifts if drifts else 0.0
        if step:
            self._steps += step
            self._largest = max(self._largest, abs(step))
            self._drifts = 0.0
            pictures.clear()
        pictures.append(now)
        self._latest.append(self.has_changed)

    @property
    def has_changed(self) -> bool:
        """Whether the brightness is another one since a step."""
        return abs(self._steps) >= max(math.log(_LEAST_FACTOR), _ERROR * self._largest)

    @property
    def defects(self) -> list[Defect]:
        """The change that lasts; empty for none."""
        if sum(self._jumps) >= _UNSTEADY:
            text = (
                "the light flickers: the brightness changes from snapshot to snapshot, by up to "
                f"{math.expm1(self._largest):.0%}, everywhere alike; look at the lamp, its supply "
                "and the trigger of the exposure"
            )
        elif sum(self._latest) == _LASTS:
            text = (
                f"the picture became {math.exp(self._steps):.2f} times as bright, everywhere "
                "alike: exposure time, gain or lamp have changed, or the sensor keeps a part of "
                "the snapshot before; set them back, or calibrate again"
            )
        else:
            return []
        return [Defect("brightness", text)]


def _is_one_run(one: SnapshotId, other: SnapshotId) -> bool:
    return (one.series, one.epoch) == (other.series, other.epoch)


def _step(before: _CellLight, now: _CellLight, usual: deque[float]) -> float:
    """Return the logarithm of the factor between the cells of two pictures; 0 if it is not the same
    one for dark and bright cells.

    ``usual`` steps of the scene are smaller. This one is added to them, unless it is none of the
    scene: then the larger ones were none, either.
    """
    usable = before.usable & now.usable
    if usable.sum() < _FEWEST_CELLS:
        return 0.0
    first = before.level[usable]
    second = now.level[usable]
    contrast = first.std()
    if min(contrast, second.std()) < _LEAST_CONTRAST:
        return 0.0
    of_scene = np.quantile(second, _QUANTILES) - np.quantile(first, _QUANTILES)
    step, is_uniform = _factor(of_scene)
    is_usual = len(usual) < _FEWEST_PAIRS or abs(step) < _UNUSUAL * float(np.median(usual))
    usual.append(abs(step))
    if abs(second.std() / contrast - 1) > _AS_STRONG:
        return 0.0
    of_cells, are_uniform = _factor(second - first)
    if abs(of_cells - step) > _ALIKE * abs(step):
        # A part of the scene that changes by itself changes the quantiles, and few cells.
        is_uniform = False
    if not is_uniform or is_usual:
        step, is_uniform = of_cells, are_uniform
    if not is_uniform:
        return 0.0
    smaller = sorted(usual)[: len(usual) // 2]
    usual.clear()
    usual.extend(smaller)
    return step


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
