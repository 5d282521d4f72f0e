"""Colour images to learn from, as the mosaic of a colour sensor sees them.

All mosaics are RGGB: a network for another phase has the same kernels mirrored, see
`sci_stream.recon.denoisers.weights.FfdnetWeights.for_phase`.

All shares and ranges in this module were chosen, not tuned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.model import BayerPhase
from sci_stream.optics.bayer import sample_colours
from sci_stream_lab.training.images import Image, Plane

Colours = npt.NDArray[np.float32]
"""(…, H, W, 3), red, green, blue, 0–1."""

PHASE = BayerPhase.RGGB
"""Phase of all mosaics to learn from."""

# Patches with flat shapes in front of a photograph or of a plain colour: saturated colours with
# sharp edges are rare in photographs.
_SHAPES_SHARE = 0.35
_MAX_SHAPES = 8
# Edges of a patch of a photograph before it is reduced, in those of the patch.
_REDUCED = (1.0, 1.0, 1.5, 2.0)
# Shares of patches that are blurred, of linear light, and of another saturation.
_BLURRED_SHARE = 0.4
_BLUR_PX = (0.4, 1.2)
_LINEAR_SHARE = 0.4
_GAMMA = (1.2, 2.2)
_SATURATED_SHARE = 0.4
_SATURATION = (0.7, 2.2)
# Sensitivity of red and blue beside that of green, and exposure.
_GAIN = (0.45, 1.15)
_EXPOSURE = (0.5, 1.1)


def draw_mosaic(rng: np.random.Generator, images: Sequence[Image], size: int) -> Plane:
    """Draw a patch of a mosaic: the same for the same state of ``rng``."""
    colours = _photograph(rng, images, size)
    if rng.random() < _SHAPES_SHARE:
        colours = _with_shapes(rng, colours)
    if rng.random() < _BLURRED_SHARE:
        blurred = cv2.GaussianBlur(colours, (0, 0), rng.uniform(*_BLUR_PX))
        colours = np.asarray(blurred, np.float32)
    return sample_colours(seen_by_camera(rng, colours), PHASE)


def seen_by_camera(rng: np.random.Generator, colours: Colours) -> Colours:
    """Return colours as one of many cameras sees them: with its white balance and exposure."""
    if rng.random() < _LINEAR_SHARE:
        colours = colours ** np.float32(rng.uniform(*_GAMMA))
    if rng.random() < _SATURATED_SHARE:
        grey = colours.mean(-1, keepdims=True)
        saturation = np.float32(rng.uniform(*_SATURATION))
        colours = (grey + saturation * (colours - grey)).clip(0, 1)
    gains = np.array([rng.uniform(*_GAIN), 1.0, rng.uniform(*_GAIN)])
    gains *= rng.uniform(*_EXPOSURE)
    return np.asarray(colours * gains.astype(np.float32), np.float32).clip(0, 1)


def saturated_colour(rng: np.random.Generator) -> tuple[float, float, float]:
    """Draw a colour, 0–1, of any hue; most are saturated, some are grey."""
    saturation = rng.uniform(0.3, 1.0) if rng.random() < 0.8 else 0.0
    hue = rng.uniform(0, 2 * math.pi)
    value = rng.uniform(0.05, 1.0)
    waves = (0.5 + 0.5 * math.cos(hue + turn * 2 * math.pi / 3) for turn in range(3))
    red, green, blue = (value * (1 - saturation * (1 - wave)) for wave in waves)
    return red, green, blue


def _photograph(rng: np.random.Generator, images: Sequence[Image], size: int) -> Colours:
    image = images[int(rng.integers(len(images)))]
    span = min(round(size * rng.choice(_REDUCED)), *image.shape[:2])
    top, left = (int(rng.integers(n - span + 1)) for n in image.shape[:2])
    window = image[top : top + span, left : left + span]
    if span != size:
        reduced = cv2.resize(window, (size, size), interpolation=cv2.INTER_AREA)
        window = np.asarray(reduced, np.uint8)
    turned = np.rot90(window, int(rng.integers(4)))
    turned = turned if rng.random() < 0.5 else turned[:, ::-1]
    return np.asarray(turned / np.float32(255), np.float32)


def _with_shapes(rng: np.random.Generator, colours: Colours) -> Colours:
    """Draw flat shapes, stripes and letters over a part of the image, or over a plain colour."""
    size = len(colours)
    canvas = np.ascontiguousarray(colours)
    if rng.random() < 0.4:
        canvas[:] = saturated_colour(rng)
    for _ in range(rng.integers(1, _MAX_SHAPES + 1)):
        _draw_shape(rng, canvas, saturated_colour(rng), size)
    return canvas


def _draw_shape(
    rng: np.random.Generator, canvas: Colours, colour: tuple[float, float, float], size: int
) -> None:
    # Drawn in 8 bits: OpenCV smooths the edges of no other images.
    cover = np.zeros(canvas.shape[:2], np.uint8)
    middle = rng.uniform(0, size, 2)
    extent = size * math.exp(rng.uniform(*np.log((0.05, 0.6))))
    kind = rng.random()
    if kind < 0.4:
        angles = np.sort(rng.uniform(0, 2 * math.pi, rng.integers(3, 8)))
        corners = middle + extent * np.stack((np.cos(angles), np.sin(angles)), 1)
        cv2.fillPoly(cover, [np.rint(16 * corners).astype(np.int32)], 255, cv2.LINE_AA, 4)
    elif kind < 0.7:
        axes = [int(16 * extent * rng.uniform(0.3, 1)) for _ in range(2)]
        centre = [int(16 * place) for place in middle]
        turn = rng.uniform(0, 180)
        cv2.ellipse(cover, centre, axes, turn, 0, 360, 255, -1, cv2.LINE_AA, 4)
    elif kind < 0.85:
        rows, columns = np.mgrid[:size, :size]
        angle = rng.uniform(0, math.pi)
        along = math.cos(angle) * columns + math.sin(angle) * rows
        width = rng.uniform(3, 30)
        # A pixel on the edge of a stripe is covered in part.
        wave = width * (np.abs((along / width) % 2 - 1) - 0.5)
        cover = (255 * (wave + 0.5).clip(0, 1)).astype(np.uint8)
    else:
        letters = "".join(chr(n) for n in rng.integers(65, 91, 3))
        scale = extent / 20
        thickness = max(1, round(scale * rng.uniform(1, 4)))
        place = (int(middle[0] - extent), int(middle[1]))
        cv2.putText(
            cover, letters, place, cv2.FONT_HERSHEY_SIMPLEX, scale, 255, thickness, cv2.LINE_AA
        )
    share = (cover / np.float32(255))[..., np.newaxis]
    canvas *= 1 - share
    canvas += share * np.asarray(colour, np.float32)
