"""Short videos to learn from, cut from clips or photographs set moving, masks to code them with,
and a sensor.

All shares and ranges in this module were chosen in trials, not tuned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.optics.bayer import sample_colours
from sci_stream_lab.training.images import Image
from sci_stream_lab.training.mosaics import PHASE, saturated_colour, seen_by_camera
from sci_stream_lab.training.video.clips import LEAST_FRAMES, Clip

Video = npt.NDArray[np.float32]
"""(B, H, W), 0–1."""
ScalarT = TypeVar("ScalarT", np.uint8, np.float32)


class Shares(NamedTuple):
    """Shares of scenes, and of the layers of moving photographs that are out of focus."""

    clips: float
    drawn: float
    soft: float


# Most others are photographs set moving: sharper than clips, and with motion that is known to be
# smooth. The rest are drawn: plain surfaces, which show false texture, and edges of high contrast
# that move fast, which clips hardly have.
_SHARES = Shares(clips=0.4, drawn=0.15, soft=0.25)
# Saturated colours with sharp edges are rare in photographs, and the clips have no colours.
_COLOUR_SHARES = Shares(clips=0.2, drawn=0.35, soft=0.25)
# Some scenes are plain on purpose: the busiest of some hardly are.
_PLAIN, _PLAIN_SHARE = Shares(clips=0.0, drawn=0.6, soft=0.9), 0.17
# Speeds of drawn shapes, in pixels a frame, and how many there are at most.
_DRAWN_SPEED, _MAX_SHAPES = (0.1, 8.0), 8
# Long side to which photographs are reduced, so that a window shows as much as one of a clip does.
_PHOTOGRAPH_PX = 900
# Scenes drawn with this chance are the busiest of some: single ones have less detail and motion
# than the clips that results are judged by (lab/research/unrolled.md).
_BUSY_SHARE, _BUSIEST_OF = 0.6, 3
# Pixels of a photograph in one of a layer: below 1 it is smooth; well above, as sharp as a sensor
# whose pixels are coarser than its lens. And from where on the photograph is halved first.
_ZOOM, _HALVED_FROM = (0.6, 2.6), 1.4
# Of moving photographs: pixels a frame, and how often the background stays.
_SPEED, _STILL_SHARE = (0.1, 5.0), 0.3
# Every how many frames of a clip are used, in turn.
_STRIDES = (1, 1, 1, 2, 2, 3, 4)
# How far layers are out of focus, as smooth things are that show false texture best, in pixels.
_SOFT_PX = (1.5, 10.0)
# Standard deviation below which a window shows next to nothing; most such windows are drawn again.
_FLAT = 4
_MAX_DRAWS = 10
# Read noise in units of the largest value, electrons that this value stands for, and bits of the
# converter.
_READ_NOISE, _ELECTRONS, _BITS = (0.001, 0.02), (1e3, 5e4), (8, 8, 10, 12)

_VALIDATION_MOST_PX = 192


class Scenes:
    """Draw short videos from clips at least as large as these, and from photographs of any size."""

    _shares = _SHARES

    def __init__(self, clips: Sequence[Clip], photographs: Sequence[Image]) -> None:
        self._clips = clips
        reduced = [_reduced(self._seen(image)) for image in photographs]
        self._photographs = [(image, _halved(image)) for image in reduced]

    def _seen(self, image: Image) -> npt.NDArray[np.uint8]:
        """Return a photograph as the sensor of the scenes sees it: in grey."""
        return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), dtype=np.uint8)

    def _shade(self, rng: np.random.Generator) -> float | tuple[float, float, float]:
        """Draw the brightness of a plain surface, 0–255."""
        return rng.uniform(0, 255)

    def _clip(
        self, rng: np.random.Generator, clips: Sequence[Clip], n_frames: int, size: int
    ) -> npt.NDArray[np.uint8]:
        return _window(rng, clips, n_frames, size)

    def _varied(self, rng: np.random.Generator, video: Video) -> Video:
        """Lower the contrast at times; mirror, turn and reverse at random."""
        if rng.random() < 0.3:
            gain = rng.uniform(0.6, 1.0)
            video = video * np.float32(gain) + np.float32(rng.uniform(0, 1 - gain))
        video = turned(int(rng.integers(8)), video)
        if rng.random() < 0.5:
            video = video[::-1]
        return np.ascontiguousarray(video)

    def draw(self, rng: np.random.Generator, n_frames: int, size: int) -> Video:
        """Draw a video of this many square frames: the same for the same state of ``rng``."""
        if rng.random() < _PLAIN_SHARE:
            return self._draw(rng, n_frames, size, _PLAIN)
        number = _BUSIEST_OF if rng.random() < _BUSY_SHARE else 1
        drawn = (self._draw(rng, n_frames, size, self._shares) for _ in range(number))
        return max(drawn, key=_busyness)

    def _draw(self, rng: np.random.Generator, n_frames: int, size: int, shares: Shares) -> Video:
        long_enough = [clip for clip in self._clips if len(clip) >= n_frames]
        chance = rng.random()
        if chance < shares.drawn:
            video = _drawn(rng, n_frames, size, self._shade)
        elif long_enough and chance < shares.drawn + shares.clips:
            video = self._clip(rng, long_enough, n_frames, size).astype(np.float32)
        else:
            video = self._moving_photographs(rng, n_frames, size, shares.soft)
        return self._varied(rng, video / np.float32(255))

    def _moving_photographs(
        self, rng: np.random.Generator, n_frames: int, size: int, soft_share: float
    ) -> npt.NDArray[np.float32]:
        """Draw a moving background with up to two blobs of other photographs that pass in front of
        it.
        """
        speed = math.exp(rng.uniform(*np.log(_SPEED)))

        def layer(speed: float) -> npt.NDArray[np.float32]:
            frames = self._layer(rng, n_frames, size, speed)
            return _out_of_focus(rng, frames) if rng.random() < soft_share else frames

        video = layer(0.0 if rng.random() < _STILL_SHARE else speed)
        for _ in range(rng.integers(3)):
            front = layer(speed)
            alpha = _blob(rng, n_frames, size, speed)
            alpha = alpha.reshape(*alpha.shape, *[1] * (front.ndim - alpha.ndim))
            video = video * (1 - alpha) + front * alpha
        return video

    def _layer(
        self, rng: np.random.Generator, n_frames: int, size: int, speed: float
    ) -> npt.NDArray[np.float32]:
        """Draw a photograph that shifts with acceleration, turns and grows."""
        angle, zoom = rng.uniform(0, 2 * math.pi), math.exp(rng.uniform(*np.log(_ZOOM)))
        photograph, half = self._photographs[rng.integers(len(self._photographs))]
        image = half if zoom > _HALVED_FROM else photograph
        zoom *= image.shape[0] / photograph.shape[0]
        velocity, acceleration = (
            zoom * rng.normal(0, speed, 2),
            zoom * rng.normal(0, 0.03 * speed, 2),
        )
        turn, growth = 1e-3 * speed * rng.normal(), 1 + 2e-3 * speed * rng.normal()
        centre = rng.uniform(0.25, 0.75, 2) * (image.shape[1], image.shape[0])
        frames = []
        for t in np.arange(n_frames) - n_frames / 2:
            scale = zoom * growth**t
            cos, sin = scale * math.cos(angle + turn * t), scale * math.sin(angle + turn * t)
            linear = np.array([[cos, -sin], [sin, cos]])
            middle = centre + velocity * t + acceleration * t * t / 2
            affine = np.column_stack((linear, middle - linear @ (size / 2, size / 2)))
            flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
            frames.append(
                cv2.warpAffine(
                    image, affine, (size, size), flags=flags, borderMode=cv2.BORDER_REFLECT_101
                )
            )
        return np.stack(frames).astype(np.float32)


class MosaicScenes(Scenes):
    """Draw short videos as the mosaics of a colour sensor, (B, H, W).

    Photographs and drawn shapes are in colour; clips are grey, in the light of any colour.
    """

    _shares = _COLOUR_SHARES

    def draw(self, rng: np.random.Generator, n_frames: int, size: int) -> Video:
        """Draw a video of this many square frames, see `Scenes.draw`."""
        colours = super().draw(rng, n_frames, size)
        return sample_colours(seen_by_camera(rng, colours), PHASE)

    def _seen(self, image: Image) -> Image:
        return image

    def _shade(self, rng: np.random.Generator) -> tuple[float, float, float]:
        red, green, blue = saturated_colour(rng)
        return 255 * red, 255 * green, 255 * blue

    def _clip(
        self, rng: np.random.Generator, clips: Sequence[Clip], n_frames: int, size: int
    ) -> npt.NDArray[np.uint8]:
        grey = turned(int(rng.integers(8)), super()._clip(rng, clips, n_frames, size))
        return np.repeat(grey[..., np.newaxis], 3, axis=-1)

    def _varied(self, rng: np.random.Generator, video: Video) -> Video:
        """Reverse the video at times; the camera varies all else."""
        return video[::-1] if rng.random() < 0.5 else video


def _out_of_focus(
    rng: np.random.Generator, frames: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    soft_px = math.exp(rng.uniform(*np.log(_SOFT_PX)))
    return np.stack([cv2.GaussianBlur(frame, (0, 0), soft_px) for frame in frames])


def centre(clip: Clip) -> Video:
    """Return the middle frames of a clip, cropped to their centre, 0–1."""
    height, width = (min(n, _VALIDATION_MOST_PX) // 2 * 2 for n in clip.shape[1:])
    first, top, left = (
        (len(clip) - LEAST_FRAMES) // 2,
        (clip.shape[1] - height) // 2,
        (clip.shape[2] - width) // 2,
    )
    part = clip[first : first + LEAST_FRAMES, top : top + height, left : left + width]
    return np.asarray(part / np.float32(255), dtype=np.float32)


def _busyness(video: Video) -> float:
    """Return twice the deviation of the fine detail, plus that of the changes between frames."""
    fine = np.stack([frame - cv2.blur(frame, (3, 3)) for frame in video])
    return (
        float(2 * fine.std() + np.diff(video, axis=0).std())
        if len(video) > 1
        else float(fine.std())
    )


def draw_masks(rng: np.random.Generator, n_frames: int, size: int) -> Video:
    """Draw masks of one kind: binary, one binary pattern that moves, or grey; some blurred, some of
    low contrast.
    """
    kind = rng.random()
    if kind < 0.5:
        masks = (rng.random((n_frames, size, size)) < rng.uniform(0.3, 0.6)).astype(np.float32)
    elif kind < 0.75:
        step = int(rng.integers(1, 3))
        pattern = (rng.random((size, size + step * n_frames)) < 0.5).astype(np.float32)
        masks = np.stack([pattern[:, step * b : step * b + size] for b in range(n_frames)])
    else:
        masks = rng.random((n_frames, size, size), np.float32)
    if rng.random() < 0.4:
        sigma_px = rng.uniform(0.3, 0.8)
        masks = np.stack([cv2.GaussianBlur(mask, (0, 0), sigma_px) for mask in masks])
    if rng.random() < 0.3:
        darkest = np.float32(rng.uniform(0, 0.4))
        masks = darkest + (1 - darkest) * masks
    return np.ascontiguousarray(masks.clip(0, 1), dtype=np.float32)


def disturb_masks(rng: np.random.Generator, masks: Video, size: float = 1.0) -> Video:
    """Return masks with errors such as a calibration has: of position, sharpness, brightness and of
    single pixels.

    At least one of them. ``size`` scales them: 1 for a calibration that was never corrected.

    A network that never saw them turns them into texture (lab/research/video-prior.md).
    """
    n_frames, height, width = masks.shape
    errors = rng.random(6) < 0.4
    errors[rng.integers(6)] = True
    together, each, blurred, gains, smooth, grain = errors
    if together:
        angle, length = rng.uniform(0, 2 * math.pi), size * rng.uniform(0.05, 0.35)
        masks = np.stack(
            [_moved(mask, length * math.cos(angle), length * math.sin(angle)) for mask in masks]
        )
    if each:
        spread_px = size * rng.uniform(0.05, 0.25)
        masks = np.stack([_moved(mask, *rng.normal(0, spread_px, 2)) for mask in masks])
    if blurred:
        sigma_px = size * rng.uniform(0.2, 0.6)
        masks = np.stack([cv2.GaussianBlur(mask, (0, 0), sigma_px) for mask in masks])
    part = 0.05 * size  # of brightness
    if gains:
        masks = masks * (1 + part * rng.standard_normal((n_frames, 1, 1), np.float32))
    if smooth:
        coarse = part * rng.standard_normal((n_frames, 6, 6), np.float32)
        masks = masks * (
            1
            + np.stack(
                [cv2.resize(e, (width, height), interpolation=cv2.INTER_CUBIC) for e in coarse]
            )
        )
    if grain:  # of all masks alike, as the sensor's own pattern is, or of each
        spread = size * math.exp(rng.uniform(math.log(0.01), math.log(0.1)))
        masks = masks * (
            1 + spread * rng.standard_normal((rng.choice((1, n_frames)), height, width), np.float32)
        )
    return np.asarray(masks.clip(0), dtype=np.float32)


def sensed(
    rng: np.random.Generator,
    y: Video,
    read_noise: tuple[float, float] = _READ_NOISE,
    electrons: tuple[float, float] = _ELECTRONS,
) -> Video:
    """Return the reading of a sensor for the light y: with read noise and shot noise, in whole
    numbers.

    ``read_noise`` in units of the largest value, and the ``electrons`` that this stands for: limits
    of either.
    """
    brightest = float(y.max()) + 1e-6
    read, full = (math.exp(rng.uniform(*np.log(limits))) for limits in (read_noise, electrons))
    variance = read**2 + y / (brightest * full)
    light = y / brightest + np.sqrt(variance) * rng.standard_normal(y.shape, np.float32)
    steps = 2 ** int(rng.choice(_BITS)) - 1
    return np.asarray(np.rint(light * steps) * (brightest / steps), dtype=np.float32)


def _moved(mask: Video, columns: float, rows: float) -> Video:
    """Shift a mask by a fraction of a pixel."""
    shift = np.array([[1, 0, columns], [0, 1, rows]], np.float32)
    size = (mask.shape[1], mask.shape[0])
    moved = cv2.warpAffine(
        mask, shift, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT_101
    )
    return np.asarray(moved, dtype=np.float32)


def _reduced(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    scale = _PHOTOGRAPH_PX / max(image.shape)
    if scale >= 1:
        return image
    reduced = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    return np.asarray(reduced, dtype=np.uint8)


def _halved(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.asarray(
        cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA), dtype=np.uint8
    )


def _window(
    rng: np.random.Generator, clips: Sequence[Clip], n_frames: int, size: int
) -> npt.NDArray[np.uint8]:
    """Cut a window from a random clip, at times of every second frame or fewer, and reduced."""
    for _ in range(_MAX_DRAWS):
        clip = clips[int(rng.integers(len(clips)))]
        stride = min(int(rng.choice(_STRIDES)), len(clip) // n_frames)
        span = math.ceil(size / rng.choice([1.0, 1.0, 0.75, 0.5]))
        if span > min(clip.shape[1:]):
            span = size
        first, top, left = (
            int(rng.integers(n - used + 1))
            for n, used in zip(clip.shape, (stride * n_frames, span, span), strict=True)
        )
        window = clip[
            first : first + stride * n_frames : stride, top : top + span, left : left + span
        ]
        if window.std() >= _FLAT or rng.random() >= 0.7:
            break
    if span != size:
        window = np.stack(
            [cv2.resize(frame, (size, size), interpolation=cv2.INTER_AREA) for frame in window]
        )
    return np.asarray(window, dtype=np.uint8)


def _drawn(
    rng: np.random.Generator,
    n_frames: int,
    size: int,
    shade: Callable[[np.random.Generator], float | tuple[float, float, float]],
) -> npt.NDArray[np.float32]:
    """Draw plain shapes that move and turn in front of a plain background, each frame exposed for
    all of its time.
    """
    corners = np.array([shade(rng) for _ in range(4)], np.float32)
    shades = corners.reshape(2, 2, *corners.shape[1:])
    background = cv2.resize(shades, (size, size), interpolation=cv2.INTER_CUBIC).clip(0, 255)
    shapes = []
    for _ in range(rng.integers(1, _MAX_SHAPES + 1)):
        angles = np.sort(rng.uniform(0, 2 * math.pi, rng.integers(3, 9)))
        if rng.random() < 0.3:
            angles = np.linspace(0, 2 * math.pi, 40, endpoint=False)
        extent = math.exp(rng.uniform(*np.log((0.06, 0.5)))) * size
        outline = extent * np.stack((np.cos(angles), rng.uniform(0.15, 1) * np.sin(angles)), 1)
        speed = math.exp(rng.uniform(*np.log(_DRAWN_SPEED)))
        middle, velocity = rng.uniform(0, size, 2), speed * rng.normal(0, 0.7, 2)
        shapes.append(
            (
                outline,
                middle,
                velocity,
                rng.uniform(0, 2 * math.pi),
                rng.normal(0, 0.05),
                shade(rng),
            )
        )
    frames = np.empty((n_frames, *background.shape), np.float32)
    for b in range(n_frames):
        parts = []
        for time in b - n_frames / 2 + np.array((0.0, 1 / 3, 2 / 3)):
            image = background.astype(np.uint8)
            for outline, middle, velocity, angle, turn, brightness in shapes:
                cos, sin = math.cos(angle + turn * time), math.sin(angle + turn * time)
                corners = outline @ np.array([[cos, sin], [-sin, cos]]) + middle + velocity * time
                cv2.fillPoly(
                    image, [np.rint(16 * corners).astype(np.int32)], brightness, cv2.LINE_AA, 4
                )
            parts.append(image)
        frames[b] = np.mean(parts, 0)
    return frames


def _blob(
    rng: np.random.Generator, n_frames: int, size: int, speed: float
) -> npt.NDArray[np.float32]:
    """Draw the opacity of a round shape with a wavy outline that moves, (B, H, W)."""
    radius = rng.uniform(0.1, 0.3) * size
    middle, velocity = rng.uniform(0.2, 0.8, 2) * size, rng.normal(0, 1.5 * speed, 2)
    phases, amplitudes = rng.uniform(0, 2 * math.pi, 4), rng.uniform(0, 0.25, 4)
    rows, columns = np.mgrid[:size, :size].astype(np.float32)
    alphas = []
    for t in np.arange(n_frames) - n_frames / 2:
        row, column = middle + velocity * t
        angle = np.arctan2(rows - row, columns - column)
        waves = sum(
            a * np.cos((n + 1) * angle + p)
            for n, (a, p) in enumerate(zip(amplitudes, phases, strict=True))
        )
        # A pixel on the outline is covered in part.
        alphas.append(
            np.clip(radius * (1 + waves) - np.hypot(rows - row, columns - column) + 0.5, 0, 1)
        )
    return np.stack(alphas).astype(np.float32)


def turned(kind: int, video: npt.NDArray[ScalarT]) -> npt.NDArray[ScalarT]:
    """Mirror and turn frames in one of eight ways."""
    if kind & 1:
        video = video[..., ::-1]
    if kind & 2:
        video = video[:, ::-1]
    return video.transpose(0, 2, 1) if kind & 4 else video
