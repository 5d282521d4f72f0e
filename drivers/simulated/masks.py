"""The mask stack φ as a calibration of the simulated optics would find it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from drivers.simulated.options import SimulatedOptions

_MASK_STREAM = 1
_LEVELS = 4096
"""φ is rounded to 1/4096: exact in float32, so that the calibration's hash does not hang on a platform's rounding."""


def make_masks(options: SimulatedOptions) -> npt.NDArray[np.float32]:
    """Return the transmissions φ of the B masks, (B, H, W) float32 in [0, 1], a new array.

    A random binary pattern, with what closed elements let through, is blurred by the relay optics' point spread
    function (Gaussian) and weakened by their uneven transmission. ``shifting`` moves one pattern by a pixel a frame
    along the columns, as in CACTI; ``random`` draws each anew.
    """
    B, H, W = options.n_frames, options.height_px, options.width_px
    rng = np.random.Generator(np.random.PCG64([options.seed, _MASK_STREAM]))
    margin = math.ceil(3 * options.mask_blur_px)
    if options.mask == "shifting":
        # One physical mask, larger than the field by its travel: nothing wraps around at the border.
        pattern = rng.random((H + 2 * margin + B - 1, W + 2 * margin)) < options.mask_density
        physical = _blur(_contrast(pattern, options.mask_closed), options.mask_blur_px, margin)
        stack = np.stack([physical[B - 1 - b : B - 1 - b + H] for b in range(B)])
    else:
        patterns = rng.random((B, H + 2 * margin, W + 2 * margin)) < options.mask_density
        stack = np.stack([_blur(_contrast(p, options.mask_closed), options.mask_blur_px, margin) for p in patterns])
    stack *= _gain_map(H, W, options.mask_unevenness)
    return (np.rint(stack * _LEVELS) / _LEVELS).astype(np.float32)


def _contrast(pattern: npt.NDArray[np.bool_], closed: float) -> npt.NDArray[np.float64]:
    return np.where(pattern, 1.0, closed)


def _blur(image: npt.NDArray[np.float64], sigma_px: float, margin: int) -> npt.NDArray[np.float64]:
    """Convolve with a Gaussian cut at ``margin`` pixels and return the part that needs no border."""
    if margin == 0:
        return image
    offsets = np.arange(-margin, margin + 1)
    kernel = np.exp(-0.5 * (offsets / sigma_px) ** 2)
    kernel /= kernel.sum()
    height, width = image.shape[0] - 2 * margin, image.shape[1] - 2 * margin
    rows = sum(k * image[i : i + height] for i, k in enumerate(kernel))
    return np.asarray(sum(k * rows[:, i : i + width] for i, k in enumerate(kernel)))


def _gain_map(height: int, width: int, unevenness: float) -> npt.NDArray[np.float64]:
    """Return a smooth fall-off from 1 near the centre to 1 − unevenness in the far corner, (H, W)."""
    v, u = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    distance2 = (u - 0.15) ** 2 + (v + 0.1) ** 2
    return np.asarray(1.0 - unevenness * distance2 / distance2.max())
