"""Turn a reconstruction into pictures for a screen: demosaic, balance, tone. For looking at, not for measuring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.model import Array, BayerPhase

_FULL = 65535
_LINEAR_LIGHT_GAMMA = 2.2
_DEMOSAIC = {
    # OpenCV's older names (COLOR_BayerBG2RGB for RGGB) come from the second row's second and third pixel.
    BayerPhase.RGGB: cv2.COLOR_BayerRGGB2RGB,
    BayerPhase.GRBG: cv2.COLOR_BayerGRBG2RGB,
    BayerPhase.GBRG: cv2.COLOR_BayerGBRG2RGB,
    BayerPhase.BGGR: cv2.COLOR_BayerBGGR2RGB,
}
_GREEN_KERNEL = np.array([[1, 0, 1], [0, 4, 0], [1, 0, 1]], np.float32) / 8
_MOST_BALANCE = 4.0

U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Tone:
    """How light becomes grey levels: ``level = 255 · clip(gain · balance · x, 0, 1) ** (1 / gamma)``.

    Parameters
    ----------
    gain
        Brightness factor.
    gamma
        2.2 for linear light, as cameras deliver; 1 for video that is made for a display already.
    grey_world
        Scale red and blue so that the mean of the scene is grey. Colour only.
    """

    gain: float = 1.0
    gamma: float = _LINEAR_LIGHT_GAMMA
    grey_world: bool = False

    def __post_init__(self) -> None:
        if not (np.isfinite(self.gain) and self.gain > 0 and np.isfinite(self.gamma) and self.gamma > 0):
            raise ValueError(f"gain and gamma must be positive, got {self.gain} and {self.gamma}")


def render(video: Array, bayer: BayerPhase | None, tone: Tone | None = None) -> U8:
    """Render a video for a screen.

    Parameters
    ----------
    video
        (B, H, W) float, 0–1; a Bayer mosaic where ``bayer`` is given. Not modified. NaN shows black.
    bayer
        Phase of the mosaic, None for mono.
    tone
        Display curve; the default is for linear light.

    Returns
    -------
    (B, H, W, 3) uint8 RGB, or (B, H, W) uint8 for mono.
    """
    tone = tone or Tone()
    light = np.nan_to_num(video.astype(np.float32), copy=False)
    light *= tone.gain
    if bayer is not None and tone.grey_world:
        light *= _pattern(grey_world_gains(light, bayer), bayer, light.shape[1:])
    if bayer is not None:
        equalise_greens(light, bayer)
    linear = (np.clip(light, 0.0, 1.0, out=light) * _FULL + 0.5).astype(np.uint16)
    # Interpolating colours is right in linear light, so the display curve comes last.
    return np.take(_curve(tone.gamma), linear if bayer is None else demosaic(linear, bayer))


def equalise_greens(mosaic: npt.NDArray[np.float32], bayer: BayerPhase) -> None:
    """Let each green pixel of (B, H, W) mosaics meet its four green neighbours half way, in place.

    The two green planes of a mosaic are reconstructed apart, each with errors of its own; unsettled, their difference
    shows as a mesh over the whole picture.
    """
    greens = [divmod(index, 2) for index, colour in enumerate(bayer) if colour == "G"]
    for frame in mosaic:
        settled = cv2.filter2D(frame, -1, _GREEN_KERNEL, borderType=cv2.BORDER_REFLECT_101)
        for row, column in greens:
            frame[row::2, column::2] = settled[row::2, column::2]


def demosaic(mosaic: npt.NDArray[np.uint16], bayer: BayerPhase) -> npt.NDArray[np.uint16]:
    """Interpolate the colours of (B, H, W) mosaics bilinearly; returns (B, H, W, 3) RGB."""
    code = _DEMOSAIC[bayer]
    return cast(npt.NDArray[np.uint16], np.stack([cv2.cvtColor(frame, code) for frame in mosaic]))


def grey_world_gains(mosaic: Array, bayer: BayerPhase) -> tuple[float, float, float]:
    """Return the gains of R, G, B that make the mean of (B, H, W) mosaics grey, G = 1, each within 1/4 and 4."""
    sums = dict.fromkeys("RGB", 0.0)
    for index, colour in enumerate(bayer):
        plane = mosaic[:, index // 2 :: 2, index % 2 :: 2]
        sums[colour] += float(plane.mean()) * (0.5 if colour == "G" else 1.0)
    green = sums["G"]
    red, blue = (
        float(np.clip(green / sums[colour], 1 / _MOST_BALANCE, _MOST_BALANCE))
        if sums[colour] > 0 and green > 0
        else 1.0
        for colour in "RB"
    )
    return red, 1.0, blue


def render_counts(counts: Array, gamma: float = _LINEAR_LIGHT_GAMMA) -> U8:
    """Render a coded snapshot: (H, W) DN to uint8, black and white at its 0.1 and 99.9 percentiles."""
    # An odd step meets every colour of a mosaic.
    low, high = (float(value) for value in np.nanpercentile(counts[::3, ::3], (0.1, 99.9)))
    scaled = (counts.astype(np.float32) - low) * (_FULL / max(high - low, 1e-6))
    return cast(U8, np.take(_curve(gamma), np.clip(np.nan_to_num(scaled), 0, _FULL).astype(np.uint16)))


def shrink(image: U8, most_px: int) -> U8:
    """Reduce an image so that neither side exceeds ``most_px``; returns it as it is if it fits."""
    scale = most_px / max(image.shape[:2])
    if scale >= 1:
        return image
    size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    return cast(U8, cv2.resize(image, size, interpolation=cv2.INTER_AREA))


def encode_jpeg(image: U8, quality: int) -> bytes:
    """Encode an image, (H, W) grey or (H, W, 3) RGB, as JPEG."""
    stored = image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    done, data = cv2.imencode(".jpg", stored, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise ValueError(f"cannot encode an image of shape {image.shape}, dtype {image.dtype}")
    return bytes(data)


def _pattern(gains: tuple[float, float, float], bayer: BayerPhase, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    by_colour = dict(zip("RGB", gains, strict=True))
    cell = np.array([by_colour[colour] for colour in bayer], np.float32).reshape(2, 2)
    return np.tile(cell, (-(-shape[0] // 2), -(-shape[1] // 2)))[: shape[0], : shape[1]]


_CURVES: dict[float, U8] = {}


def _curve(gamma: float) -> U8:
    """Return the display curve as a table over 16 bits: a lookup is far cheaper than a power a pixel."""
    table = _CURVES.get(gamma)
    if table is None:
        x = np.arange(_FULL + 1, dtype=np.float64) / _FULL
        table = _CURVES[gamma] = np.round(255 * x ** (1 / gamma)).astype(np.uint8)
    return table


def no_data_jpeg(last: bytes | None) -> bytes:
    """Return the last JPEG, or a black picture, dimmed and with "NO DATA" across it."""
    image = cv2.imdecode(np.frombuffer(last, np.uint8), cv2.IMREAD_COLOR) if last is not None else None
    canvas = np.zeros((240, 320, 3), np.uint8) if image is None else (image // 3).astype(np.uint8)
    height, width = canvas.shape[:2]
    scale = width / 200
    (text_width, text_height), _ = cv2.getTextSize("NO DATA", cv2.FONT_HERSHEY_SIMPLEX, scale, 2)
    corner = ((width - text_width) // 2, (height + text_height) // 2)
    cv2.putText(canvas, "NO DATA", corner, cv2.FONT_HERSHEY_SIMPLEX, scale, (60, 60, 255), max(1, round(2 * scale)))
    return encode_jpeg(canvas[..., ::-1], 80)
