r"""The masks of a simulated rig: patterns, imaged onto the sensor with blur, displacement and
uneven transmission.

A rig's patterns are binary or measured. The relay optics image them with a Gaussian blur of s
pixels, as the published comparisons behind grey masks do: φ_b = K_s ∗ pattern_b with sampled,
normalised Gaussian weights. Everything is a pure function of its arguments; random numbers come
from a generator that the caller seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

MARGIN_PX = 8
"""Pattern around the field, pixels: the reach of the widest blur (4 · 1.2 px) and a displacement of
three pixels."""
_REACH_SIGMAS = 4.0
# Correlation length of smooth mask errors, as a fraction of the field: the size of fringes, dust
# and vignetting.
_FIELD_FRACTION = 1 / 6


@dataclass(frozen=True, slots=True, eq=False)
class PatternOptics:
    """Patterns and how they are imaged.

    Parameters
    ----------
    patterns
        (B, H + 2m, W + 2m), transmission 0–1 of the mask elements, m = `MARGIN_PX`.
    blur_px
        Standard deviation s of the blur, pixels.
    shifts_px
        (B, 2), by which each pattern's image lies to the right of and below its place; None for
        zero.
    transmission
        (B, H, W) factor on each imaged mask, > 0; None for one.
    """

    patterns: F32
    blur_px: float
    shifts_px: F64 | None = None
    transmission: F32 | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, H, W) of the masks."""
        B, height, width = self.patterns.shape
        return B, height - 2 * MARGIN_PX, width - 2 * MARGIN_PX

    def masks(self) -> F32:
        """Return φ, (B, H, W) float32, ≥ 0; above 1 where `transmission` makes it so."""
        shifts = np.zeros((len(self.patterns), 2)) if self.shifts_px is None else self.shifts_px
        phi = np.stack(
            [
                image(p, self.blur_px, (x, y))
                for p, (x, y) in zip(self.patterns, shifts, strict=True)
            ]
        )
        return phi if self.transmission is None else phi * self.transmission

    def shifted(self, x_px: float, y_px: float) -> PatternOptics:
        """Return the optics with all masks displaced together."""
        return self._displaced(np.broadcast_to(np.array([x_px, y_px]), (len(self.patterns), 2)))

    def jittered(self, sd_px: float, rng: np.random.Generator) -> PatternOptics:
        """Return the optics with each mask displaced by itself, normally distributed along each
        axis.
        """
        return self._displaced(sd_px * rng.standard_normal((len(self.patterns), 2)))

    def blurred(self, more_px: float) -> PatternOptics:
        """Return the optics with a further blur; variances of blurs in series add up."""
        return replace(self, blur_px=math.hypot(self.blur_px, more_px))

    def with_gains(self, sd: float, rng: np.random.Generator) -> PatternOptics:
        """Return the optics with each frame's exposure off by a factor of its own, 1 ± sd."""
        gains = np.maximum(1 + sd * rng.standard_normal(len(self.patterns)), 0.1)
        return self._weakened(gains[:, None, None])

    def with_dwell(self, factor: float, rng: np.random.Generator) -> PatternOptics:
        """Return the optics with the exposure of the first or the last frame longer by a factor."""
        gains = np.ones((len(self.patterns), 1, 1))
        gains[-int(rng.integers(2))] = factor
        return self._weakened(gains)

    def with_smooth_errors(self, sd: float, rng: np.random.Generator) -> PatternOptics:
        """Return the optics with each mask's transmission off by a smooth field of its own, 1 ± sd
        over the field.
        """
        B, height, width = self.shape
        fields = [
            smooth_field((height, width), _FIELD_FRACTION * min(height, width), rng)
            for _ in range(B)
        ]
        return self._weakened(np.maximum(1 + sd * np.stack(fields), 0.1))

    def _displaced(self, by_px: F64) -> PatternOptics:
        before = 0.0 if self.shifts_px is None else self.shifts_px
        return replace(self, shifts_px=before + by_px)

    def _weakened(self, factor: F64 | F32) -> PatternOptics:
        before = 1.0 if self.transmission is None else self.transmission
        after = np.broadcast_to(before * factor, self.shape)
        return replace(self, transmission=np.asarray(after, np.float32))


def image(pattern: F32, blur_px: float, shift_px: tuple[float, float] = (0.0, 0.0)) -> F32:
    """Image one pattern, (H + 2m, W + 2m), onto the sensor: (H, W) float32, a new array."""
    (across, base_x), (down, base_y) = (sub_pixel_kernel(blur_px, shift) for shift in shift_px)
    blurred = cv2.sepFilter2D(pattern, cv2.CV_32F, across[::-1].copy(), down[::-1].copy())
    # filter2D correlates, hence the reversed weights; whole pixels are a matter of where the field
    # is cut out.
    top, left = MARGIN_PX - base_y, MARGIN_PX - base_x
    height, width = pattern.shape[0] - 2 * MARGIN_PX, pattern.shape[1] - 2 * MARGIN_PX
    if min(top, left) < 0 or max(top, left) > 2 * MARGIN_PX:
        raise ValueError(f"masks can be displaced by {MARGIN_PX} px at most, got {shift_px}")
    return np.asarray(blurred[top : top + height, left : left + width], np.float32)


def sub_pixel_kernel(blur_px: float, shift_px: float) -> tuple[F64, int]:
    """Return the weights of blur and displacement along one axis, around a whole number of pixels.

    The weights are a sampled Gaussian exp(−(k − δ)²/2s²) with δ such that their centroid is the
    fraction asked for. Simply δ = shift would move sharp masks too little: samples of a narrow
    Gaussian hardly differ. As s goes to 0 they become linear interpolation, the share of each mask
    element that a pixel sees.

    Parameters
    ----------
    blur_px
        s, ≥ 0.
    shift_px
        Displacement.

    Returns
    -------
    weights, base
        (2r + 1,) float64, sum 1, centroid ``shift − base``, which is in [−½, ½]; and the whole
        pixels.
    """
    base = math.floor(shift_px + 0.5)
    fraction = shift_px - base
    reach = max(1, math.ceil(_REACH_SIGMAS * blur_px))
    k = np.arange(-reach, reach + 1, dtype=np.float64)
    if blur_px < 0.1:
        # A neighbour's weight is below 1e-21: so narrow a Gaussian interpolates linearly.
        return np.clip(1 - np.abs(k - fraction), 0, None), base
    low, high = -1.0, 1.0
    for _ in range(60):  # the centroid grows with δ: bisection
        middle = (low + high) / 2
        weights = _sampled_gaussian(k, middle, blur_px)
        low, high = (middle, high) if float(weights @ k) < fraction else (low, middle)
    return _sampled_gaussian(k, (low + high) / 2, blur_px), base


def _sampled_gaussian(k: F64, centre: float, sd: float) -> F64:
    exponent = -0.5 * ((k - centre) / sd) ** 2
    weights: F64 = np.exp(exponent - exponent.max())
    weights /= weights.sum()
    return weights


def smooth_field(shape: tuple[int, int], length_px: float, rng: np.random.Generator) -> F32:
    """Return smooth Gaussian noise, (H, W) float32, mean 0 and standard deviation 1 over
    the field.
    """
    height, width = shape
    noise = rng.standard_normal(shape)
    v, u = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    spectrum = np.fft.rfft2(noise) * np.exp(-2 * (np.pi * length_px / 2) ** 2 * (u * u + v * v))
    spectrum[0, 0] = 0.0
    field = np.fft.irfft2(spectrum, s=shape)
    return np.asarray(field / field.std(), np.float32)


def random_patterns(n_frames: int, shape: tuple[int, int], rng: np.random.Generator) -> F32:
    """Return independent binary patterns with half of their elements open, as a DMD shows, with
    margin.
    """
    height, width = (n + 2 * MARGIN_PX for n in shape)
    return (rng.random((n_frames, height, width)) < 0.5).astype(np.float32)


def shifting_patterns(n_frames: int, shape: tuple[int, int], rng: np.random.Generator) -> F32:
    """Return one binary pattern that moves down by a pixel a frame, as a chrome mask on a stage,
    with margin.
    """
    height, width = (n + 2 * MARGIN_PX for n in shape)
    pattern = (rng.random((height + n_frames - 1, width)) < 0.5).astype(np.float32)
    return np.stack(
        [pattern[n_frames - 1 - b : n_frames - 1 - b + height] for b in range(n_frames)]
    )


def measured_patterns(mask: F32, shape: tuple[int, int]) -> F32:
    """Return the middle of given masks, (B, ≥ H, ≥ W), with margin: their own, or mirrored where
    they end.

    Raises
    ------
    ValueError
        If the masks are smaller than the field.
    """
    height, width = shape
    if mask.shape[1] < height or mask.shape[2] < width:
        raise ValueError(f"masks of {mask.shape[1:]} pixels do not cover a field of {shape}")
    padded = np.pad(mask, ((0, 0), (MARGIN_PX, MARGIN_PX), (MARGIN_PX, MARGIN_PX)), mode="reflect")
    top, left = (mask.shape[1] - height) // 2, (mask.shape[2] - width) // 2
    cut = padded[:, top : top + height + 2 * MARGIN_PX, left : left + width + 2 * MARGIN_PX]
    return np.ascontiguousarray(cut, np.float32)
