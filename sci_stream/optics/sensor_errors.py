"""Errors of the sensor since its calibration, which a solve takes out of each snapshot.

The masks are as they were. The snapshot is not: a tap adds to one half of it, charge of the
snapshot before stays, and dust takes light.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sci_stream.model import F32, F64, Array
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.displacement import within

# Units of the text: finer than any estimate. Units of y, share, pixels, share.
_TAP = 1e-5
_LAG = 1e-4
_PX = 0.1
_SHARE = 1e-3
_MAX_TAP = 99_999
# A larger lag has another cause.
_MAX_LAG = 3_000
_MAX_PLACE = 99_999
_MAX_SIZE = 999
# Dust that takes more light leaves too little to divide by.
_LEAST_SHARE = 150
# Most specks that a correction has.
MAX_SPECKS = 6
_SPECK = r";\d{1,5},\d{1,5},\d{1,3},\d{1,3},\d{1,3}"
_STRAY_TEXT = r"(,-?\d{1,5}){6}"
SENSOR_PATTERN = rf"\^-?\d{{1,5}},-?\d{{1,5}},\d{{1,4}}({_STRAY_TEXT})?({_SPECK}){{0,{MAX_SPECKS}}}"
"""Matches the text of `SensorErrors.to_text`."""
SENSOR_LENGTH = 19 + 42 + 24 * MAX_SPECKS
"""Largest length of that text."""
SMOOTH = ("x", "y", "xx", "yy", "xy")
"""Fields of `SensorErrors` that are smooth light."""
_STRAY = ("even", *SMOOTH)
LIGHT = ("left", "upper", *_STRAY)
"""Fields of `SensorErrors` that are light which no mask codes."""
# Words read light at so many places.
_WORDS_PX = (33, 33)
# Light at so many widths of an edge outside a speck is that without it.
_FAR = 4.0


class Speck(NamedTuple):
    """A speck of dust: a round place that lets a share of the light through.

    Centre (x, y), radius and width of its edge in pixels.
    """

    x_px: float
    y_px: float
    radius_px: float
    share: float
    edge_px: float

    def transmission(self, shape: tuple[int, ...]) -> F32:
        """Return the share of the light at each pixel, (H, W)."""
        light = np.ones(shape, np.float32)
        reach = int(np.ceil(self.radius_px + _FAR * self.edge_px))
        place = tuple(
            slice(max(0, round(centre) - reach), max(0, round(centre) + reach + 1))
            for centre in (self.y_px, self.x_px)
        )
        rows, columns = np.ogrid[
            tuple(slice(*part.indices(size)) for part, size in zip(place, shape, strict=True))
        ]
        beyond = np.hypot(rows - self.y_px, columns - self.x_px) - self.radius_px
        light[place] -= (1 - self.share) / (
            1 + np.exp(np.clip(beyond / max(self.edge_px, _PX), -30, 30))
        )
        return light


class SensorErrors(NamedTuple):
    """Errors of a sensor.

    ``left`` and ``upper`` say by how much the left half is brighter than the right one, and the
    upper than the lower, in units of y; ``lag`` is the share of the snapshot before that a snapshot
    still has; ``even`` to ``xy`` are the parts of stray light, in units of y, see
    `shapes_of_light`.
    """

    left: float = 0.0
    upper: float = 0.0
    lag: float = 0.0
    specks: tuple[Speck, ...] = ()
    even: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0

    @property
    def words(self) -> list[str]:
        """The errors as a person reads them.

        >>> SensorErrors(left=-0.02, lag=0.1).words
        ['right half is made 0.0200 of white darker', '10% of the snapshot before is subtracted']
        """
        words = []
        for brighter, names in ((self.left, ("left", "right")), (self.upper, ("upper", "lower"))):
            if brighter:
                half = names[int(brighter < 0)]
                words.append(f"{half} half is made {abs(brighter):.4f} of white darker")
        if self.lag:
            words.append(f"{self.lag:.0%} of the snapshot before is subtracted")
        if any(self.stray):
            light = self.stray_light(_WORDS_PX)
            span = f"{light.min():.4f} to {light.max():.4f}"
            words.append(f"stray light of {span} of white is subtracted")
        if self.specks:
            places = ", ".join(f"({one.x_px:.0f}, {one.y_px:.0f})" for one in self.specks)
            words.append(f"light that dust takes at {places} px is restored")
        return words

    @property
    def stray(self) -> tuple[float, ...]:
        """The parts of stray light: the even one, and those of `SMOOTH`."""
        return (self.even, self.x, self.y, self.xx, self.yy, self.xy)

    def stray_light(self, shape: tuple[int, int]) -> F32:
        """Return the stray light of each pixel, (H, W), in units of y."""
        rows, columns = (np.arange(size, dtype=np.float32) for size in shape)
        shapes = shapes_of_light(rows, columns, shape)
        parts = [part * shapes[name] for name, part in zip(_STRAY, self.stray, strict=True)]
        return np.asarray(np.sum(parts, 0), np.float32)

    @property
    def to_text(self) -> str:
        """The errors as a short text: "" for none.

        Both halves in hundred-thousandths and lag in ten-thousandths, after a circumflex; then the
        parts of stray light in hundred-thousandths, if there is any; then of each speck the
        centre, radius and edge in tenths of a pixel, and its share in thousandths.

        >>> SensorErrors(left=0.02, lag=0.1, specks=(Speck(50, 40, 5, 0.3, 0.7),)).to_text
        '^2000,0,1000;500,400,50,300,7'
        """
        if self == NO_SENSOR_ERRORS:
            return ""
        lag = max(0, within(self.lag / _LAG, _MAX_LAG))
        text = f"^{within(self.left / _TAP, _MAX_TAP)},{within(self.upper / _TAP, _MAX_TAP)},{lag}"
        stray = [within(part / _TAP, _MAX_TAP) for part in self.stray]
        if any(stray):
            text += "".join(f",{part}" for part in stray)
        for speck in self.specks[:MAX_SPECKS]:
            place = [max(0, within(value / _PX, _MAX_PLACE)) for value in (speck.x_px, speck.y_px)]
            size = [
                max(0, within(value / _PX, _MAX_SIZE)) for value in (speck.radius_px, speck.edge_px)
            ]
            share = max(_LEAST_SHARE, within(speck.share / _SHARE, _MAX_SIZE))
            text += f";{place[0]},{place[1]},{size[0]},{share},{size[1]}"
        return "" if text == "^0,0,0" else text

    @classmethod
    def from_text(cls, text: str) -> SensorErrors:
        """Return the errors of a text that matches, without the circumflex."""
        if not text:
            return NO_SENSOR_ERRORS
        first, *specks = text.split(";")
        left, upper, lag, *stray = map(int, first.split(","))
        read = []
        for one in specks:
            x, y, radius, share, edge = map(int, one.split(","))
            share = max(share, _LEAST_SHARE)
            read.append(Speck(x * _PX, y * _PX, radius * _PX, share * _SHARE, edge * _PX))
        parts = {name: part * _TAP for name, part in zip(_STRAY, stray, strict=False)}
        halves = (left * _TAP, upper * _TAP)
        return cls(*halves, min(lag, _MAX_LAG) * _LAG, specks=tuple(read), **parts)

    def transmission(self, shape: tuple[int, ...]) -> F32:
        """Return the share of the light that all specks let through, (H, W)."""
        light = np.ones(shape, np.float32)
        for speck in self.specks:
            light *= speck.transmission(shape)
        return light

    def rounded(self) -> SensorErrors:
        """Return the errors at the precision of `to_text`."""
        return self.from_text(self.to_text.removeprefix("^"))

    def without(self, counts: Array, before: Array | None, calibration: Calibration) -> F32:
        """Return the counts that a sensor without these errors gives, (H, W) DN.

        ``before`` are the counts of the snapshot before, with all errors. Saturated pixels stay.
        """
        light = np.subtract(counts, calibration.dark, dtype=np.float32)
        if self.lag and before is not None:
            light -= np.float32(self.lag) * np.subtract(before, calibration.dark, dtype=np.float32)
        height, width = light.shape
        white = calibration.full_scale_dn
        for brighter, first, second in (
            (self.left, light[:, : width // 2], light[:, width // 2 :]),
            (self.upper, light[: height // 2], light[height // 2 :]),
        ):
            half = first if brighter > 0 else second
            half -= np.float32(abs(brighter) * white)
        if any(self.stray):
            light -= self.stray_light(light.shape) * np.float32(white)
        if self.specks:
            light /= self.transmission(light.shape)
        light += calibration.dark
        if calibration.saturation_dn is None:
            return light
        return np.where(counts >= calibration.saturation_dn, counts, light).astype(np.float32)


def shapes_of_light(
    rows: NDArray[np.floating[Any]], columns: NDArray[np.floating[Any]], shape: tuple[int, int]
) -> dict[str, F64]:
    """Return the shapes of light by field of `SensorErrors`, each (rows, columns) of a sensor of
    this shape: one half brighter by 1 than the other, and powers of the place, which is −1 to 1.
    """
    height, width = shape
    down = np.asarray((2 * rows + 1) / height - 1, np.float64)[:, np.newaxis]
    right = np.asarray((2 * columns + 1) / width - 1, np.float64)
    even = np.ones((len(rows), len(columns)))
    return {
        "left": even * np.where(columns < width // 2, 0.5, -0.5),
        "upper": even * np.where(rows < height // 2, 0.5, -0.5)[:, np.newaxis],
        "even": even,
        "x": even * right,
        "y": even * down,
        "xx": even * (right**2 - 1 / 3),
        "yy": even * (down**2 - 1 / 3),
        "xy": down * right,
    }


NO_SENSOR_ERRORS = SensorErrors()
