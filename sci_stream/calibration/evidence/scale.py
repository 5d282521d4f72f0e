"""Whether counts are on the scale of their calibration."""

from __future__ import annotations

import math

import numpy as np

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.evidence.mask_match import local_mean
from sci_stream.model import F64, Array
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.white import brightness_percentile

# No scene is brighter: the 99.5th percentile, where white is 1.
_BRIGHTEST = 1.5
# A dark snapshot has this brightness, whatever its bits.
_NO_LIGHT = 0.01
# Counts that were divided have no finer step: a camera counts in whole numbers.
_FINEST = 2.0**-8
# A usual scene has this brightness, by which the nearest power of two is named.
_USUAL = 0.8


def scale_defect(counts: Array, y: F64, calibration: Calibration) -> Defect | None:
    """Return whether counts, (H, W), are on another scale than the calibration's."""
    valid = np.isfinite(y)
    saturation = calibration.saturation_dn or math.inf
    if counts.max(where=valid, initial=0) < _BRIGHTEST * saturation:  # more is on another scale
        valid &= counts < saturation
    phi = calibration.phi * valid
    if not phi.any():
        return None
    y = np.where(valid, y, 0)
    level = brightness_percentile(y[np.newaxis], phi)
    if level > _BRIGHTEST:
        # Noise can be brighter than white, its local means are not.
        means = (local_mean(image, calibration.bayer)[np.newaxis] for image in (y, phi.sum(0)))
        level = level if brightness_percentile(*means) > 1 else 1.0
    step = _step(counts[valid])
    bits = calibration.bit_depth or int(calibration.saturation_dn or 0).bit_length()
    # Values whose white is 1 are no counts: a made scene of 0.5 everywhere is right.
    are_counts = calibration.full_scale_dn > 1
    is_divided = are_counts and step < 1 and _NO_LIGHT * step < level < _BRIGHTEST * step
    of_8_bits = 2.0 ** (8 - bits)
    if level > _BRIGHTEST or is_divided:
        # The step is the factor if neighbouring counts occur, and not where the scene has few.
        steps = np.diff(np.unique(counts[valid]).astype(np.float64))
        is_unit = steps.min(initial=np.inf) == step != 1
        factor = step if is_unit else 2.0 ** round(math.log2(level / _USUAL))
    elif counts.dtype == np.uint8 and bits > 8 and _NO_LIGHT < level < _BRIGHTEST * of_8_bits:
        factor = of_8_bits
    else:
        return None
    text = (
        f"the scene is {level:.3g} times as bright as white was in the calibration: its counts "
        f"have another bit depth, exposure, gain or binning: pass y * {1 / factor:.6g}, or "
        "calibrate with the same settings"
    )
    return Defect("scale", text)


def _step(counts: Array) -> float:
    """Return the largest power of two of which all counts are multiples; 1 if `_FINEST` is none."""
    with np.errstate(invalid="ignore"):  # numbers beyond all integers
        whole = (counts.astype(np.float64) / _FINEST).astype(np.int64)
    if (whole * _FINEST != counts).any():
        return 1.0
    together = int(np.bitwise_or.reduce(whole))
    return (together & -together) * _FINEST
