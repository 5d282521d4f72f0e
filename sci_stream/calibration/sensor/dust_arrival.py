"""Find dust that arrives: places that become darker at once, and stay so.

A thing of the scene that comes and rests looks alike. Where things do so, other places become
darker or brighter in the same way, now or before. Dust stands out from them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from sci_stream.calibration.sensor.speck_fit import SpeckFit, fit_speck, log_light
from sci_stream.model import F32, Flags
from sci_stream.optics.sensor_errors import MAX_SPECKS

# Thresholds: 80 drawn rigs of 128 to 192 px, ten scenes, 26 looks each, right ones and with three
# specks that take 70 % of the light. In them and 80 others of 40 looks, dust was known within ten
# looks in 117 of 160 rigs, and in none without. Most of the others have large dark things.
# So many looks before and after are compared.
_BEFORE = 4
_AFTER = 4
# A speck is fitted to their means, and to the next looks, between which a slow scene rests.
_COMPARED = (4, 1)
# Each look after is darker than each look before, by this difference of logarithms at least.
_LEAST = 0.3
# Dust is darker by this difference, and by up to the second one more where a speck explains little
# of it: a drop that came to rest, of which a speck explained 0.29, was darker by 0.61, as one of
# 240 right rigs.
_LEAST_OF_DUST = 0.5
_MORE_IF_NOT_ROUND = 0.4
# It stands out from the usual change by the first factor, less the second one times the share that
# a speck explains.
_STANDS_OUT = 2.0
_LESS_IF_ROUND = 1.4
# A speck explains at least this share of the change of the place. Places of right rigs that stood
# out reached 0.23, and 115 of 129 specks more.
_LEAST_EXPLAINED = 0.25
# A larger speck fills its ring.
_MAX_RADIUS_PX = 11.0
# Beside larger changes, nothing stands out.
_MAX_USUAL = 1.0
# The usual change is that of so many latest windows of looks.
_USUAL = 60
# Fewer windows do not show it.
_FEWEST = 8
# Dust is there for so many more looks.
_LASTS = 3
# So many looks in a row that are brighter show that the dust is gone.
_GONE = 2
# Smaller changes are usual in any scene.
_LEAST_USUAL = 0.1
# Cells beside the edge have no ring.
_EDGE = 6
# Dust changes the contrast of cells that are so near, too.
_NEAR = 9


@dataclass(frozen=True, slots=True)
class DarkPlace:
    """A place that has become darker at a look: the row and column of its darkest cell.

    ``gap`` is by how much at least, and ``level`` the contrast in the middle between before and
    after, both logarithms. ``share`` of the light is left.
    """

    look: int
    row: int
    column: int
    gap: float
    level: float
    share: float
    fit: SpeckFit


class DustArrivals:
    """Compare the contrasts of the latest looks; ``light``, (H, W), is the sum of the masks."""

    def __init__(self, light: F32, cell_px: int) -> None:
        self._light = light
        self._cell_px = cell_px
        self._contrasts = deque[F32](maxlen=_BEFORE + _AFTER)
        self._pictures = deque[F32](maxlen=_BEFORE + _AFTER)
        self._usual = deque[float](maxlen=_USUAL)
        self._look = 0
        self._places: tuple[DarkPlace, ...] = ()
        """Places that are dark since they have become so."""
        self.known: tuple[DarkPlace, ...] = ()
        """Dust that has arrived and is still there."""

    def _is_rare(self, place: DarkPlace) -> bool:
        """Return whether no other place becomes as dark, or as bright, at another time."""
        others = [one.gap for one in self._places if one.look != place.look]
        usual = max(*self._usual, *others, _LEAST_USUAL)
        lasts = self._look - place.look >= _LASTS and len(self._usual) >= _FEWEST
        if not lasts or usual > _MAX_USUAL:
            return False
        stands_out = max(1.0, _STANDS_OUT - _LESS_IF_ROUND * place.fit.explained)
        least = _LEAST_OF_DUST + _MORE_IF_NOT_ROUND * (1 - place.fit.explained)
        return place.gap > max(least, stands_out * usual)

    def add(self, contrasts: F32, y: F32) -> None:
        """Add the contrasts of a look, the logarithm for each cell, and its measurement, (H, W)."""
        self._look += 1
        self._contrasts.append(contrasts)
        self._pictures.append(y)
        if len(self._contrasts) < _BEFORE + _AFTER:
            return
        looks = np.stack(self._contrasts)
        before = looks[:_BEFORE]
        after = looks[_BEFORE:]
        places = self._places
        self._places = tuple(
            one for one in places if looks[-_GONE:, one.row, one.column].min() < one.level
        )
        gone = [one.gap for one in places if one not in self._places]
        others = self._others(contrasts.shape)
        darker = np.where(others, before.min(0) - after.max(0), 0.0)
        brighter = np.where(others, after.min(0) - before.max(0), 0.0)
        usual = max(float(brighter.max()), *gone, _LEAST_USUAL)
        self._look_for_dust(looks, darker, max(usual, _LEAST, *self._usual))
        self._usual.append(max(float(darker.max()), usual))
        self.known = tuple(one for one in self._places if one in self.known or self._is_rare(one))

    def _look_for_dust(self, looks: F32, darker: F32, least: float) -> None:
        """Remember places that have become darker by ``least``, and remove them from ``darker``."""
        differences: list[F32] = []
        while len(self._places) < MAX_SPECKS:
            row, column = (int(place) for place in np.unravel_index(darker.argmax(), darker.shape))
            gap = float(darker[row, column])
            if gap < least:
                return
            differences = differences or [self._difference(reach) for reach in _COMPARED]
            x_px, y_px = (self._cell_px * (place + 0.5) - 0.5 for place in (column, row))
            fits = [fit_speck(difference, x_px, y_px) for difference in differences]
            known = [fit for fit in fits if fit is not None]
            fit = max(known, key=lambda one: one.explained, default=None)
            if fit is not None and _is_like_dust(fit):
                before, after = np.split(looks[:, row, column], [_BEFORE])
                level = float(before.min() + after.max()) / 2
                share = float(np.exp(np.median(after) - np.median(before)))
                self._places += (DarkPlace(self._look, row, column, gap, level, share, fit),)
            darker[_near(row, column)] = 0.0

    def _others(self, shape: tuple[int, ...]) -> Flags:
        """Return the cells that are neither near the edge nor near known dust."""
        others = np.zeros(shape, bool)
        others[_EDGE:-_EDGE, _EDGE:-_EDGE] = True
        for one in self._places:
            others[_near(one.row, one.column)] = False
        return others

    def _difference(self, reach: int) -> F32:
        """Return by how much each pixel has become brighter within so many looks before and after,
        the difference of mean logarithms.
        """
        pictures = list(self._pictures)[_BEFORE - reach : _BEFORE + reach]
        logs = [log_light(y, self._light) for y in pictures]
        return np.asarray(np.mean(logs[reach:], 0) - np.mean(logs[:reach], 0), np.float32)


def _is_like_dust(fit: SpeckFit) -> bool:
    return fit.explained > _LEAST_EXPLAINED and fit.speck.radius_px < _MAX_RADIUS_PX


def _near(row: int, column: int) -> tuple[slice, slice]:
    rows = slice(max(0, row - _NEAR), row + _NEAR + 1)
    columns = slice(max(0, column - _NEAR), column + _NEAR + 1)
    return rows, columns
