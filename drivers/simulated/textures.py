"""Procedural images to compose scenes from: linear-light RGB, float32, 0–1, computed once."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.float32]
Colour = tuple[int, int, int]
"""sRGB, 0–255."""

_SUPERSAMPLING = 4
"""Shapes are drawn so much larger and averaged down: anti-aliased edges."""

_SRGB = np.arange(256) / 255.0
SRGB_TO_LINEAR: Image = np.where(_SRGB <= 0.04045, _SRGB / 12.92, ((_SRGB + 0.055) / 1.055) ** 2.4).astype(np.float32)
"""Linear light of each 8-bit sRGB code (IEC 61966-2-1)."""


def linear(colour: Colour) -> Image:
    """Return an sRGB colour as linear light, (3,)."""
    rgb: Image = SRGB_TO_LINEAR[list(colour)]
    return rgb


def spectral_noise(size: int, slope: float, rng: np.random.Generator) -> Image:
    """Return (size, size) noise with amplitude spectrum 1/f^slope, tileable, spread over 0–1.

    Natural images have slopes about 1; larger ones are smoother.
    """
    f = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :])
    f[0, 0] = 1.0
    spectrum = np.fft.rfft2(rng.standard_normal((size, size))) * f**-slope
    spectrum[0, 0] = 0.0
    field = np.fft.irfft2(spectrum, s=(size, size))
    field /= field.std()
    # A logistic of the Gaussian field is nearly uniform: all of a palette is used.
    return np.asarray(1.0 / (1.0 + np.exp(-1.7 * field)), np.float32)


def landscape(size: int, palette: Sequence[Colour], rng: np.random.Generator) -> Image:
    """Return a tileable (size, size, 3) texture: large coloured forms, folds, and detail down to the pixel."""
    height = spectral_noise(size, 1.7, rng)
    folds = 1.0 - np.abs(2.0 * spectral_noise(size, 1.5, rng) - 1.0)
    detail = spectral_noise(size, 1.25, rng)
    where = np.clip(0.65 * height + 0.25 * folds + 0.20 * detail - 0.05, 0, 1)
    stops = np.linspace(0, 1, len(palette))
    colours = np.stack([linear(c) for c in palette])
    out = np.stack([np.interp(where, stops, colours[:, c]) for c in range(3)], axis=-1)
    out *= (0.55 + 0.35 * folds**2 + 0.20 * (detail - 0.5))[..., None]
    return np.asarray(np.clip(out, 0, 1), np.float32)


def _antialiased(size: int, drawing: npt.NDArray[np.uint8]) -> Image:
    """Average a supersampled sRGB drawing (or a mask) down to ``size`` in linear light."""
    light = SRGB_TO_LINEAR[drawing] if drawing.ndim == 3 else drawing.astype(np.float32) / 255
    small: Image = np.asarray(cv2.resize(light, (size, size), interpolation=cv2.INTER_AREA), np.float32)
    return small


def _disk(size: int, colour: Image) -> tuple[Image, Image]:
    """Cut a disk out of (size, size, 3): the picture premultiplied by its cover, and the cover (size, size)."""
    large = size * _SUPERSAMPLING
    mask = np.zeros((large, large), np.uint8)
    cv2.circle(mask, (large // 2, large // 2), large // 2 - 2 * _SUPERSAMPLING, 255, -1)
    cover = _antialiased(size, mask)
    return colour * cover[..., None], cover


def _rotate(image: npt.NDArray[np.uint8], degrees: float) -> npt.NDArray[np.uint8]:
    centre = (image.shape[1] / 2, image.shape[0] / 2)
    turn = cv2.getRotationMatrix2D(centre, degrees, 1.0)
    return np.asarray(cv2.warpAffine(image, turn, image.shape[1::-1]), np.uint8)


def wheel(size: int, text: str, paint: Sequence[Colour]) -> tuple[Image, Image]:
    """Return picture and cover of a wheel with a letter in each coloured sector: rotation is easy to judge."""
    large = size * _SUPERSAMPLING
    middle = (large // 2, large // 2)
    drawing = np.zeros((large, large, 3), np.uint8)
    sector = 360 / len(text)
    for i in range(len(text)):
        angle = -90 + i * sector
        ends = (angle - sector / 2, angle + sector / 2)
        cv2.ellipse(drawing, middle, middle, 0, *ends, paint[i % len(paint)], -1)
    scale = large / 330
    letters = np.zeros((large, large), np.uint8)
    for i, letter in enumerate(text):
        upright = np.zeros((large, large), np.uint8)
        font, weight = cv2.FONT_HERSHEY_DUPLEX, max(1, round(4 * scale))
        (width, _), _ = cv2.getTextSize(letter, font, 1.9 * scale, weight)
        at = (middle[0] - width // 2, round(large * 0.23))
        cv2.putText(upright, letter, at, font, 1.9 * scale, 255, weight, cv2.LINE_AA)
        letters = np.maximum(letters, _rotate(upright, -i * sector))
    ink = (letters.astype(np.float32) / 255)[..., None]
    drawing = (drawing * (1 - ink) + 20 * ink).astype(np.uint8)
    for radius, colour in ((0.485, (25, 25, 30)), (0.235, (25, 25, 30))):
        cv2.circle(drawing, middle, round(large * radius), colour, round(large * 0.022), cv2.LINE_AA)
    for k in range(6):
        a = np.pi * k / 3
        tip = (round(middle[0] + 0.21 * large * np.cos(a)), round(middle[1] + 0.21 * large * np.sin(a)))
        cv2.line(drawing, middle, tip, (235, 235, 225), round(large * 0.03), cv2.LINE_AA)
    cv2.circle(drawing, middle, round(large * 0.06), (200, 40, 40), -1, cv2.LINE_AA)
    return _disk(size, _antialiased(size, drawing))


def ball(size: int, paint: Sequence[Colour], rng: np.random.Generator) -> tuple[Image, Image]:
    """Return picture and cover of a striped, grained ball, darker towards its rim so that it looks round."""
    large = size * _SUPERSAMPLING
    middle = (large // 2, large // 2)
    drawing = np.zeros((large, large, 3), np.uint8)
    for i in range(6):
        cv2.ellipse(drawing, middle, middle, 0, 60 * i, 60 * i + 60, paint[i % len(paint)], -1)
    cv2.circle(drawing, middle, large // 9, (245, 245, 240), -1, cv2.LINE_AA)
    colour = _antialiased(size, drawing)
    axis = (np.arange(size) - (size - 1) / 2) / (size / 2)
    depth = np.sqrt(np.clip(1 - axis[:, None] ** 2 - axis[None, :] ** 2, 0, 1))
    shade = 0.30 + 0.70 * depth
    grain = 0.75 + 0.5 * (spectral_noise(size, 1.0, rng) - 0.25)
    shaded = colour * (shade * grain)[..., None]
    return _disk(size, np.clip(shaded, 0, 1).astype(np.float32))


def ribbon(height: int, text: str, ink: Colour, paper: Colour) -> Image:
    """Return a strip of text that can be laid end to end, (height, length, 3)."""
    large = height * _SUPERSAMPLING
    scale = large / 42
    font, weight = cv2.FONT_HERSHEY_DUPLEX, max(1, round(2.2 * scale))
    (width, text_height), _ = cv2.getTextSize(text, font, scale, weight)
    length = -(-width // _SUPERSAMPLING)
    drawing = np.empty((large, length * _SUPERSAMPLING, 3), np.uint8)
    drawing[:] = paper
    cv2.putText(drawing, text, (0, (large + text_height) // 2), font, scale, ink, weight, cv2.LINE_AA)
    edge = max(1, large // 12)
    drawing[:edge] = drawing[-edge:] = ink
    light = SRGB_TO_LINEAR[drawing]
    strip: Image = np.asarray(cv2.resize(light, (length, height), interpolation=cv2.INTER_AREA), np.float32)
    return strip
