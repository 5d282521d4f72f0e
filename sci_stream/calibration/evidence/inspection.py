"""Defects of one snapshot: orientation, sign and place of the masks, black level,
gamma, bad pixels.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.evidence.jpeg import jpeg_defect
from sci_stream.calibration.evidence.mask_match import (
    MATCH,
    correlation,
    local_mean,
    modulation,
    present_masks,
)
from sci_stream.calibration.evidence.mask_placement import (
    inverted,
    orientation_defect,
    shift_defect,
)
from sci_stream.calibration.evidence.response import response_defect
from sci_stream.calibration.evidence.scale import scale_defect
from sci_stream.calibration.evidence.stuck_pixels import stuck_pixels
from sci_stream.model import F64, Array, BayerPhase, Flags
from sci_stream.optics import bayer as mosaics
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import NO_CORRECTION, MaskCorrection

# Light of less variation says nothing, as that of masks that add up to a constant.
_MIN_VARIATION = 0.02
OF_RIGHT_MASKS = {"black_level", "gamma"}
"""Defects that masks with errors show, too: looked for with corrected ones."""
# Right data has a smaller share of negative local means in that of positive ones.
_NEGATIVE = 0.1
# Brightness differs by 0.12 within cells of 2×2 pixels of right data without colour filters.
_MOSAIC = 0.2
_SATURATED = 0.005


def inspect(
    counts: Array,
    calibration: Calibration,
    correction: MaskCorrection = NO_CORRECTION,
    stuck: Flags | None = None,
) -> list[Defect]:
    """Return the defects of a snapshot, (H, W) DN.

    ``stuck``, (H, W): its stuck pixels, from `stuck_in`; None to find them here.
    """
    calibration = _corrected(calibration, correction)
    y = _valid_measurement(counts, calibration)
    if stuck is None:
        stuck = stuck_pixels(y, calibration.phi, calibration.bayer) & np.isfinite(y)
    y[stuck] = np.nan
    defects = examine(y, calibration.phi, calibration.bayer)
    if (scale := scale_defect(counts, y, calibration)) is not None:
        defects.insert(0, scale)
    if stuck.any():
        text = (
            f"{int(stuck.sum())} pixels are brighter or darker than their neighbours and the "
            "masks allow: left out"
        )
        defects.insert(0, Defect("stuck_pixels", text, corrected=True))
    return defects


def stuck_in(
    counts: Array, calibration: Calibration, correction: MaskCorrection = NO_CORRECTION
) -> Flags:
    """Return the stuck pixels of a snapshot, (H, W), besides the bad ones of its calibration."""
    calibration = _corrected(calibration, correction)
    y = _valid_measurement(counts, calibration)
    return stuck_pixels(y, calibration.phi, calibration.bayer) & np.isfinite(y)


def _corrected(calibration: Calibration, correction: MaskCorrection) -> Calibration:
    if correction.is_none:
        return calibration
    import torch  # noqa: PLC0415 - a light host has no torch, and no correction

    from sci_stream.optics.mask_shift import corrected_masks  # noqa: PLC0415 - it imports torch

    phi = corrected_masks(torch.from_numpy(calibration.phi.copy()), correction).numpy()
    dark = calibration.dark + np.float32(correction.black * calibration.full_scale_dn)
    return replace(calibration, phi=phi.clip(0, 1), dark=dark)


def _valid_measurement(counts: Array, calibration: Calibration) -> F64:
    """Return y, (H, W), NaN at the bad pixels of the calibration."""
    y = calibration.measurement(counts).astype(np.float64)
    y[~calibration.good] = np.nan
    return y


def examine(y: Array, phi: Array, bayer: BayerPhase | None = None) -> list[Defect]:
    """Return the defects of a snapshot and its masks, none for right data.

    Parameters
    ----------
    y
        (H, W), the measurement, without its dark frame, in any unit; NaN where it is invalid.
    phi
        (B, H, W), masks, 0–1.
    bayer
        Colour filters of the sensor, if it has them.
    """
    # Whole cells of colour filters.
    even = (..., slice(len(y) // 2 * 2), slice(y.shape[1] // 2 * 2))
    y = np.asarray(y[even], np.float64)
    phi = phi[even]
    valid = np.isfinite(y)
    if not valid.any() or np.ptp(y[valid]) == 0:
        return []
    if equal := _equal_masks(phi):
        return [equal]
    # A few pixels, however negative, count no more than bright ones. Noise has no part in means.
    top = np.quantile(np.abs(y[valid]), 0.98)
    means = local_mean(np.where(valid, np.clip(y, -top, top), 0.0), bayer)
    if -means[means < 0].sum() > _NEGATIVE * means[means > 0].sum():
        text = (
            f"y is negative where no light can make it so: pass y + {-y[valid].min():.4g}, or "
            "y as the camera gave it"
        )
        return [Defect("black_level", text, fatal=True)]
    y = np.where(valid, y, np.median(y[valid]))
    light = np.asarray(phi, np.float64).sum(0)
    defects = [found for found in (_saturation(y, light), jpeg_defect(y, light)) if found]
    spread = 0.0 if bayer else _cell_spread(y, light)
    bayer = BayerPhase.RGGB if spread > _MOSAIC else bayer
    r, level, usable = modulation(y, valid, bayer)
    t, _, lit = modulation(light, valid, bayer)
    usable &= lit
    if not usable.any() or np.std(t[usable]) < _MIN_VARIATION:
        return defects
    fit = correlation(r, t, usable)
    if shift := shift_defect(r, t, usable, abs(fit)):
        return [*defects, shift]
    first, last = present_masks(y, phi, bayer) if fit >= MATCH else (0, len(phi))
    if spread > _MOSAIC and fit >= MATCH:
        text = (
            f"y differs by {spread:.0%} within 2×2 pixels, as behind colour filters: pass "
            "their phase as bayer: RGGB, GRBG, GBRG or BGGR"
        )
        defects.append(Defect("mosaic", text))
    if abs(fit) < MATCH:
        if placed := orientation_defect(r, light, usable, fit, bayer):
            defects.append(placed)
    elif fit < 0:
        text = f"y is dark where the masks are open (correlation {fit:.2f}): pass 1 - masks"
        defects.append(Defect("mask_sign", text, fatal=True, repair=inverted))
    elif last - first < len(phi):
        remedy = f"pass masks[{first or ''}:{last if last < len(phi) else ''}]"
        text = (
            f"only {last - first} of {len(phi)} masks have a part in y, or the other frames "
            f"are dark: {remedy}"
        )
        defects.append(Defect("mask_number", text))
    elif response := response_defect(y, r, t, level, usable & (y < y.max()), bayer=bayer):
        defects.append(response)
    return defects


def _equal_masks(phi: Array) -> Defect | None:
    few = phi[:, ::8, ::8]
    for first, second in combinations(range(len(phi)), 2):
        if np.array_equal(few[first], few[second]) and np.array_equal(phi[first], phi[second]):
            all_equal = bool((phi == phi[:1]).all())
            which = f"all {len(phi)} masks" if all_equal else f"masks {first} and {second}"
            text = f"{which} are equal: y cannot tell their frames apart: pass one of them"
            return Defect("equal_masks", text, fatal=all_equal)
    return None


def _cell_spread(y: F64, light: F64) -> float:
    """Return by how much the pixels of 2×2 cells differ in brightness, as a share of that of the
    picture.
    """
    planes = (mosaics.split(image) for image in (y, light))
    of_y, of_light = (np.stack([local_mean(plane, None) for plane in cells]) for cells in planes)
    levels = of_y / np.maximum(of_light, 0.01 * of_light.mean())
    return float(np.ptp(levels, 0).mean()) / max(float(levels.mean()), 1e-300)


def _saturation(y: F64, light: F64) -> Defect | None:
    """Return whether many pixels have one largest value, though their light differs; a flat scene
    is no saturation.
    """
    top = y >= y.max()
    share = float(np.mean(top))
    if share < _SATURATED or y.min() == y.max() or np.ptp(light[top]) < 0.1 * light[top].max():
        return None
    text = (
        f"{share:.1%} of y has its largest value, {y.max():.6g}: saturated pixels say less; "
        "shorten the exposure"
    )
    return Defect("saturation", text)
