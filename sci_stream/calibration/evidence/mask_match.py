"""How well a measurement matches the light of its masks.

Divided by their local means, y and the light Σ_b φ_b have a common part: r = y/ȳ − 1 and t =
Σφ/Σ̄φ̄ − 1. For right data r is t plus the scene's texture and motion, which do not know of the
masks: their correlation is 0.5 to 1 and the slope of r over t is 1. Measured on 156 snapshots of 37
clips and the published sets, behind random, blurred, moving and measured masks, with 0 to 1 % of
noise: correlation at least 0.49, slope weighted by ȳ 0.968 to 1.027, correlation with masks in
another orientation at most 0.15 (lab/research/foreign-data.md).
"""

from __future__ import annotations

import math

import cv2
import numpy as np

from sci_stream.model import F64, Array, BayerPhase, Flags
from sci_stream.optics import bayer as mosaics

_BLUR_PX = 3.0
_REFLECTED = cv2.BORDER_REFLECT_101
MATCH = 0.3
"""Correlation from which masks belong to y: between that of wrong masks, 0.15, and of right ones,
0.49."""
MAX_SHIFT_PX = 6
"""Whole pixels by which displaced masks are looked for, in each direction."""
# Right masks whose correlation is less still stand out from chance by more than this many standard
# deviations: by 6.3 and more in 216 snapshots, others by up to 5.8 (six scenes behind six kinds of
# masks, B from 2 to 24, 64 and 128 px).
CHANCE = 6.0
# Fewer pixels do not tell right masks from others.
_LEAST_PIXELS = 300
# All masks fade alike within these pixels of the border, as by a blur that meets nothing there.
_BORDER = 3
# A mask with less than this share of the mean light had no part in y.
_ABSENT_SHARE = 0.2
# A share that may be as large as this, within its error, is no sign of an absent mask.
_PRESENT_SHARE = 0.5
SURE = 2.5
"""Standard errors by which a figure must be off to count."""
# Pixels along each side by which shares are measured: enough, and quick.
_SHARES_PX = 384


def modulation(image: F64, valid: Flags, bayer: BayerPhase | None) -> tuple[F64, F64, Flags]:
    """Return an image over its local mean, minus 1, clipped to ±3; the local mean; and where this
    is large enough.
    """
    mean = local_mean(image, bayer)
    usable = valid & (mean > max(0.05 * mean.mean(), 0.0))
    return (
        np.clip(np.where(usable, image / np.where(usable, mean, 1.0) - 1, 0.0), -3, 3),
        mean,
        usable,
    )


def local_mean(image: F64, bayer: BayerPhase | None) -> F64:
    """Return the mean around each pixel, of those of its colour."""
    if bayer is None:
        height, width = (2 * min(round(3 * _BLUR_PX), size - 1) + 1 for size in image.shape)
        blurred = cv2.GaussianBlur(image, (width, height), _BLUR_PX, borderType=_REFLECTED)
        return np.asarray(blurred, np.float64)
    return mosaics.merge(np.stack([local_mean(plane, None) for plane in mosaics.split(image)]))


def correlation(a: F64, b: F64, where: Flags) -> float:
    """Return the correlation of two images."""
    a = a[where] - a[where].mean()
    b = b[where] - b[where].mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else 0.0


def displaced_correlations(a: F64, b: F64, where: Flags) -> F64:
    """Return the correlation of a with b, (H, W), displaced cyclically by each number of pixels."""
    a = np.where(where, a - a[where].mean(), 0)
    b = np.where(where, b - b[where].mean(), 0)
    product = np.fft.irfft2(np.fft.rfft2(a) * np.conj(np.fft.rfft2(b)), a.shape)
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return np.asarray(product / max(scale, 1e-300))


def compare(y: Array, phi: Array, bayer: BayerPhase | None) -> tuple[F64, F64, F64, Flags]:
    """Return the modulation of y, (H, W), and of the light of masks, (B, H, W), the local mean of
    y, and where both are large enough.
    """
    y = np.asarray(y, np.float64)
    light = np.asarray(phi, np.float64).sum(0)
    valid = np.isfinite(y)
    r, level, usable = modulation(np.where(valid, y, 0.0), valid, bayer)
    t, _, lit = modulation(light, valid, bayer)
    return r, t, level, usable & lit


def mask_fit(y: Array, phi: Array, bayer: BayerPhase | None = None) -> float:
    """Return the correlation of y, (H, W), with the light of masks (B, H, W) on any scale, both
    without local means.
    """
    r, t, _, usable = compare(y, phi, bayer)
    return correlation(r, t, usable) if usable.any() else 0.0


def distinction(y: Array, light: Array, bayer: BayerPhase | None = None) -> float:
    """Return by how many standard deviations of chance y, (H, W), fits the light of all masks.

    They may be displaced by a few pixels. Masks that are displaced further show what chance does.
    """
    even = (slice(len(y) // 2 * 2), slice(y.shape[1] // 2 * 2))
    r, t, _, usable = compare(y[even], light[np.newaxis, *even], bayer)
    return distinction_of(r, t, usable)


def distinction_of(r: F64, t: F64, usable: Flags) -> float:
    """Return the distinction of two modulations, (H, W), where they are usable."""
    inside = slice(_BORDER, -_BORDER), slice(_BORDER, -_BORDER)
    usable = usable[inside]
    if usable.sum() < _LEAST_PIXELS:
        return math.inf
    product = displaced_correlations(r[inside], t[inside], usable)
    reach = np.arange(-MAX_SHIFT_PX, MAX_SHIFT_PX + 1)
    near = np.ix_(reach, reach)
    best = float(product[near].max())
    product[near] = np.nan
    return best / max(float(np.nanstd(product)), 1e-300)


def present_masks(y: Array, phi: Array, bayer: BayerPhase | None = None) -> tuple[int, int]:
    """Return the first of the masks (B, H, W), on any scale, that has a part in y, (H, W), and the
    one after the last.

    y's modulation is the sum of those of all masks, each times the brightness of its frame.
    """
    top, left = (max(0, (side - _SHARES_PX) // 4 * 2) for side in y.shape)
    inside = (..., slice(top, top + _SHARES_PX), slice(left, left + _SHARES_PX))
    y = np.asarray(y[inside], np.float64)
    phi = np.asarray(phi[inside], np.float64)
    valid = np.isfinite(y)
    _, level, usable = modulation(np.where(valid, y, 0.0), valid, bayer)
    light = local_mean(phi.sum(0), bayer)
    usable &= light > 0.05 * light.mean()
    parts = np.stack([(mask - local_mean(mask, bayer))[usable] for mask in phi])
    target = y[usable] * light[usable] / level[usable] - light[usable]
    target = np.clip(target, *np.quantile(target, (0.01, 0.99)))
    gram = parts @ parts.T
    gram += 1e-6 * np.trace(gram) * np.eye(len(gram)) / len(gram)
    shares = np.linalg.solve(gram, parts @ target)
    rest = target - shares @ parts
    errors = np.sqrt(np.mean(rest**2) * np.diag(np.linalg.inv(gram))) * alike(rest * parts)
    absent = (shares < _ABSENT_SHARE) & (shares + SURE * errors < _PRESENT_SHARE)
    present = np.flatnonzero(~absent)
    return (int(present[0]), int(present[-1]) + 1) if len(present) else (0, len(phi))


def alike(values: F64) -> F64:
    """Return by how much larger the error of a sum is than that of independent values.

    Errors of neighbours in a row, and in a column, are alike behind blurred masks.
    """
    shared = (values[..., 1:] * values[..., :-1]).sum(-1)
    likeness = np.clip(shared / np.maximum(np.square(values).sum(-1), 1e-30), 0.0, 0.9)
    return np.asarray((1 + likeness) / (1 - likeness))
