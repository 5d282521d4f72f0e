"""Displacement of the masks on the sensor since their calibration, as a value; `mask_shift` applies
it to masks.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from sci_stream.errors import FileFormatError

# The weights along an axis reach this many pixels to either side: with 3×3 free weights, shifts
# between pixels came out wrong by up to 0.08 pixel, because the true kernel has negative lobes
# (docs/decisions/mask-shift.md).
TAPS_RADIUS = 2

# Weights are written in ten-thousandths: finer than the precision of any fit.
_UNITS = 10_000
_MAX_BASE_PX = 9_999
_MAX_UNITS = 99_999
# Rotation, magnification and shear are written in hundred-thousandths: a hundredth of a pixel at
# the edge of a sensor of 2048 pixels.
_LINEAR_UNITS = 100_000
_MAX_LINEAR_UNITS = 9_999
_LINEAR = r"(;-?\d{1,4}(,-?\d{1,4}){3})?"
_AXIS = rf"-?\d{{1,4}}(,-?\d{{1,5}}){{{2 * TAPS_RADIUS}}}"
# Matches the text of `Displacement.to_text`.
DISPLACEMENT_PATTERN = rf"({_AXIS};{_AXIS}{_LINEAR})?"
# Largest length of that text.
DISPLACEMENT_LENGTH = 2 * (5 + 7 * 2 * TAPS_RADIUS) + 1 + 4 * 6

Linear = tuple[float, float, float, float]
"""Growth of a displacement with the place: of x to the right, of x downwards, of y to the right, of
y downwards, pixels a pixel."""
RIGID: Linear = (0.0, 0.0, 0.0, 0.0)
"""The same displacement everywhere."""

_SAME = (0.0,) * TAPS_RADIUS + (1.0,) + (0.0,) * TAPS_RADIUS


@dataclass(frozen=True)
class Displacement:
    r"""Displacement of the masks: φ'(r) = Σ_i Σ_j a_i b_j φ″(r − base − (i, j)).

    φ″(r) = φ(r − L (r − c)), around the centre c of the sensor, are the masks after rotation,
    magnification and shear.

    Parameters
    ----------
    base_px
        (x, y), whole pixels to the right and down.
    x, y
        a and b: 2·`TAPS_RADIUS` + 1 weights each, of sum 1; the middle one belongs to a
        displacement of 0.
    linear
        L, row by row.
    """

    base_px: tuple[int, int] = (0, 0)
    x: tuple[float, ...] = _SAME
    y: tuple[float, ...] = _SAME
    linear: Linear = RIGID

    @property
    def shift_px(self) -> tuple[float, float]:
        """(x, y) of the displacement, pixels: the centroid of its weights.

        >>> Displacement((1, 0), x=(0, 0, 0.75, 0.25, 0)).shift_px
        (1.25, 0.0)
        """
        return self.base_px[0] + _centroid(self.x), self.base_px[1] + _centroid(self.y)

    @property
    def blur_px2(self) -> float:
        """Variance of the weights beyond that of a displacement, the mean of both axes, px²."""
        return (_variance(self.x) + _variance(self.y)) / 2

    @property
    def is_none(self) -> bool:
        """Whether the masks are exactly at their calibrated position."""
        return self == NO_DISPLACEMENT

    @property
    def to_text(self) -> str:
        """The displacement as a short text, for messages and recordings; ``""`` for none.

        For x, a semicolon, and y: the base, then all weights except the middle one, in
        ten-thousandths.

        >>> Displacement((1, 0), x=(0, 0, 0.75, 0.25, 0)).to_text
        '1,0,0,2500,0;0,0,0,0,0'
        """
        axes = zip(self.base_px, (self.x, self.y), strict=True)
        numbers = [[within(base, _MAX_BASE_PX), *_in_units(weights)] for base, weights in axes]
        linear = [within(value * _LINEAR_UNITS, _MAX_LINEAR_UNITS) for value in self.linear]
        if any(linear):
            numbers.append(linear)
        if not any(map(any, numbers)):
            return ""
        return ";".join(",".join(map(str, part)) for part in numbers)

    @classmethod
    def from_text(cls, text: str) -> Displacement:
        """Parse a text of `to_text`.

        Raises `FileFormatError` if the text is invalid.
        """
        if re.fullmatch(DISPLACEMENT_PATTERN, text, re.ASCII) is None:
            raise FileFormatError(
                "Invalid displacement of the masks",
                expected="base and weights of x and y, as in '1,0,0,2500,0;0,0,0,0,0'",
                got=text,
            )
        if not text:
            return NO_DISPLACEMENT
        (base_x, *x), (base_y, *y), *rest = (
            [int(number) for number in part.split(",")] for part in text.split(";")
        )
        linear = RIGID
        for units in rest:
            x_right, x_down, y_right, y_down = (value / _LINEAR_UNITS for value in units)
            linear = x_right, x_down, y_right, y_down
        return cls((base_x, base_y), _from_units(x), _from_units(y), linear)

    def rounded(self) -> Displacement:
        """Return the displacement at the precision of `to_text`, so that a replay from the text is
        exact.
        """
        return self.from_text(self.to_text)

    @property
    def words(self) -> str:
        """Shift, rotation and magnification as a person reads them."""
        x_right, x_down, y_right, y_down = self.linear
        shifted = "shifted by ({:+.2f}, {:+.2f}) px".format(*self.shift_px)
        if self.linear == RIGID:
            return f"all masks {shifted}"
        turned = math.degrees(y_right - x_down) / 2
        larger = (x_right + y_down) / 2
        return f"all masks turned by {turned:+.2f}° and magnified by {larger:+.2%}, {shifted}"

    def recentred(self) -> Displacement:
        """Return an equal displacement with its base at the whole pixel nearest to its centroid, if
        the weights fit.
        """
        x, move_x = _recentre(self.x)
        y, move_y = _recentre(self.y)
        base_px = (self.base_px[0] + move_x, self.base_px[1] + move_y)
        return Displacement(base_px, x, y, self.linear)

    def blended(self, other: Displacement, weight: float) -> Displacement:
        """Return the weighted mean with another displacement of the same base; ``weight`` is that
        of the other.
        """
        if other.base_px != self.base_px:
            raise ValueError(
                f"displacements of base {self.base_px} and {other.base_px} cannot be averaged"
            )
        x, y = (
            tuple((1 - weight) * mine + weight * its for mine, its in zip(*both, strict=True))
            for both in ((self.x, other.x), (self.y, other.y))
        )
        return Displacement(self.base_px, x, y, other.linear)


NO_DISPLACEMENT = Displacement()


def _variance(weights: tuple[float, ...]) -> float:
    centre = _centroid(weights)
    middle = len(weights) // 2
    spread = sum(weight * (k - middle - centre) ** 2 for k, weight in enumerate(weights))
    return spread - centre % 1 * (1 - centre % 1)


def _centroid(weights: tuple[float, ...]) -> float:
    return float(sum(i * weight for i, weight in enumerate(weights, -TAPS_RADIUS)))


def _in_units(weights: tuple[float, ...]) -> list[int]:
    """Return all weights except the middle one, which is their complement, as integers."""
    outer = weights[:TAPS_RADIUS] + weights[TAPS_RADIUS + 1 :]
    return [within(weight * _UNITS, _MAX_UNITS) for weight in outer]


def within(value: float, bound: int) -> int:
    """Return the nearest integer of at most this size."""
    return max(-bound, min(bound, round(value)))


def _from_units(outer: list[int]) -> tuple[float, ...]:
    middle = _UNITS - sum(outer)
    return tuple(units / _UNITS for units in (*outer[:TAPS_RADIUS], middle, *outer[TAPS_RADIUS:]))


def _recentre(weights: tuple[float, ...]) -> tuple[tuple[float, ...], int]:
    """Move weights by a pixel if their centroid is nearer to the next one, with hysteresis."""
    centroid = _centroid(weights)
    if abs(centroid) <= 0.6:
        return weights, 0
    if centroid > 0:
        return (weights[0] + weights[1], *weights[2:], 0.0), 1
    return (0.0, *weights[:-2], weights[-2] + weights[-1]), -1
