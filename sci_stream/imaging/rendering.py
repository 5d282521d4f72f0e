"""Render reconstructions as images for display: demosaicing, white balance, tone.

Not for measurements.
"""

from __future__ import annotations

from typing import cast

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.imaging.demosaic import demosaic
from sci_stream.imaging.tone import (
    LINEAR_LIGHT_GAMMA,
    FalseColour,
    ToneSettings,
    curve,
    light_of,
    palette,
)
from sci_stream.model import F32, U8, Array, BayerPhase
from sci_stream.optics.bayer import colour_sites

_FULL = 65535
_GREEN_KERNEL = np.array([[1, 0, 1], [0, 4, 0], [1, 0, 1]], np.float32) / 8


def render(video: Array, bayer: BayerPhase | None, tone: ToneSettings | None = None) -> U8:
    """Render a video for a screen or a video file.

    Parameters
    ----------
    video
        (B, H, W) float, 0–1; a Bayer mosaic if ``bayer`` is given. Not modified. NaN is shown
        black.
    bayer
        Phase of the mosaic, None for mono.
    tone
        Appearance; the default is for linear light.

    Returns
    -------
    (B, H, W, 3) uint8 RGB, or (B, H, W) uint8 for mono without false colour.
    """
    tone = tone or ToneSettings()
    light = light_of(video, bayer, tone)
    if bayer is not None:
        equalise_greens(light, bayer)
    linear = (np.clip(light, 0.0, 1.0, out=light) * _FULL + 0.5).astype(np.uint16)
    # Colours must be interpolated in linear light, so the display curve comes last.
    if bayer is not None:
        linear = demosaic(linear, bayer, tone.demosaic)
    shown = np.take(curve(tone.gamma), linear)
    if bayer is None and tone.false_colour is not FalseColour.NONE:
        return np.take(palette(tone.false_colour), shown, axis=0)
    return shown


def equalise_greens(mosaic: F32, bayer: BayerPhase) -> None:
    """Average each green pixel of (B, H, W) mosaics half-way with its four green neighbours, in
    place.

    The two green planes of a mosaic are reconstructed independently, with independent errors; their
    difference would show as a mesh pattern over the whole image.
    """
    greens = [site for colour, site in colour_sites(bayer) if colour == "G"]
    for frame in mosaic:
        settled = cv2.filter2D(frame, -1, _GREEN_KERNEL, borderType=cv2.BORDER_REFLECT_101)
        for site in greens:
            frame[site] = settled[site]


def render_counts(counts: Array, gamma: float = LINEAR_LIGHT_GAMMA) -> U8:
    """Render a coded snapshot: (H, W) DN to uint8, black and white at the 0.1 and
    99.9 percentiles.
    """
    # An odd step samples every colour of a mosaic.
    low, high = (float(value) for value in np.nanpercentile(counts[::3, ::3], (0.1, 99.9)))
    scaled = (counts.astype(np.float32) - low) * (_FULL / max(high - low, 1e-6))
    return cast(
        U8, np.take(curve(gamma), np.clip(np.nan_to_num(scaled), 0, _FULL).astype(np.uint16))
    )


def shrink(image: U8, max_px: int) -> U8:
    """Reduce an image so that neither side exceeds ``max_px``; return it unchanged if it fits."""
    scale = max_px / max(image.shape[:2])
    if scale >= 1:
        return image
    return resize(
        image, max(1, round(image.shape[0] * scale)), max(1, round(image.shape[1] * scale))
    )


def resize(image: U8, height: int, width: int) -> U8:
    """Scale an image to a size, averaging where it becomes smaller."""
    if image.shape[:2] == (height, width):
        return image
    return cast(U8, cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA))


def encode_jpeg(image: U8, quality: int = 85) -> bytes:
    """Encode an image, (H, W) grey or (H, W, 3) RGB, as JPEG."""
    return _encoded(".jpg", image, cv2.IMWRITE_JPEG_QUALITY, quality)


def encode_png(image: U8 | npt.NDArray[np.uint16]) -> bytes:
    """Encode an image, (H, W) grey of 8 or 16 bits or (H, W, 3) RGB, as PNG, without loss."""
    return _encoded(".png", image)


def _encoded(suffix: str, image: Array, *parameters: int) -> bytes:
    stored = image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    done, data = cv2.imencode(suffix, stored, parameters)
    if not done:
        raise ValueError(f"cannot encode an image of shape {image.shape}, dtype {image.dtype}")
    return bytes(data)
