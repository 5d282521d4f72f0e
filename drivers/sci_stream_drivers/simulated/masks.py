"""The mask stack φ as a calibration of the simulated optics would measure it."""

from __future__ import annotations

import math

import numpy as np

from sci_stream.plugins import F32, F64, U8, Flags
from sci_stream_drivers.simulated.options import MAX_DEVIATIONS, SimulatedOptions

_MASK_STREAM = 1
_ERROR_STREAM = 2
# φ is rounded to 1/4096, exact in float32, so that the calibration's hash does not depend on a
# platform's rounding.
_LEVELS = 4096
# Largest `SimulatedOptions.mask_travel_px`, rounded up.
_MAX_TRAVEL_PX = 38


class MaskOptics:
    """The masks in front of the sensor, which may be displaced from their calibrated position.

    They are those of the options, or ``patterns`` of a modulator, (B, H, W) uint8, one mirror on
    one pixel.

    A random binary pattern, including the transmission of closed elements, is blurred by the point
    spread function (Gaussian) of the relay optics and attenuated by their uneven transmission.
    ``shifting`` moves one pattern by a pixel per frame along the columns, as in CACTI; ``moving``
    likewise, with elements of `FEATURE_PX`, so that neighbours are alike; ``random`` draws each
    pattern independently.

    For a displacement by (x, y) pixels the point spread function is sampled off its centre by as
    much (without blur: each pixel is weighted by the overlap of the elements with it), while the
    unevenness of the optics does not move.
    """

    def __init__(self, options: SimulatedOptions, patterns: U8 | None = None) -> None:
        if patterns is not None:
            options = options.model_copy(update={"mask": "random", "n_frames": len(patterns)})
        self._options = options
        self._blur_margin = math.ceil(3 * options.mask_blur_px)
        self._travel = math.ceil(options.mask_travel_px)
        self._one_pattern = options.mask == "shifting"  # of which each frame sees another part
        drawn = self._draw() if patterns is None else self._shown(patterns)
        self._transmission = options.mask_closed + (1.0 - options.mask_closed) * drawn
        self._gain = _gain_map(options.height_px, options.width_px, options.mask_unevenness)

    def stack(self, shift_px: tuple[float, float] = (0.0, 0.0)) -> F32:
        """Return the transmissions φ of the B masks, (B, H, W) float32 in [0, 1], a new array.

        They are displaced by (x, y) to the right and downwards, at most by ``mask_travel_px`` of
        the options each.
        """
        if self._one_pattern:
            moved = self._image(self._transmission[0], shift_px)
            return self._seen([self._frame(moved, b) for b in range(self._options.n_frames)])
        return self._seen([self._image(pattern, shift_px) for pattern in self._transmission])

    def exposed(self, shift_px: tuple[float, float] = (0.0, 0.0)) -> F32:
        """Return the transmissions in a snapshot, with errors of single masks that the calibration
        does not have.
        """
        o = self._options
        if not (o.mask_jitter_px or o.frame_gain_error):
            return self.stack(shift_px)
        rng = np.random.Generator(np.random.PCG64([o.seed, _ERROR_STREAM]))
        errors = rng.standard_normal((o.n_frames, 3)).clip(-MAX_DEVIATIONS, MAX_DEVIATIONS)
        frames = []
        for b, (x, y, gain) in enumerate(errors):
            own = shift_px[0] + o.mask_jitter_px * x, shift_px[1] + o.mask_jitter_px * y
            pattern = self._transmission[0 if self._one_pattern else b]
            frames.append(
                (1 + o.frame_gain_error * gain) * self._frame(self._image(pattern, own), b)
            )
        return self._seen(frames)

    def _frame(self, image: F64, b: int) -> F64:
        """Return the part of an imaged pattern that is in the field at frame b."""
        if not self._one_pattern:
            return image
        top = self._options.n_frames - 1 - b
        return image[top : top + self._options.height_px]

    def _seen(self, frames: list[F64]) -> F32:
        """Return masks as they are seen through uneven optics."""
        return (np.rint(np.stack(frames) * self._gain * _LEVELS) / _LEVELS).astype(np.float32)

    def open(self) -> F32:
        """Return the transmission with every element open, (H, W) float32 in [0, 1],
        a new array.
        """
        return self._gain.astype(np.float32)

    def _shown(self, patterns: U8) -> F64:
        """Return the patterns of a modulator, centred on the field with its margins, closed around
        them.
        """
        margin = self._blur_margin + self._travel
        shape = (self._options.height_px + 2 * margin, self._options.width_px + 2 * margin)
        out = np.zeros((len(patterns), *shape))
        places = []
        for there, here in zip(shape, patterns.shape[1:], strict=True):
            size = min(there, here)
            places.append(
                [slice((whole - size) // 2, (whole - size) // 2 + size) for whole in (there, here)]
            )
        (to_y, of_y), (to_x, of_x) = places
        out[:, to_y, to_x] = patterns[:, of_y, of_x] / 255
        return out

    def _draw(self) -> F64 | Flags:
        """Draw the patterns, (1 or B, …): larger than the field by the mask travel, so that nothing
        wraps.
        """
        o = self._options
        margin = self._blur_margin
        rng = np.random.Generator(np.random.PCG64([o.seed, _MASK_STREAM]))
        shape = (o.height_px + 2 * margin, o.width_px + 2 * margin)
        if o.mask == "moving":
            whole = (shape[0] + 2 * _MAX_TRAVEL_PX, shape[1] + 2 * _MAX_TRAVEL_PX)
            inner = slice(_MAX_TRAVEL_PX - self._travel, self._travel - _MAX_TRAVEL_PX or None)
            return moving_patterns(o.n_frames, whole, rng, density=o.mask_density)[:, inner, inner]
        if o.mask == "shifting":
            patterns = rng.random((1, shape[0] + o.n_frames - 1, shape[1])) < o.mask_density
        else:
            patterns = rng.random((o.n_frames, *shape)) < o.mask_density
        if not self._travel:
            return patterns
        # Draw the margin separately: masks without displacement are equal with and without mask
        # travel.
        t = self._travel
        rng = np.random.Generator(np.random.PCG64([o.seed, _MASK_STREAM, 1]))
        around = (
            rng.random((patterns.shape[0], patterns.shape[1] + 2 * t, patterns.shape[2] + 2 * t))
            < o.mask_density
        )
        around[:, t:-t, t:-t] = patterns
        return around

    def _image(self, pattern: F64, shift_px: tuple[float, float]) -> F64:
        """Image one displaced pattern onto the sensor."""
        x, y = shift_px
        if max(abs(x), abs(y)) > self._travel:
            raise ValueError(
                f"the masks are limited to a displacement of {self._travel} px, got ({x:g}, {y:g})"
            )
        rows = self._kernel(y)
        columns = self._kernel(x)
        height = pattern.shape[0] - len(rows) + 1
        width = pattern.shape[1] - len(columns) + 1
        across = sum(k * pattern[i : i + height] for i, k in enumerate(rows) if k)
        return np.asarray(sum(k * across[:, i : i + width] for i, k in enumerate(columns) if k))

    def _kernel(self, shift_px: float) -> F64:
        """Return the weights of the elements around a pixel along one axis, of sum 1."""
        margin = self._blur_margin
        reach = self._blur_margin + self._travel
        distances = np.arange(-reach, reach + 1) + shift_px
        if self._options.mask_blur_px == 0:
            kernel = np.clip(1 - np.abs(distances), 0, None)
        else:
            kernel = np.exp(-0.5 * (distances / self._options.mask_blur_px) ** 2)
            kernel[np.abs(distances) > margin + 0.5] = 0.0
        return np.asarray(kernel / kernel.sum())


FEATURE_PX = 2.0
"""Side of the elements of moving masks, pixels. With a blur of 0.6 px and a step of a pixel they
resemble those of the
capture 4fan14: neighbours correlate by 0.67 (measured 0.64), their contrast is 0.69 (0.63)."""


def moving_patterns(
    n_frames: int,
    shape: tuple[int, int],
    rng: np.random.Generator,
    *,
    feature_px: float = FEATURE_PX,
    step_px: float = 1.0,
    density: float = 0.5,
    late: float = 0.0,
) -> F64:
    """Return one binary pattern that moves down behind the pixels, (B, H, W), 0–1: its open share
    of each pixel.

    Parameters
    ----------
    feature_px, step_px
        Side of its elements, and its motion from frame to frame: neighbours correlate if it is
        shorter.
    density
        Share of open elements.
    late
        Frames by which the exposure is displaced against the positions.
    """
    height, width = shape
    length = height + step_px * (n_frames + 1) + 1
    rows, columns = (math.ceil(extent / feature_px) + 1 for extent in (length, width))
    elements = rng.random((rows, columns)) < density
    across = elements @ _shares(0.0, width, feature_px, columns).T
    return np.stack(
        [
            _shares((n_frames - b - late) * step_px, height, feature_px, rows) @ across
            for b in range(n_frames)
        ]
    )


def _shares(start: float, pixels: int, feature_px: float, elements: int) -> F64:
    """Return the share of each pixel along an axis, from ``start`` on, that each element covers,
    (pixels, elements).
    """
    pixel = start + np.arange(pixels + 1)
    element = feature_px * np.arange(elements + 1)
    ends = np.minimum(pixel[1:, None], element[None, 1:]) - np.maximum(
        pixel[:-1, None], element[None, :-1]
    )
    return np.asarray(ends.clip(0.0))


def _gain_map(height: int, width: int, unevenness: float) -> F64:
    """Return a smooth fall-off from 1 near the centre to 1 − unevenness in the far corner, (H,
    W).
    """
    v, u = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    distance2 = (u - 0.15) ** 2 + (v + 0.1) ** 2
    return np.asarray(1.0 - unevenness * distance2 / distance2.max())
