"""Fast events: a splash of milk, a fan, drops on water, and a balloon that bursts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from sci_stream_drivers.simulated.scenes import PAPER, PATCHES, SIGNAL, Scene, Sprite, World
from sci_stream_drivers.simulated.textures import Colour, Image, ball, chart, landscape, wheel
from sci_stream_lab.scenes.splash import Splash

_STREAM = 4

MEADOW: tuple[Colour, ...] = (
    (110, 138, 96),
    (146, 166, 112),
    (186, 192, 140),
    (216, 212, 172),
    (188, 206, 206),
)


@dataclass(frozen=True)
class Skin(Sprite):
    """The skin of a balloon: it tears from its left edge, where it is pricked."""

    hole_px: Callable[[float], float]
    """Scene time to the radius of the hole; 0 while it is whole."""

    def draw(self, canvas: Image, t: float) -> None:
        """Composite the rest of the skin, see `Sprite.draw`."""
        y, x = np.ogrid[: len(self.cover), : len(self.cover)]
        rest = np.clip((np.hypot(x, y - len(self.cover) / 2) - self.hole_px(t)) / 2, 0, 1).astype(
            np.float32
        )
        Sprite(self.picture * rest[..., None], self.cover * rest, self.path, self.turn_rad).draw(
            canvas, t
        )


class Drops:
    """Drops fall on shallow water: rings run outwards, and bend the light from the ground, (H, W,
    3).

    At ``speed`` 1 and 256 pixels the rings move by 2 pixels per unit of time.
    """

    _EVERY, _LIVES, _LONG, _WIDTH = 24.0, 5, 0.09, 0.08

    def __init__(self, ground: Image, speed: float, rng: np.random.Generator) -> None:
        self._ground, self._speed = ground, speed
        self._unit = min(ground.shape[:2])
        self._places = rng.uniform(0.15, 0.85, (64, 2)) * ground.shape[:2]

    def render(self, t: float) -> Image:
        """Return the image at time ``t``, see `Scene.render`."""
        rows, columns = np.ogrid[: self._ground.shape[0], : self._ground.shape[1]]
        height = np.zeros(self._ground.shape[:2], np.float32)
        last = int(t * self._speed / self._EVERY)
        radii = np.arange(0, 1.5 * max(height.shape), 0.25) / self._unit
        for drop in range(max(0, last - self._LIVES + 1), last + 1):
            age = t * self._speed - drop * self._EVERY
            behind = radii - age * 2 / 256
            fade = math.exp(-age / 40) * min(1.0, age / 3) * (1 - age / (self._LIVES * self._EVERY))
            ring = (
                fade
                * np.exp(-((behind / self._WIDTH) ** 2))
                * np.cos(2 * np.pi / self._LONG * behind)
            )
            y, x = self._places[drop % len(self._places)]
            radius = np.sqrt(np.square(rows - y) + np.square(columns - x))
            height += ring.astype(np.float32)[(4 * radius).astype(np.intp)]
        bend = 0.0018 * self._unit**2
        dx, dy = (cv2.Sobel(height, cv2.CV_32F, *axis, scale=1 / 8) for axis in ((1, 0), (0, 1)))
        through = (columns + bend * dx).astype(np.float32), (rows + bend * dy).astype(np.float32)
        seen = cv2.remap(self._ground, *through, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
        glint = 1 + 0.008 * self._unit * (dx + dy)
        return np.asarray(np.clip(seen * glint[..., None], 0, 1), np.float32)


def make_event(name: str, shape: tuple[int, int], speed: float, seed: int) -> Scene:
    """Return a fast event in a view of size (H, W): a splash of milk, a fan, drops on water, or a
    balloon that bursts.

    At ``speed`` 1 and 256 pixels the tips of the fan move 4.5 pixels per sub-frame, the tear in the
    balloon 4, rings on the water 2.
    """
    rng = np.random.Generator(np.random.PCG64([seed, _STREAM, len(name)]))
    if name == "splash":
        return Splash(shape, speed, rng)
    height, width = shape
    unit = min(shape)
    v = speed * unit / 256
    strip = chart(max(8, round(0.17 * unit)), PATCHES, PAPER)
    if name == "drops":
        rows = [
            np.roll(strip, 5 * row * len(strip), axis=1) for row in range(-(-height // len(strip)))
        ]
        return Drops(
            np.tile(np.concatenate(rows), (1, -(-width // strip.shape[1]), 1))[:height, :width],
            speed,
            rng,
        )
    middle = width / 2, 0.4 * height
    if name == "fan":
        blades = wheel(max(8, round(0.76 * unit)), "FAST", SIGNAL, 0.6)
        sprites = [Sprite(*blades, lambda _: middle, 0.046 * speed)]
    else:

        def age(t: float, begin: float) -> float:
            return max(0.0, (speed * t) % 130 - begin)

        water = ball(max(8, round(0.57 * unit)), ((60, 120, 190), (90, 150, 210)), rng)
        skin = wheel(max(8, round(0.62 * unit)), "BURST", (SIGNAL[0], (190, 60, 52)))
        sprites = [
            Sprite(
                *water,
                lambda t: (middle[0], middle[1] + 0.0003 * unit * age(t, 35) ** 2),
                0.01 * speed,
            ),
            Skin(*skin, lambda _: middle, 0.0, lambda t: unit / 64 * age(t, 20)),
        ]
    backdrop = landscape(max(64, round(1.5 * unit)), MEADOW, rng)
    return World(
        backdrop=backdrop,
        pan_px=(0.2 * v, 0.0),
        sprites=sprites,
        strip=strip,
        strip_px=0.8 * v,
        shape=shape,
    )
