"""Procedural images for scenes: linear-light RGB, float32, 0–1, computed once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import cv2
import numpy as np

from sci_stream.plugins import F32, U8

Image = F32
Colour = tuple[int, int, int]
"""sRGB, 0–255."""

# Shapes are drawn larger by this factor and averaged down, for anti-aliased edges.
_SUPERSAMPLING = 4

# Standard deviation of the point spread function. With a sharper one a Bayer mosaic has false
# colours at every edge.
_LENS_BLUR_PX = 1.0

_INK: Colour = (38, 40, 48)
_CREAM: Colour = (225, 218, 200)

# Linear light of each 8-bit sRGB code (IEC 61966-2-1).
_SRGB = np.arange(256) / 255.0
SRGB_TO_LINEAR: Image = np.where(
    _SRGB <= 0.04045, _SRGB / 12.92, ((_SRGB + 0.055) / 1.055) ** 2.4
).astype(np.float32)


def linear(colour: Colour) -> Image:
    """Return an sRGB colour as linear light, (3,)."""
    rgb: Image = SRGB_TO_LINEAR[list(colour)]
    return rgb


def spectral_noise(size: int, slope: float, rng: np.random.Generator) -> Image:
    """Return (size, size) noise with amplitude spectrum 1/f^slope, tileable, distributed over 0–1.

    Natural images have a slope of about 1; larger ones are smoother.
    """
    f = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :])
    f[0, 0] = 1.0
    spectrum = np.fft.rfft2(rng.standard_normal((size, size))) * f**-slope
    spectrum[0, 0] = 0.0
    field = np.fft.irfft2(spectrum, s=(size, size))
    field /= field.std()
    # A logistic function of the Gaussian field is nearly uniform: every colour of a palette is
    # used.
    return np.asarray(1.0 / (1.0 + np.exp(-1.7 * field)), np.float32)


def landscape(size: int, palette: Sequence[Colour], rng: np.random.Generator) -> Image:
    """Return a tileable (size, size, 3) texture of soft coloured shapes and folds, out of focus."""
    height = spectral_noise(size, 2.4, rng)
    folds = 1.0 - np.abs(2.0 * spectral_noise(size, 2.2, rng) - 1.0)
    detail = spectral_noise(size, 1.6, rng)
    where = np.clip(0.75 * height + 0.20 * folds + 0.10 * detail - 0.03, 0, 1)
    stops = np.linspace(0, 1, len(palette))
    colours = np.stack([linear(c) for c in palette])
    out = np.stack([np.interp(where, stops, colours[:, c]) for c in range(3)], axis=-1)
    out *= (0.65 + 0.25 * folds**2 + 0.20 * (detail - 0.5))[..., None]
    return np.asarray(np.clip(out, 0, 1), np.float32)


def _antialiased(size: int, drawing: U8) -> Image:
    """Average a supersampled sRGB drawing (or a mask) down to ``size`` in linear light."""
    light = SRGB_TO_LINEAR[drawing] if drawing.ndim == 3 else drawing.astype(np.float32) / 255
    small: Image = np.asarray(
        cv2.resize(light, (size, size), interpolation=cv2.INTER_AREA), np.float32
    )
    return small


def _disk(size: int, colour: Image, drawing: U8) -> tuple[Image, Image]:
    """Cut a disk out of (size, size, 3), without the black of ``drawing``: image premultiplied by
    cover, and cover.
    """
    large = size * _SUPERSAMPLING
    mask = np.zeros((large, large), np.uint8)
    cv2.circle(mask, (large // 2, large // 2), large // 2 - 3 * _SUPERSAMPLING, 255, -1)
    mask[~drawing.any(axis=2)] = 0
    cover = _antialiased(size, mask)
    return soften(colour * cover[..., None]), soften(cover)


def soften(image: Image, border: int = cv2.BORDER_CONSTANT) -> Image:
    """Blur like the lens and the low-pass filter of a colour sensor."""
    return np.asarray(cv2.GaussianBlur(image, (0, 0), _LENS_BLUR_PX, borderType=border), np.float32)


def _rotate(image: U8, degrees: float) -> U8:
    centre = (image.shape[1] / 2, image.shape[0] / 2)
    turn = cv2.getRotationMatrix2D(centre, degrees, 1.0)
    return np.asarray(cv2.warpAffine(image, turn, image.shape[1::-1]), np.uint8)


def wheel(size: int, text: str, paint: Sequence[Colour], share: float = 1.0) -> tuple[Image, Image]:
    """Return image and cover of a wheel with a letter in each coloured sector, which shows its
    rotation.

    Sectors take this ``share`` of the circle: below 1 they are the blades of a fan.
    """
    large = size * _SUPERSAMPLING
    middle = (large // 2, large // 2)
    drawing = np.zeros((large, large, 3), np.uint8)
    sector = 360 / len(text)
    for i in range(len(text)):
        angle = -90 + i * sector
        ends = (angle - share * sector / 2, angle + share * sector / 2)
        cv2.ellipse(drawing, middle, middle, 0, *ends, paint[i % len(paint)], -1)
    letters = np.zeros((large, large), np.uint8)
    for i, letter in enumerate(text):
        upright = _letter(letter, large, middle[0], round(large * 0.21), round(large * 0.28))
        letters = np.maximum(letters, _rotate(upright, -i * sector))
    ink = (letters.astype(np.float32) / 255)[..., None]
    drawing = (drawing * (1 - ink) + np.array(_INK, np.float32) * ink).astype(np.uint8)
    cv2.circle(drawing, middle, round(large * 0.10), _INK, -1, cv2.LINE_AA)
    for k in range(3):
        a = 2 * np.pi * k / 3
        hole = (
            round(middle[0] + 0.055 * large * np.cos(a)),
            round(middle[1] + 0.055 * large * np.sin(a)),
        )
        cv2.circle(drawing, hole, round(large * 0.025), paint[k % len(paint)], -1, cv2.LINE_AA)
    return _disk(size, _antialiased(size, drawing), drawing)


def _letter(letter: str, large: int, x: int, y: int, height: int) -> U8:
    """Draw a letter of this height centred on (x, y) into a new (large, large) mask."""
    font = cv2.FONT_HERSHEY_SIMPLEX
    weight = max(1, round(0.2 * height))
    scale = cv2.getFontScaleFromHeight(font, max(1, height - weight), weight)
    (width, tall), _ = cv2.getTextSize(letter, font, scale, weight)
    mask = np.zeros((large, large), np.uint8)
    cv2.putText(
        mask, letter, (x - width // 2, y + tall // 2), font, scale, 255, weight, cv2.LINE_AA
    )
    return mask


def ball(size: int, paint: Sequence[Colour], rng: np.random.Generator) -> tuple[Image, Image]:
    """Return image and cover of a striped, grained ball, darker towards its rim so that it looks
    round.
    """
    large = size * _SUPERSAMPLING
    middle = (large // 2, large // 2)
    drawing = np.zeros((large, large, 3), np.uint8)
    for i in range(4):
        cv2.ellipse(drawing, middle, middle, 0, 90 * i, 90 * i + 90, paint[i % len(paint)], -1)
    cv2.circle(drawing, middle, large // 8, _CREAM, -1, cv2.LINE_AA)
    colour = _antialiased(size, drawing)
    axis = (np.arange(size) - (size - 1) / 2) / (size / 2)
    depth = np.sqrt(np.clip(1 - axis[:, None] ** 2 - axis[None, :] ** 2, 0, 1))
    shade = 0.35 + 0.65 * depth
    grain = 0.85 + 0.3 * spectral_noise(size, 1.6, rng)
    shaded = colour * (shade * grain)[..., None]
    return _disk(size, np.clip(shaded, 0, 1).astype(np.float32), drawing)


def chart(height: int, patches: Sequence[Colour], paper: Colour) -> Image:
    """Return a strip of colour patches on paper that can be repeated seamlessly, (height, length,
    3).
    """
    large = height * _SUPERSAMPLING
    drawing = np.empty((large, len(patches) * large, 3), np.uint8)
    drawing[:] = paper
    edge = large // 6
    for i, patch in enumerate(patches):
        drawing[edge:-edge, i * large + edge : (i + 1) * large - edge] = patch
    light = SRGB_TO_LINEAR[drawing]
    strip = np.asarray(
        cv2.resize(light, (len(patches) * height, height), interpolation=cv2.INTER_AREA), np.float32
    )
    around = math.ceil(4 * _LENS_BLUR_PX)
    wrapped = np.pad(strip, ((0, 0), (around, around), (0, 0)), mode="wrap")
    return soften(wrapped, cv2.BORDER_REPLICATE)[:, around:-around].copy()


def with_labels(image: Image, picture: Image, cover: Image) -> Image:
    """Return an image with a picture, premultiplied by its cover, in a grid."""
    size = len(picture)
    out = image.copy()
    for top in range(size // 4, len(image) - size, round(1.25 * size)):
        for left in range(size // 4, image.shape[1] - size, round(1.25 * size)):
            place = out[top : top + size, left : left + size]
            place *= 1 - cover[..., None]
            place += picture
    return out
