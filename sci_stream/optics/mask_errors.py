"""Errors of single masks and of the black level, which come on top of a displacement of all masks.

A relay that vibrates moves each mask by itself, a light source or shutter that wavers gives each
frame its own exposure, and a sensor that warms up changes its black level.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sci_stream.errors import FileFormatError
from sci_stream.model import Array
from sci_stream.optics.displacement import (
    DISPLACEMENT_LENGTH,
    DISPLACEMENT_PATTERN,
    NO_DISPLACEMENT,
    RIGID,
    Displacement,
    within,
)
from sci_stream.optics.sensor_errors import (
    NO_SENSOR_ERRORS,
    SENSOR_LENGTH,
    SENSOR_PATTERN,
    SensorErrors,
)

# Units of the text: finer than any fit is precise. Pixels, squared pixels, share, units of y.
_UNITS = (1e-3, 1e-3, 1e-4, 1e-4)
_BLACK = 1e-5
_MAX_UNITS = 30_000
# Light of a frame relative to the mean of all: that of one flash among `MAX_MASKS` frames fits.
_LIGHT = 1e-4
_MAX_LIGHT = 999_999
# Stray light is a black level, too, as bright as the scene.
_MAX_BLACK = 99_999
_NUMBER = r"-?\d{1,5}"
# Most masks whose errors a correction may have: a text of one line.
MAX_MASKS = 64
CORRECTION_PATTERN = (
    rf"{DISPLACEMENT_PATTERN}(\|{_NUMBER}(;{_NUMBER}(,{_NUMBER}){{3}}){{1,{MAX_MASKS}}})?"
    rf"({SENSOR_PATTERN})?(~\d{{1,6}}(,\d{{1,6}}){{0,{MAX_MASKS - 1}}})?"
)
"""Matches the text of `MaskCorrection.to_text`."""


class MaskError(NamedTuple):
    """Error of one mask: shift to the right and down, pixels; blur, as a variance, px²; excess of
    its transmission.
    """

    x_px: float = 0.0
    y_px: float = 0.0
    blur_px2: float = 0.0
    gain: float = 0.0


# Two decimals show nothing of less.
_IN_WORDS = 0.005


@dataclass(frozen=True)
class MaskCorrection:
    """Correction of a calibration: a displacement of all masks, errors of each, an excess of the
    black level, the light of each frame, and errors of the sensor.

    ``masks`` is empty for none, ``black`` in units of y. ``light`` is relative to the mean of all
    frames, and empty if it is even; it belongs to one exposure, and not to the masks. ``sensor``
    changes the snapshot, and not the masks.
    """

    displacement: Displacement = NO_DISPLACEMENT
    masks: tuple[MaskError, ...] = ()
    black: float = 0.0
    light: tuple[float, ...] = ()
    sensor: SensorErrors = NO_SENSOR_ERRORS

    @property
    def is_none(self) -> bool:
        """Whether masks, black level and light are as calibrated."""
        return self.of_masks == NO_CORRECTION

    @property
    def of_masks(self) -> MaskCorrection:
        """The same correction of a sensor without errors."""
        return replace(self, sensor=NO_SENSOR_ERRORS)

    @property
    def own(self) -> MaskCorrection:
        """The part that is not a displacement of all masks."""
        return MaskCorrection(NO_DISPLACEMENT, self.masks, self.black)

    def lit(self, light: Sequence[float]) -> MaskCorrection:
        """Return the same correction under another light."""
        return replace(self, light=tuple(light))

    def exposed(self, gains: Sequence[float]) -> MaskCorrection:
        """Return the same correction of masks that have so many times the light."""
        masks = self.masks or (MaskError(),) * len(gains)
        pairs = zip(masks, gains, strict=True)
        errors = (mask._replace(gain=(1 + mask.gain) * gain - 1) for mask, gain in pairs)
        return replace(self, masks=tuple(errors))

    @property
    def light_depth(self) -> float:
        """Modulation of the light, (max − min)/(max + min), 0–1."""
        light = self.light or (1.0,)
        return (max(light) - min(light)) / (max(light) + min(light))

    @property
    def jitter_px(self) -> float:
        """Root mean square of the masks' own shifts along an axis."""
        return math.sqrt(
            sum(m.x_px**2 + m.y_px**2 for m in self.masks) / max(1, 2 * len(self.masks))
        )

    @property
    def gain_error(self) -> float:
        """Root mean square of the errors of the masks' transmission, relative."""
        return math.sqrt(sum(m.gain**2 for m in self.masks) / max(1, len(self.masks)))

    def with_usual_light(self) -> MaskCorrection:
        """Return gains relative to those of most masks if some let twice the light through.

        A snapshot does not tell how bright the scene is. An exposure of 1.25 cycles shows some
        masks twice, and the others as before.
        """
        if max(self.turns(len(self.masks)), default=1) < 2:
            return self
        usual = statistics.median(1 + mask.gain for mask in self.masks)
        masks = (mask._replace(gain=(1 + mask.gain) / usual - 1) for mask in self.masks)
        return replace(self, masks=tuple(masks)).rounded()

    def turns(self, n_frames: int) -> tuple[int, ...]:
        """Return the number of frames' light that each mask lets through: 2 where a stage dwells
        twice as long.
        """
        if not self.masks:
            return (1,) * n_frames
        gains = [1 + mask.gain for mask in self.masks]
        return tuple(max(1, round(gain / statistics.median(gains))) for gain in gains)

    def frame_times(self, n_frames: int) -> tuple[tuple[float, float], ...]:
        """Return begin and duration of each frame as shares of the exposure: its light relative to
        all.

        >>> MaskCorrection(masks=(MaskError(gain=0.5), MaskError(gain=-0.5))).frame_times(2)
        ((0.0, 0.75), (0.75, 0.25))
        """
        gains = [1 + mask.gain for mask in self.masks] or [1.0] * n_frames
        ends = [0.0, *(round(end / sum(gains), 6) for end in itertools.accumulate(gains))]
        return tuple((begin, end - begin) for begin, end in itertools.pairwise(ends))

    @property
    def words(self) -> str:
        """The correction as a person reads it; ``""`` for none.

        >>> errors = MaskError(0.3, 0.4, gain=1.0), MaskError(), MaskError(gain=-0.1)
        >>> MaskCorrection(masks=errors).words
        'masks shifted by up to 0.50 px each, gains 0.90 to 2.00, mask 0 as 2 frames'
        """
        words = []
        shift_px = math.hypot(*self.displacement.shift_px)
        if shift_px >= _IN_WORDS or self.displacement.linear != RIGID:
            words.append(self.displacement.words)
        elif not self.displacement.is_none:
            words.append("all masks blurred")
        if self.masks:
            words += self._words_of_masks()
        if self.black:
            words.append(f"black level {self.black:+.4f} of white")
        if self.light:
            words.append(f"light changes by {self.light_depth:.0%} within exposures")
        words += self.sensor.words
        return ", ".join(words)

    def _words_of_masks(self) -> list[str]:
        words = []
        furthest = max(math.hypot(mask.x_px, mask.y_px) for mask in self.masks)
        if furthest >= _IN_WORDS:
            words.append(f"masks shifted by up to {furthest:.2f} px each")
        blurs = [mask.blur_px2 for mask in self.masks]
        if max(map(abs, blurs)) >= _IN_WORDS:
            words.append(f"blurs {min(blurs):.2f} to {max(blurs):.2f} px²")
        gains = [1 + mask.gain for mask in self.masks]
        if max(abs(mask.gain) for mask in self.masks) >= _IN_WORDS:
            words.append(f"gains {min(gains):.2f} to {max(gains):.2f}")
        turns = enumerate(self.turns(len(gains)))
        return words + [f"mask {b} as {n} frames" for b, n in turns if n > 1]

    @cached_property
    def to_text(self) -> str:
        """The correction as a short text, for messages and recordings; ``""`` for none.

        That of the displacement; then, after a bar, the black level in hundred-thousandths; and of
        each mask the shifts in thousandths, blur and gain in ten-thousandths; then the errors of
        the sensor; then, after a tilde, the light of each frame in ten-thousandths.

        >>> MaskCorrection(masks=(MaskError(0.1, 0.0, 0.0, -0.05),), black=0.002).to_text
        '|200;100,0,0,-500'
        >>> MaskCorrection(light=(1.5, 0.5)).to_text
        '~15000,5000'
        """
        text = self.displacement.to_text
        black = within(self.black / _BLACK, _MAX_BLACK)
        masks = [
            [within(value / unit, _MAX_UNITS) for value, unit in zip(mask, _UNITS, strict=True)]
            for mask in self.masks
        ]
        if masks and (black or any(map(any, masks))):
            text += f"|{black};" + ";".join(",".join(map(str, mask)) for mask in masks)
        text += self.sensor.to_text
        if self.light:
            gains = (max(1, min(_MAX_LIGHT, round(gain / _LIGHT))) for gain in self.light)
            text += "~" + ",".join(map(str, gains))
        return text

    @classmethod
    def from_text(cls, text: str) -> MaskCorrection:
        """Parse a text of `to_text`.

        Raises `FileFormatError` if the text is invalid.
        """
        if re.fullmatch(CORRECTION_PATTERN, text, re.ASCII) is None:
            raise FileFormatError(
                "Invalid correction of the masks",
                expected="a text as in '1,0,0,2500,0;0,0,0,0,0|200;100,0,0,-500'",
                got=text,
            )
        lasting, _, of_light = text.partition("~")
        lasting, _, of_sensor = lasting.partition("^")
        common, _, of_masks = lasting.partition("|")
        sensor = SensorErrors.from_text(of_sensor)
        displacement = Displacement.from_text(common)
        light = tuple(int(gain) * _LIGHT for gain in of_light.split(",") if gain)
        if not of_masks:
            return cls(displacement, light=light, sensor=sensor)
        black, *masks = of_masks.split(";")
        errors = (
            MaskError(
                *(int(number) * unit for number, unit in zip(mask.split(","), _UNITS, strict=True))
            )
            for mask in masks
        )
        return cls(displacement, tuple(errors), int(black) * _BLACK, light, sensor)

    def rounded(self) -> MaskCorrection:
        """Return the correction at the precision of `to_text`, so that a replay from the text is
        exact.
        """
        return self.from_text(self.to_text)


NO_CORRECTION = MaskCorrection()


def in_recorded_light(video: Array, masks_at: str) -> Array:
    """Return a video, (B, H, W), that was solved with a correction, in the light as it was."""
    light = MaskCorrection.from_text(masks_at).light
    if not light:
        return video
    lit: Array = video * np.array(light, video.dtype).reshape(-1, 1, 1)
    return lit


def correction_length(n_frames: int) -> int:
    """Return the largest length of the text of a correction of this many masks."""
    masks = n_frames if n_frames <= MAX_MASKS else 0
    return DISPLACEMENT_LENGTH + SENSOR_LENGTH + (8 + 35 * masks if masks else 0)
