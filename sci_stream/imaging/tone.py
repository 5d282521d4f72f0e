"""Tone mapping for display: black level, white balance, exposure, display curve, false colour.

Data is not affected.

The live page and exported video share one `ToneSettings`, so that exported video looks as it did on
the screen; `sci_stream.imaging.rendering.render` applies them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Annotated, Any, Self

import cv2
import numpy as np
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from sci_stream.errors import InputError
from sci_stream.imaging.demosaic import Demosaic
from sci_stream.model import F32, U8, Array, BayerPhase, JsonObject
from sci_stream.optics.bayer import colour_sites
from sci_stream.parameters import Changes

# The usual approximation of the sRGB curve.
LINEAR_LIGHT_GAMMA = 2.2
MAX_GAIN = 8.0

# A scene of a single colour must not turn into amplified noise of the others.
_MAX_BALANCE = 4.0
_FULL = 65535

Gains = tuple[float, float, float]
_Gain = Annotated[float, Field(ge=1 / MAX_GAIN, le=MAX_GAIN)]


class WhiteBalance(enum.StrEnum):
    """Scaling of red and blue; colour only."""

    NONE = "none"
    """None: unchanged."""
    GREY_WORLD = "grey_world"
    """The mean of each snapshot's video becomes grey."""
    FIXED = "fixed"
    """`ToneSettings.gains`, given or from a point picked as white."""


class FalseColour(enum.StrEnum):
    """Colour maps for monochrome video, by their names in OpenCV."""

    NONE = "none"
    INFERNO = "inferno"
    VIRIDIS = "viridis"
    TURBO = "turbo"
    BONE = "bone"


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class ToneSettings:
    r"""Display settings of a video.

    .. math:: level = 255 · clip(2^{ev} · g_c · (x − black)/(1 − black), 0, 1)^{1/γ}

    with the gain :math:`g_c` of the pixel's colour.

    Parameters
    ----------
    exposure_ev
        Brightness in stops, −10 to 10: one more doubles the light. Beyond it, 16-bit counts show
        noise or white.
    black
        Intensity, 0 ≤ black < 1, that is shown as black.
    gamma
        2.2 for linear light, as cameras deliver; 1 for video made for a display. 0.1 to 10.
    white_balance, gains
        See `WhiteBalance`; ``gains`` of red, green and blue apply to `WhiteBalance.FIXED` only, 1/8
        to 8.
    false_colour
        Colour map for monochrome video.
    demosaic
        Method for colour, see `Demosaic`.

    Raises
    ------
    ValidationError
        If a value is out of range.
    """

    exposure_ev: Annotated[float, Field(ge=-10, le=10)] = 0.0
    black: Annotated[float, Field(ge=0, le=0.95)] = 0.0
    gamma: Annotated[float, Field(ge=0.1, le=10)] = LINEAR_LIGHT_GAMMA
    white_balance: Annotated[WhiteBalance, Field(strict=False)] = WhiteBalance.NONE
    gains: Annotated[tuple[_Gain, _Gain, _Gain], Field(strict=False)] = (1.0, 1.0, 1.0)
    false_colour: Annotated[FalseColour, Field(strict=False)] = FalseColour.NONE
    demosaic: Annotated[Demosaic, Field(strict=False)] = Demosaic.BILINEAR

    def as_dict(self) -> JsonObject:
        """Return the settings as plain values, for a status or a file; `changed` accepts them."""
        return {
            field.name: str(value)
            if isinstance(value := getattr(self, field.name), enum.Enum)
            else value
            for field in dataclasses.fields(self)
        }

    def changed(self, changes: Changes) -> Self:
        """Return a copy with some settings changed, given as plain values by a page or a file.

        Raises `InputError` if a name is unknown or a value is out of range.
        """
        values: dict[str, Any] = {**self.as_dict(), **changes}
        try:
            return type(self)(**values)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            name = problem["loc"][0]
            expected = problem["msg"].removeprefix("Input should be ")
            if problem["type"] == "unexpected_keyword_argument":
                expected = "one of " + ", ".join(self.as_dict())
            raise InputError(
                f"The tone setting {name} is invalid", expected=expected, got=repr(problem["input"])
            ) from None


def grey_world_gains(mosaic: Array, bayer: BayerPhase) -> Gains:
    """Return the gains of R, G, B that make the mean of (B, H, W) mosaics grey, G = 1, each within
    1/4 and 4.
    """
    red, green, blue = colour_means(mosaic, bayer)
    red_gain, blue_gain = (
        float(np.clip(green / mean, 1 / _MAX_BALANCE, _MAX_BALANCE))
        if mean > 0 and green > 0
        else 1.0
        for mean in (red, blue)
    )
    return red_gain, 1.0, blue_gain


def colour_means(mosaic: Array, bayer: BayerPhase) -> Gains:
    """Return the mean of the red, green and blue pixels of (B, H, W) mosaics."""
    sums = dict.fromkeys("RGB", 0.0)
    for colour, (rows, columns) in colour_sites(bayer):
        plane = mosaic[:, rows, columns]
        sums[colour] += float(plane.mean(dtype=np.float64)) * (0.5 if colour == "G" else 1.0)
    return sums["R"], sums["G"], sums["B"]


def light_of(video: Array, bayer: BayerPhase | None, tone: ToneSettings) -> F32:
    """Return linear light before the display curve, (B, H, W) float32, a new array, not clipped.

    NaN becomes black.
    """
    light = np.nan_to_num(video.astype(np.float32), copy=False)
    gain = np.float32(2.0**tone.exposure_ev / (1.0 - tone.black))
    if tone.black:
        light -= np.float32(tone.black)
    light *= gain
    if bayer is None or tone.white_balance is WhiteBalance.NONE:
        return light
    gains = (
        tone.gains
        if tone.white_balance is WhiteBalance.FIXED
        else grey_world_gains(np.clip(light, 0, 1), bayer)
    )
    for colour, (rows, columns) in colour_sites(bayer):
        light[:, rows, columns] *= np.float32(gains["RGB".index(colour)])
    return light


@functools.lru_cache(maxsize=32)  # dragging a slider requests many
def curve(gamma: float) -> U8:
    """Return the display curve as a 16-bit table: a lookup is far cheaper than a power
    per pixel.
    """
    x = np.arange(_FULL + 1, dtype=np.float64) / _FULL
    return np.round(255 * x ** (1 / gamma)).astype(np.uint8)


@functools.cache
def palette(name: FalseColour) -> U8:
    """Return a colour map, (256, 3) uint8 RGB."""
    ramp = np.arange(256, dtype=np.uint8)[:, None]
    return np.ascontiguousarray(
        cv2.applyColorMap(ramp, getattr(cv2, f"COLORMAP_{name.name}"))[:, 0, ::-1]
    )
