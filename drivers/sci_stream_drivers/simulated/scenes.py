"""Moving scenes for the simulated camera."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np

from sci_stream_drivers.simulated.options import CLIPS, SCENES, SimulatedOptions
from sci_stream_drivers.simulated.textures import (
    Colour,
    Image,
    ball,
    chart,
    landscape,
    wheel,
    with_labels,
)
from sci_stream_drivers.simulated.video import VideoScene

_SCENE_STREAM = 4
_CLIPS = Path(__file__).parent / "clips"

Trajectory = Callable[[float], tuple[float, float]]
"""Scene time to the (x, y) position of a centre, pixels."""


class Scene(Protocol):
    """A scene. One unit of its time is one sub-frame of the camera."""

    def render(self, t: float) -> Image:
        """Return the (H, W, 3) linear-light RGB image, float32, 0–1, at time ``t`` ≥ 0.

        It depends on ``t`` only. The scene owns the array: read it before the next call, and do not
        modify it.
        """
        ...


@dataclass(frozen=True)
class Sprite:
    """A round object that moves along a path and rotates at constant speed.

    ``picture`` (size, size, 3) is premultiplied by ``cover`` (size, size), which is 1 where the
    object is opaque.
    """

    picture: Image
    cover: Image
    path: Trajectory
    turn_rad: float
    """Rotation per unit of time."""

    def draw(self, canvas: Image, t: float) -> None:
        """Composite the object at time ``t`` onto ``canvas`` (H, W, 3), at sub-pixel position."""
        size = len(self.picture)
        x, y = self.path(t)
        left = max(math.floor(x - size / 2), 0)
        top = max(math.floor(y - size / 2), 0)
        right = min(math.ceil(x + size / 2) + 1, canvas.shape[1])
        bottom = min(math.ceil(y + size / 2) + 1, canvas.shape[0])
        if right <= left or bottom <= top:
            return
        c = math.cos(self.turn_rad * t)
        s = math.sin(self.turn_rad * t)
        middle = (size - 1) / 2
        to_canvas = np.array(
            [[c, -s, x - left - (c - s) * middle], [s, c, y - top - (s + c) * middle]]
        )
        extent = (right - left, bottom - top)
        uncovered = cv2.warpAffine(1.0 - self.cover, to_canvas, extent, borderValue=1.0)
        region = canvas[top:bottom, left:right]
        # In the same layout, ten times faster than NumPy broadcasting.
        region *= cv2.cvtColor(uncovered, cv2.COLOR_GRAY2RGB)
        region += cv2.warpAffine(self.picture, to_canvas, extent)


class World:
    """A panning landscape, objects in front of it and a strip running below.

    The view (H, W) of ``shape`` pans over the tileable ``backdrop``, (N, N, 3), with ``pan_px`` (x,
    y) per unit of time; the ``sprites`` are drawn in their order, and ``strip``, (h, length, 3), is
    repeated along the bottom, moving to the left by ``strip_px`` per unit of time.
    """

    def __init__(
        self,
        *,
        backdrop: Image,
        pan_px: tuple[float, float],
        sprites: Sequence[Sprite],
        strip: Image,
        strip_px: float,
        shape: tuple[int, int],
    ) -> None:
        self._backdrop = Carried(backdrop, pan_px, shape)
        self._strip_period = strip.shape[1]
        self._strip = np.pad(strip, ((0, 0), (0, shape[1] + 2), (0, 0)), mode="wrap")
        self._strip_px = strip_px
        self._sprites = tuple(sprites)
        self._shape = shape

    def render(self, t: float) -> Image:
        """Return the image at time ``t``, see `Scene.render`."""
        height, width = self._shape
        view = self._backdrop.render(t)
        for sprite in self._sprites:
            sprite.draw(view, t)
        rows = len(self._strip)
        top = height - rows - height // 32
        view[top : top + rows] = _window(
            self._strip, (self._strip_px * t) % self._strip_period, 0.0, (width, rows)
        )
        return view


class Carried:
    """One image that moves as a whole: (N, M, 3), repeated, by ``velocity_px`` (x, y) per unit of
    time.
    """

    def __init__(self, image: Image, velocity_px: tuple[float, float], shape: tuple[int, int]):
        height, width = shape
        self._period = image.shape[:2]
        # One view and a pixel for interpolation beyond the period: it never reaches the border.
        around = ((0, height + 2), (0, width + 2), (0, 0))
        self._image = np.pad(image, around, mode="wrap")
        self._velocity_px = velocity_px
        self._size = (width, height)

    def render(self, t: float) -> Image:
        """Return the image at time ``t``, see `Scene.render`."""
        x_px, y_px = self._velocity_px
        rows, columns = self._period
        return _window(self._image, (x_px * t) % columns, (y_px * t) % rows, self._size)


def _window(texture: Image, x: float, y: float, size: tuple[int, int]) -> Image:
    """Return the (height, width) of ``size`` with its top left pixel at (x, y) of ``texture``,
    interpolated.
    """
    centre = (x + (size[0] - 1) / 2, y + (size[1] - 1) / 2)
    return np.asarray(cv2.getRectSubPix(texture, size, centre), np.float32)


def bouncing(
    start: tuple[float, float], floor: float, velocity: float, hop: float, span: float
) -> Trajectory:
    """Return the path of a ball that bounces along between x = 0 and ``span`` and back, ``hop``
    pixels high.

    ``velocity`` in pixels per unit of time, sideways; ``start`` is (x, phase of the hop from 0 to
    1).
    """
    # A parabola in each half period, with its vertex at the top of the hop.
    period = 2.2 * hop / abs(velocity) if velocity else math.inf

    def path(t: float) -> tuple[float, float]:
        along = (start[0] + velocity * t) % (2 * span)
        phase = (start[1] + t / period) % 1.0
        return min(along, 2 * span - along), floor - 4 * hop * phase * (1 - phase)

    return path


SKY: tuple[Colour, ...] = (
    (128, 158, 186),
    (160, 186, 204),
    (198, 208, 206),
    (226, 214, 186),
    (236, 196, 158),
)
SIGNAL: tuple[Colour, ...] = ((200, 70, 60), (215, 208, 190), (70, 115, 185), (220, 180, 80))

# The patches of a colour chart: the live image shows at a glance whether colours are right.
PATCHES: tuple[Colour, ...] = (
    (175, 54, 60), (231, 199, 31), (70, 148, 73), (8, 133, 161), (56, 61, 150), (187, 86, 149),
    (214, 126, 44), (157, 188, 64), (98, 122, 157), (115, 82, 68), (122, 122, 121), (82, 82, 81),
)  # fmt: skip
PAPER: Colour = (160, 160, 160)

# Start (fraction of the width), phase of the hop, radius (of the smaller side), velocity (pixels
# per unit of time at 256 pixels) of each ball.
_BALLS = ((0.70, 0.1, 0.11, 1.2), (0.95, 0.5, 0.09, -1.5), (0.85, 0.8, 0.12, 0.8))


def make_world(shape: tuple[int, int], speed: float, seed: int) -> World:
    """Return a world of size (H, W): soft landscape, a lettered wheel, three balls, a strip of
    colour patches.

    Bright colours of moderate contrast on shapes of several pixels, as on a test bench: resolvable
    at half the resolution of a mosaic's planes. At ``speed`` 1 and 256 pixels the wheel's rim moves
    2.8 pixels per sub-frame, the balls about 1.2, the strip 0.8, the backdrop 0.5; proportionally
    more on larger sensors.
    """
    rng = np.random.Generator(np.random.PCG64([seed, _SCENE_STREAM, 0]))
    height, width = shape
    unit = min(shape)
    v = speed * unit / 256
    sprites = []
    for i, (x, phase, radius, velocity) in enumerate(_BALLS):
        picture = ball(max(8, round(2 * radius * unit)), SIGNAL[i : i + 2], rng)
        floor = 0.79 * height - radius * unit
        path = bouncing((width * x, phase), floor, velocity * v, 0.3 * unit, width)
        sprites.append(Sprite(*picture, path, velocity * speed / (radius * 256)))
    size = max(8, round(0.62 * unit))
    sprites.append(
        Sprite(*wheel(size, "LIVE", SIGNAL), lambda _: (0.34 * width, 0.40 * height), 0.035 * speed)
    )
    texture = landscape(max(64, round(1.5 * unit)), SKY, rng)
    strip = chart(max(8, round(0.17 * unit)), PATCHES, PAPER)
    return World(
        backdrop=texture,
        pan_px=(0.45 * v, 0.16 * v),
        sprites=sprites,
        strip=strip,
        strip_px=0.8 * v,
        shape=shape,
    )


def make_carried(name: str, shape: tuple[int, int], speed: float, seed: int) -> Carried:
    """Return one image that moves as a whole: a landscape under a camera that pans, or the labels
    on a belt.

    At ``speed`` 1 and 256 pixels it moves by 0.6 pixels per sub-frame.
    """
    rng = np.random.Generator(np.random.PCG64([seed, _SCENE_STREAM, 1]))
    unit = min(shape)
    image = landscape(max(64, round(1.5 * unit)), SKY, rng)
    velocity_px = 0.6 * speed * unit / 256
    if name == "pan":
        return Carried(image, (0.8 * velocity_px, 0.6 * velocity_px), shape)
    label = wheel(max(16, unit // 3), "BELT", SIGNAL)
    return Carried(with_labels(image, *label), (velocity_px, 0.0), shape)


def make_scene(options: SimulatedOptions) -> Scene:
    """Return the scene of the options. Raises `FileFormatError` for a file that cannot be read."""
    shape = (options.height_px, options.width_px)
    if options.scene in CLIPS:
        # `sci_stream_lab.scenes` has rendered it: this takes milliseconds.
        return VideoScene(str(_CLIPS / f"{options.scene}.mp4"), shape, options.speed)
    if options.scene in ("pan", "belt"):
        return make_carried(options.scene, shape, options.speed, options.seed)
    if options.scene not in SCENES:
        return VideoScene(options.scene, shape, options.speed)
    pace = {"fast": 1.0, "slow": 0.2, "static": 0.0}[options.scene]
    return make_world(shape, pace * options.speed, options.seed)
