"""The mask stack φ as a calibration of the simulated optics would measure it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sci_stream_drivers.simulated.options import MAX_DEVIATIONS, SimulatedOptions

_MASK_STREAM, _ERROR_STREAM = 1, 2
# φ is rounded to 1/4096, exact in float32, so that the calibration's hash does not depend on a platform's rounding.
_LEVELS = 4096


class MaskOptics:
    """The masks in front of the sensor, which may be displaced from their calibrated position.

    A random binary pattern, including the transmission of closed elements, is blurred by the point spread function
    (Gaussian) of the relay optics and attenuated by their uneven transmission. ``shifting`` moves one pattern by a
    pixel per frame along the columns, as in CACTI; ``random`` draws each pattern independently.

    For a displacement by (x, y) pixels the point spread function is sampled off its centre by as much (without blur:
    each pixel is weighted by the overlap of the elements with it), while the unevenness of the optics does not move.
    """

    def __init__(self, options: SimulatedOptions) -> None:
        self._options = options
        self._blur_margin = math.ceil(3 * options.mask_blur_px)
        self._travel = math.ceil(options.mask_travel_px)
        self._transmission = np.where(self._draw(), 1.0, options.mask_closed)
        self._gain = _gain_map(options.height_px, options.width_px, options.mask_unevenness)

    def stack(self, shift_px: tuple[float, float] = (0.0, 0.0)) -> npt.NDArray[np.float32]:
        """Return the transmissions φ of the B masks, (B, H, W) float32 in [0, 1], a new array.

        They are displaced by (x, y) to the right and downwards, at most by ``mask_travel_px`` of the options each.
        """
        if self._options.mask == "shifting":
            moved = self._image(self._transmission[0], shift_px)
            return self._seen([self._frame(moved, b) for b in range(self._options.n_frames)])
        return self._seen([self._image(pattern, shift_px) for pattern in self._transmission])

    def exposed(self, shift_px: tuple[float, float] = (0.0, 0.0)) -> npt.NDArray[np.float32]:
        """Return the transmissions in a snapshot, with errors of single masks that the calibration does not have."""
        o = self._options
        if not (o.mask_jitter_px or o.frame_gain_error):
            return self.stack(shift_px)
        rng = np.random.Generator(np.random.PCG64([o.seed, _ERROR_STREAM]))
        errors = rng.standard_normal((o.n_frames, 3)).clip(-MAX_DEVIATIONS, MAX_DEVIATIONS)
        frames = []
        for b, (x, y, gain) in enumerate(errors):
            own = shift_px[0] + o.mask_jitter_px * x, shift_px[1] + o.mask_jitter_px * y
            pattern = self._transmission[0 if o.mask == "shifting" else b]
            frames.append((1 + o.frame_gain_error * gain) * self._frame(self._image(pattern, own), b))
        return self._seen(frames)

    def _frame(self, image: npt.NDArray[np.float64], b: int) -> npt.NDArray[np.float64]:
        """Return the part of an imaged pattern that is in the field at frame b."""
        if self._options.mask != "shifting":
            return image
        top = self._options.n_frames - 1 - b
        return image[top : top + self._options.height_px]

    def _seen(self, frames: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float32]:
        """Return masks as they are seen through uneven optics."""
        return (np.rint(np.stack(frames) * self._gain * _LEVELS) / _LEVELS).astype(np.float32)

    def open(self) -> npt.NDArray[np.float32]:
        """Return the transmission with every element open, (H, W) float32 in [0, 1], a new array."""
        return self._gain.astype(np.float32)

    def _draw(self) -> npt.NDArray[np.bool_]:
        """Draw the patterns, (1 or B, …): larger than the field by the mask travel, so that nothing wraps."""
        o, margin = self._options, self._blur_margin
        rng = np.random.Generator(np.random.PCG64([o.seed, _MASK_STREAM]))
        shape = (o.height_px + 2 * margin, o.width_px + 2 * margin)
        if o.mask == "shifting":
            patterns = rng.random((1, shape[0] + o.n_frames - 1, shape[1])) < o.mask_density
        else:
            patterns = rng.random((o.n_frames, *shape)) < o.mask_density
        if not self._travel:
            return patterns
        # Draw the margin separately: masks without displacement are equal with and without mask travel.
        t = self._travel
        rng = np.random.Generator(np.random.PCG64([o.seed, _MASK_STREAM, 1]))
        around = rng.random((patterns.shape[0], patterns.shape[1] + 2 * t, patterns.shape[2] + 2 * t)) < o.mask_density
        around[:, t:-t, t:-t] = patterns
        return around

    def _image(self, pattern: npt.NDArray[np.float64], shift_px: tuple[float, float]) -> npt.NDArray[np.float64]:
        """Image one displaced pattern onto the sensor."""
        x, y = shift_px
        if max(abs(x), abs(y)) > self._travel:
            raise ValueError(f"the masks are limited to a displacement of {self._travel} px, got ({x:g}, {y:g})")
        rows, columns = self._kernel(y), self._kernel(x)
        height, width = pattern.shape[0] - len(rows) + 1, pattern.shape[1] - len(columns) + 1
        across = sum(k * pattern[i : i + height] for i, k in enumerate(rows) if k)
        return np.asarray(sum(k * across[:, i : i + width] for i, k in enumerate(columns) if k))

    def _kernel(self, shift_px: float) -> npt.NDArray[np.float64]:
        """Return the weights of the elements around a pixel along one axis, of sum 1."""
        margin, reach = self._blur_margin, self._blur_margin + self._travel
        distances = np.arange(-reach, reach + 1) + shift_px
        if self._options.mask_blur_px == 0:
            kernel = np.clip(1 - np.abs(distances), 0, None)
        else:
            kernel = np.exp(-0.5 * (distances / self._options.mask_blur_px) ** 2)
            kernel[np.abs(distances) > margin + 0.5] = 0.0
        return np.asarray(kernel / kernel.sum())


def _gain_map(height: int, width: int, unevenness: float) -> npt.NDArray[np.float64]:
    """Return a smooth fall-off from 1 near the centre to 1 − unevenness in the far corner, (H, W)."""
    v, u = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    distance2 = (u - 0.15) ** 2 + (v + 0.1) ** 2
    return np.asarray(1.0 - unevenness * distance2 / distance2.max())
