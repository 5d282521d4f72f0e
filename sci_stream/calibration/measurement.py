"""Compute a calibration from averaged frames: dark, uniform white field, single patterns."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from sci_stream.errors import CalibrationError
from sci_stream.model import F32, F64, U8, Array, BayerPhase, Flags
from sci_stream.optics.bayer import colour_sites
from sci_stream.optics.calibration import Calibration

# The peak of the smoothed white field, without its brightest outliers.
_PEAK_PERCENTILE = 99.9
_HOT_SD = 8.0
_NOISY_TIMES = 5.0
_DEAD_SHARE = 0.25
# A moving mask shows each region open in some phase: most pixels of a square of this side have
# seen it, and few of them are defective.
_REGION_PX = 16
_OPEN_PERCENTILE = 95.0
# A pixel behind a moving mask that gets less than this share of the light of a fully open one, in
# the mean of all phases, sees no light. Chrome on glass lets more than this through.
_NO_LIGHT = 0.003
# Below this, rounding to whole DN is a considerable part of the masks' values.
_LEAST_LIGHT_DN = 8.0
# Single hot pixels saturate in any light; more of them mean that the field itself does.
_MAX_SATURATED = 0.001
# Fewer frames give no usable variance of a pixel.
_COUNT_FOR_NOISE = 4


class Field(enum.StrEnum):
    """Knowledge about the white field."""

    EVEN = "even"
    """Uniform, as in front of an integrating sphere: unevenness is the transmission of the
    optics."""
    UNEVEN = "uneven"
    """Not uniform: the masks of each pixel are relative to its own open mask."""


class PixelFlag(enum.IntFlag):
    """Defects of a pixel."""

    HOT = 1
    """Dark signal far above the other pixels."""
    DEAD = 2
    """Signal of the white field far below the surrounding pixels."""
    NOISY = 4
    """Dark noise far above the other pixels."""


class FrameMean:
    """Mean and variance of frames, pixel by pixel, one frame at a time (Welford's recurrence)."""

    def __init__(self) -> None:
        self.n = 0
        self._mean: F64 = np.zeros(())
        self._squares: F64 = np.zeros(())
        self._saturated: npt.NDArray[np.int64] = np.zeros((), np.int64)

    def add(self, counts: Array, saturation_dn: float | None = None) -> None:
        """Add a frame, (H, W) DN; all must have one size."""
        frame = counts.astype(np.float64)
        if self.n == 0:
            self._mean = np.zeros_like(frame)
            self._squares = np.zeros_like(frame)
            self._saturated = np.zeros(frame.shape, np.int64)
        self.n += 1
        difference = frame - self._mean
        self._mean += difference / self.n
        self._squares += difference * (frame - self._mean)
        if saturation_dn is not None:
            self._saturated += counts >= saturation_dn

    @classmethod
    def of(
        cls, mean: F64, saturated: Flags | None = None, variance: F64 | None = None, n: int = 1
    ) -> FrameMean:
        """Return the mean and variance of ``n`` frames that were averaged before; the variance of
        one is unknown.
        """
        made = cls()
        made.n = n
        made._mean = mean
        made._squares = np.zeros_like(mean) if variance is None else variance * max(1, n - 1)
        made._saturated = (
            np.zeros(mean.shape, np.int64) if saturated is None else saturated.astype(np.int64)
        )
        return made

    @property
    def mean(self) -> F64:
        """(H, W), DN."""
        return self._mean

    @property
    def variance(self) -> F64:
        """(H, W), DN², unbiased; zeros from a single frame."""
        return self._squares / max(1, self.n - 1)

    @property
    def saturated(self) -> Flags:
        """(H, W), pixels that were saturated in any of the frames."""
        return np.asarray(self._saturated > 0)


@dataclass(frozen=True, eq=False)
class Measured:
    """Measurements stored with the calibration for quality checks; reconstruction does not use
    them.

    Parameters
    ----------
    white
        (H, W) DN, mean of the all-open mask.
    flags
        (H, W) uint8, `PixelFlag` of each pixel.
    frames
        Frames averaged for each pattern.
    mask_order
        Index of the modulator's pattern behind each mask, in order of exposure.
    field
        Assumption about the white field.
    clipped_fraction
        Fraction of the values of φ outside 0–1 before clipping.
    """

    white: F32
    flags: U8
    frames: int
    mask_order: tuple[int, ...]
    field: Field
    clipped_fraction: float


@dataclass(frozen=True)
class MeasurementConditions:
    """Acquisition conditions of the frames and their meaning.

    Parameters
    ----------
    field
        Knowledge about the white field.
    brightness
        Brightness of the white field, as a fraction of the white of the scenes to come; 1 defines
        the brightness scale.
    lit_share
        Light of a mask in operation, relative to these frames; None for 1/B: each was held for a
        whole exposure.
    saturation_dn
        Counts from here up are clipped; None if unknown.
    bayer, bit_depth, camera_serial, exposure_ns, gain_db, created, source, patterns
        As in `Calibration`.
    mask_order
        As in `Measured`; empty for 0 to B − 1.
    moving
        Whether the mask moves, so that the white field comes from `white_of_phases`, and perhaps
        the dark one from `dark_of_phases`.
    """

    field: Field = Field.EVEN
    brightness: float = 1.0
    lit_share: float | None = None
    saturation_dn: float | None = None
    bayer: BayerPhase | None = None
    bit_depth: int | None = None
    camera_serial: str = ""
    exposure_ns: int | None = None
    gain_db: float | None = None
    created: str = ""
    source: str = ""
    patterns: str = ""
    mask_order: tuple[int, ...] = ()
    moving: bool = False


def white_of_phases(phases: Sequence[FrameMean], bayer: BayerPhase | None) -> FrameMean:
    """Return the white field behind a moving mask, from its phases: the light of the pixels of each
    region that have seen it open.
    """
    highest = np.max([phase.mean for phase in phases], 0)
    white = np.empty_like(highest)
    for cell in cells(bayer):
        white[cell] = surroundings(_open_level(highest[cell]))
    return FrameMean.of(white, np.any([phase.saturated for phase in phases], 0))


def dark_of_phases(halves: Sequence[FrameMean], phases: Sequence[FrameMean]) -> FrameMean:
    """Return the dark field of a moving mask from exposures of half a phase and of whole ones.

    Light and its variance are proportional to the exposure: what remains at an exposure of 0 is
    twice the mean of the halves, less that of the whole ones.
    """
    n = len(phases)
    means = np.sum([half.mean for half in halves], 0) - np.sum([phase.mean for phase in phases], 0)
    variance = np.sum([half.variance for half in halves], 0)
    variance -= np.sum([phase.variance for phase in phases], 0)
    return FrameMean.of(means / n, None, variance / n, min(half.n for half in halves))


def check_white(dark: FrameMean, white: FrameMean) -> None:
    """Refuse an unusable white field before further measurements.

    Raises `CalibrationError` if it is saturated, or hardly brighter than the dark frame.
    """
    saturated = float(white.saturated.mean())
    if saturated > _MAX_SATURATED:
        raise CalibrationError(
            "The white field saturates the sensor",
            expected=f"at most {_MAX_SATURATED:.1%} of the pixels saturated",
            got=f"{saturated:.1%}",
            hint="Dim the light or shorten the exposure; gain and exposure must then stay as they "
            "are.",
        )
    light_dn = float(np.median(white.mean - dark.mean))
    if light_dn < _LEAST_LIGHT_DN:
        raise CalibrationError(
            "The white field is hardly brighter than the dark frame",
            expected=f"at least {_LEAST_LIGHT_DN:g} DN more, preferably half of the range",
            got=f"{light_dn:.1f} DN",
            hint="Check that the light is on, all mask elements are open, and the dark frame was "
            "taken in the dark.",
        )


def measure(
    dark: FrameMean,
    white: FrameMean,
    patterns: Sequence[FrameMean],
    conditions: MeasurementConditions,
) -> tuple[Calibration, Measured]:
    r"""Compute the calibration from averaged frames.

    ::

        φ_b = clip((pattern_b − dark) / reference, 0, 1)

    The reference is (white − dark) per pixel for an uneven field. For an even field it is the peak
    of (white − dark), smoothed, per colour of a mosaic, so that φ contains the uneven transmission
    of the optics.

    Parameters
    ----------
    dark, white, patterns
        Averages, of one size; of B patterns in order of exposure.
    conditions
        Acquisition conditions and meaning of the frames.

    Raises
    ------
    CalibrationError
        If the white field is unusable, see `check_white`.
    """
    check_white(dark, white)
    light = white.mean - dark.mean
    reference, peak_dn = _reference(light, conditions)
    phi = np.stack([(pattern.mean - dark.mean) / reference for pattern in patterns])
    flags = _flag_defects(dark, light, conditions)
    if conditions.moving:
        seen = np.mean([pattern.mean - dark.mean for pattern in patterns], 0)
        flags[seen < _NO_LIGHT * light] |= np.uint8(PixelFlag.DEAD)
    good = flags == 0
    # Noise takes closed elements slightly below 0 and open ones above 1; clipping that much only
    # removes a bias.
    margin = 0.02
    clipped = (
        float(np.mean((phi[:, good] < -margin) | (phi[:, good] > 1 + margin)))
        if good.any()
        else 1.0
    )
    B = len(patterns)
    calibration = Calibration(
        phi=np.clip(phi, 0.0, 1.0).astype(np.float32),
        dark=dark.mean.astype(np.float32),
        full_scale_dn=peak_dn / conditions.brightness * (conditions.lit_share or 1 / B),
        saturation_dn=conditions.saturation_dn,
        bad_pixels=~good if not good.all() else None,
        read_noise_dn=_read_noise(dark),
        gain_e_per_dn=_photon_transfer(dark, [white, *patterns], good),
        bit_depth=conditions.bit_depth,
        bayer=conditions.bayer,
        camera_serial=conditions.camera_serial,
        exposure_ns=conditions.exposure_ns,
        gain_db=conditions.gain_db,
        created=conditions.created,
        source=conditions.source,
        patterns=conditions.patterns,
    )
    measured = Measured(
        white=white.mean.astype(np.float32),
        flags=flags,
        frames=min(mean.n for mean in patterns),
        mask_order=conditions.mask_order or tuple(range(B)),
        field=conditions.field,
        clipped_fraction=clipped,
    )
    return calibration, measured


def cells(bayer: BayerPhase | None) -> list[tuple[slice, slice]]:
    """Return the pixels of each plane of a mosaic, or all, as slices."""
    return (
        [(slice(None), slice(None))] if bayer is None else [site for _, site in colour_sites(bayer)]
    )


def _reference(light: F64, conditions: MeasurementConditions) -> tuple[F64, float]:
    """Return the signal of an open mask at each pixel, DN, and its maximum over the colours."""
    peaks = [
        float(np.percentile(surroundings(light[cell]), _PEAK_PERCENTILE))
        for cell in cells(conditions.bayer)
    ]
    if conditions.field is Field.UNEVEN:
        return np.maximum(light, _LEAST_LIGHT_DN), max(peaks)
    reference = np.empty_like(light)
    for cell, peak in zip(cells(conditions.bayer), peaks, strict=True):
        reference[cell] = peak
    return reference, max(peaks)


def _open_level(highest: F64) -> F64:
    """Return the light of open pixels around each, (H, W), from the largest light of each."""
    level = np.empty_like(highest)
    for top in range(0, len(highest), _REGION_PX):
        for left in range(0, highest.shape[1], _REGION_PX):
            region = np.s_[top : top + _REGION_PX, left : left + _REGION_PX]
            level[region] = np.percentile(highest[region], _OPEN_PERCENTILE)
    return level


def _read_noise(dark: FrameMean) -> float | None:
    """Return the noise of most pixels in the dark, DN; None if too few frames show it."""
    variance = float(np.median(dark.variance))
    return math.sqrt(variance) if dark.n >= _COUNT_FOR_NOISE and variance > 0 else None


def _flag_defects(dark: FrameMean, light: F64, conditions: MeasurementConditions) -> U8:
    flags = np.zeros(light.shape, np.uint8)
    level = np.median(dark.mean)
    spread = 1.4826 * np.median(np.abs(dark.mean - level))
    flags[dark.mean > level + np.maximum(_HOT_SD * spread, 4.0)] |= np.uint8(PixelFlag.HOT)
    # The noise of a single pixel is too uncertain in a dark field from the phases of a mask.
    if dark.n >= _COUNT_FOR_NOISE and not conditions.moving:
        noise = np.sqrt(dark.variance)
        flags[noise > _NOISY_TIMES * max(float(np.median(noise)), 0.5)] |= np.uint8(PixelFlag.NOISY)
    for cell in cells(conditions.bayer):
        plane = light[cell]
        flags[cell] |= np.where(
            plane < _DEAD_SHARE * surroundings(plane), PixelFlag.DEAD, 0
        ).astype(np.uint8)
    return flags


def surroundings(image: F64) -> F64:
    """Return the mean of 15 × 15 pixels around each, robust to a few bad pixels."""
    height, width = (min(15, size) for size in image.shape)
    return np.asarray(cv2.blur(image, (width, height), borderType=cv2.BORDER_REPLICATE), np.float64)


def _photon_transfer(dark: FrameMean, lit: Sequence[FrameMean], good: Flags) -> float | None:
    """Return electrons per DN: the inverse of the slope of a pixel's variance over its signal.

    After Janesick, *Photon Transfer* (2007): σ² = σ_read² + S/K in DN, from all lit frames
    together.
    """
    lit = [mean for mean in lit if mean.n >= _COUNT_FOR_NOISE]
    if dark.n < _COUNT_FOR_NOISE or not lit:
        return None
    signal = np.concatenate([(mean.mean - dark.mean)[good & ~mean.saturated] for mean in lit])
    excess = np.concatenate(
        [(mean.variance - dark.variance)[good & ~mean.saturated] for mean in lit]
    )
    power = float(signal @ signal)
    slope = float(signal @ excess) / power if power > 0 else 0.0
    scatter = (
        float(np.sqrt(np.mean((excess - slope * signal) ** 2) / power)) if power > 0 else np.inf
    )
    return 1.0 / slope if slope > 10 * scatter else None
