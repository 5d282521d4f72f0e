"""A drop falls into milk, as in the photographs of Edgerton: a crown rises, throws off beads and
falls, and a jet follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import cv2
import numpy as np

from sci_stream.model import F32
from sci_stream_drivers.simulated.textures import Image, landscape

Plane = F32

# Times since the drop began to fall, in sub-frames.
_IMPACT, _CROWN_ENDS, _JET_BEGINS, _JET_ENDS, _CYCLE = 24.0, 100.0, 88.0, 176.0, 200.0
# Lengths are shares of the smaller side of the view.
_DROP_RADIUS = 0.045
_CROWN_RADIUS, _CROWN_HEIGHT = 0.2, 0.24
_JET_HEIGHT, _JET_RADIUS = 0.34, 0.035
# The view from above, 20 degrees: a circle on the surface is an ellipse.
_FLAT = 0.34
_SURFACE = 0.7
_GRAVITY = 0.00035
_FINGERS = 16
# Rings of the crown's wall: they overlap, and melt into one surface.
_LEVELS = 7
# Radius of a finger below the bead on its tip.
_NECK = 0.006
# How much the wall bulges towards the eye, of its radius.
_ROUND = 0.5
# OpenCV draws at a 16th of a pixel: the rim moves smoothly.
_SHIFT = 4
_FINE = 1 << _SHIFT
_LIGHT = np.array([-0.45, -0.6, 0.66], np.float32)
_HALFWAY = np.array([-0.25, -0.33, 0.91], np.float32)
# The glint is the 64th power of the cosine.
_GLOSS = 6
_MILK = np.array([0.92, 0.88, 0.8], np.float32)
_SHADE = np.array([0.3, 0.34, 0.42], np.float32)
_FAR = np.array([0.09, 0.02, 0.03], np.float32)
_NEAR = np.array([0.42, 0.06, 0.07], np.float32)


class Bead(NamedTuple):
    """A sphere of liquid: centre and radius, shares of the smaller side."""

    x: float
    y: float
    radius: float


class Splash:
    """The scene in a view of ``shape`` (H, W).

    At ``speed`` 1 and 256 pixels the crown's rim moves by up to 2.4 pixels per unit of time.
    """

    def __init__(self, shape: tuple[int, int], speed: float, rng: np.random.Generator) -> None:
        self._shape = shape
        self._unit = min(shape)
        self._speed = speed
        self._fingers = [
            (2 * math.pi * (i + rng.uniform(-0.3, 0.3)) / _FINGERS, rng.uniform(0.6, 1.15))
            for i in range(_FINGERS)
        ]
        self._ground = self._table() * _grain(shape, rng)[..., None]

    def render(self, t: float) -> Image:
        """Return the image at time ``t``, see `Scene.render`."""
        age = (t * self._speed) % _CYCLE
        height = np.zeros(self._shape, np.float32)
        for bead in self._beads(height, age):
            self._add(height, bead)
        # Neighbouring beads melt into one surface.
        cv2.GaussianBlur(height, (0, 0), 0.006 * self._unit + 0.3, dst=height)
        colour, cover = _lit(height)
        picture = self._ground.copy()
        self._reflect(picture, colour, cover)
        picture *= 1 - cover[..., None]
        picture += colour * cover[..., None]
        return np.clip(picture, 0, 1, out=picture)

    def _table(self) -> Image:
        """Return the empty scene: a dark room, and a red table with a pool of milk."""
        height, width = self._shape
        rows, columns = np.mgrid[:height, :width].astype(np.float32) / self._unit
        across = columns - width / self._unit / 2
        depth = np.clip((rows - 0.3) / 0.9, 0, 1)[..., None]
        picture = _FAR + (_NEAR - _FAR) * depth**1.5
        beside = np.hypot(across, (rows - _SURFACE * height / self._unit) / _FLAT)
        pool = np.clip((0.36 - beside) * 40, 0, 1)[..., None]
        milk = (
            _SHADE + (_MILK - _SHADE) * np.clip(0.75 - 0.7 * beside - 0.3 * across, 0, 1)[..., None]
        )
        picture += pool * (milk - picture)
        return np.asarray(picture, np.float32)

    def _beads(self, height: Plane, age: float) -> Iterator[Bead]:
        """Yield the liquid above the surface, y upwards from it; draw the crown's wall."""
        if age < _IMPACT:
            yield Bead(0.0, 1.4 * _GRAVITY * (_IMPACT**2 - age**2) / 0.6, _DROP_RADIUS)
        elif age < _CROWN_ENDS:
            yield from self._crown(height, age - _IMPACT)
        for angle, size in self._fingers[::2]:
            yield from _thrown(age - _IMPACT - 20 * size, angle, size)
        if _JET_BEGINS < age < _JET_ENDS:
            yield from _jet((age - _JET_BEGINS) / (_JET_ENDS - _JET_BEGINS))

    def _crown(self, height: Plane, age: float) -> Iterator[Bead]:
        """Draw the wall and the fingers of the crown; yield the beads on their tips."""
        radius = 0.05 + _CROWN_RADIUS * (1 - math.exp(-age / 22))
        rise = _CROWN_HEIGHT * math.sin(math.pi * age / (_CROWN_ENDS - _IMPACT))
        rim = 0.45 * rise
        self._wall(height, radius, rim)
        for angle, size in self._fingers:
            root, waist, tip = (
                _at(radius * (1.12 + 0.25 * share), angle, rim + (rise * size - rim) * share, thick)
                for share, thick in ((0.0, 0.012), (0.5, 0.008), (1.0, 0.013))
            )
            self._line(height, root, waist, root.radius)
            self._line(height, waist, tip, _NECK)
            yield tip

    def _pixels(self, x: float, y: float) -> tuple[int, int]:
        """Return a place on the picture in the fractions of a pixel that OpenCV draws with."""
        rows, columns = self._shape
        place = columns / 2 + x * self._unit, _SURFACE * rows - y * self._unit
        return round(place[0] * _FINE), round(place[1] * _FINE)

    def _wall(self, height: Plane, radius: float, rim: float) -> None:
        """Draw the wall: round towards the eye, and hollow where the eye looks into it."""
        outside, inside = np.zeros_like(height), np.zeros_like(height)
        for level in range(_LEVELS):
            share = level / (_LEVELS - 1)
            self._ring(outside, radius * (1 + 0.12 * share), rim * share, 0.026)
        self._ring(inside, 1.02 * radius, rim, -1.0)
        columns = np.arange(height.shape[1], dtype=np.float32)
        across = (columns / self._unit - self._shape[1] / self._unit / 2) / (1.15 * radius)
        bulge = _ROUND * radius * self._unit * np.sqrt(np.maximum(1 - across**2, 0))
        thick = 0.013 * self._unit
        np.maximum(height, outside * (thick + bulge), out=height)
        hollow = thick + _ROUND * radius * self._unit - bulge
        height += inside * (np.minimum(height, hollow) - height)

    def _ring(self, plane: Plane, radius: float, up: float, thickness: float) -> None:
        """Draw a circle around the axis as an ellipse, filled if ``thickness`` is negative."""
        size = radius * self._unit * _FINE
        thick = max(1, round(thickness * self._unit)) if thickness > 0 else cv2.FILLED
        axes = round(size), round(_FLAT * size)
        cv2.ellipse(plane, self._pixels(0.0, up), axes, 0, 0, 360, 1.0, thick, cv2.LINE_AA, _SHIFT)

    def _line(self, height: Plane, one: Bead, other: Bead, radius: float) -> None:
        ends = self._pixels(one.x, one.y), self._pixels(other.x, other.y)
        width = max(1, round(2 * radius * self._unit))
        cv2.line(height, *ends, radius * self._unit, width, cv2.LINE_AA, _SHIFT)

    def _add(self, height: Plane, bead: Bead) -> None:
        """Raise the height map by a bead."""
        unit, (rows, columns) = self._unit, self._shape
        x = columns / 2 + bead.x * unit
        y = _SURFACE * rows - bead.y * unit
        radius = max(bead.radius * unit, 0.7)
        top, left = max(math.floor(y - radius), 0), max(math.floor(x - radius), 0)
        part = height[top : math.ceil(y + radius) + 1, left : math.ceil(x + radius) + 1]
        if y + radius < 0 or x + radius < 0 or not part.size:
            return
        down = np.arange(top, top + part.shape[0], dtype=np.float32)[:, None] - y
        along = np.arange(left, left + part.shape[1], dtype=np.float32) - x
        inside = radius**2 - down**2 - along**2
        np.maximum(part, np.sqrt(np.maximum(inside, 0)), out=part)

    def _reflect(self, picture: Image, colour: Image, cover: Plane) -> None:
        """Add the mirror image of the liquid on the table."""
        line = round((_SURFACE + 0.02) * self._shape[0])
        rows = min(line, self._shape[0] - line)
        strength = 0.3 * cv2.GaussianBlur(
            cover[line - rows : line][::-1], (0, 0), 0.008 * self._unit
        )
        below = picture[line : line + rows]
        below += strength[..., None] * (0.7 * colour[line - rows : line][::-1] - below)


def _grain(shape: tuple[int, int], rng: np.random.Generator) -> Plane:
    """Return the unevenness of a lacquered table in soft light, around 1."""
    texture = landscape(max(64, *shape), ((0, 0, 0), (255, 255, 255)), rng).mean(axis=-1)
    texture = texture[: shape[0], : shape[1]]
    return np.asarray(1 + 0.1 * (texture - texture.mean()) / texture.std(), np.float32)


def _at(out: float, angle: float, up: float, radius: float) -> Bead:
    """Return a bead at a place around the axis, as the eye sees it."""
    return Bead(out * math.cos(angle), up - _FLAT * out * math.sin(angle), radius)


def _thrown(age: float, angle: float, size: float) -> Iterator[Bead]:
    """Yield a bead that a finger has thrown off, until it falls back."""
    up = 0.5 * _CROWN_HEIGHT + 0.0135 * size * age - _GRAVITY * age**2 / 2
    if age > 0 and up > 0:
        yield _at(1.3 * _CROWN_RADIUS + 0.0028 * age, angle, up, 0.011 * size)


def _jet(share: float) -> Iterator[Bead]:
    """Yield the jet in the middle and the bead on its tip."""
    rise = _JET_HEIGHT * math.sin(math.pi * share)
    for k in range(14):
        thick = _JET_RADIUS * (1 - 0.6 * k / 13)
        yield Bead(0.0, rise * k / 14, thick)
    yield Bead(0.0, rise * (1 + 0.25 * share), 0.9 * _JET_RADIUS)


def _lit(height: Plane) -> tuple[Image, Plane]:
    """Return the colour of a glossy white surface of this height, and where it covers the view."""
    slope_x = cv2.Sobel(height, cv2.CV_32F, 1, 0, scale=1 / 8)
    slope_y = cv2.Sobel(height, cv2.CV_32F, 0, 1, scale=1 / 8)
    scale = 1 / np.sqrt(slope_x * slope_x + slope_y * slope_y + 1)

    def towards(direction: Plane) -> Plane:
        x, y, z = direction
        light = (z - x * slope_x - y * slope_y) * scale
        return np.asarray(np.clip(light, 0, 1), np.float32)

    glint = towards(_HALFWAY)
    for _ in range(_GLOSS):
        glint *= glint
    colour = _SHADE + (_MILK - _SHADE) * towards(_LIGHT)[..., None]
    colour += (0.35 * glint)[..., None]
    return np.asarray(colour, np.float32), np.clip(height * 1.2, 0, 1)
