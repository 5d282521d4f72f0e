"""How y responds to the light: with a gamma, on a black level, or with less contrast."""

from __future__ import annotations

import numpy as np

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.evidence.mask_match import SURE, alike, modulation
from sci_stream.model import F64, BayerPhase, Flags

# Right data has slopes between these; the capture 4fan14 has 0.947. A black level of 3 % of the
# range has less, and costs 0.2 dB.
_SLOPE = (0.94, 1.05)
# A gamma g has the curvature (g − 1)/2 over its slope. Texture changes it: 0.4 to 1.9 of it were
# left behind gammas of 0.45 and 0.7, 0.1 to 0.3 behind blurred masks (seven scenes).
_GAMMA_CURVATURE = 0.35
# A larger curvature is that of a gamma above 1.
_UPWARDS = 0.03
# Besides a black level, the masks have their full contrast: 1.06 and more behind stray light of 15
# and 30 %, 0.97 at most behind gammas of 0.45 and 0.7, 0.76 behind blurred masks (seven scenes). In
# six other scenes, 3 of 24 snapshots with a gamma of 0.7 have more.
_FULL_CONTRAST = 1.0
_GAMMAS = (0.3, 3.5)
_CONTRAST = (
    "the masks modulate y {:.2f} times as much as they should: stray light, masks that are "
    "missing, or that are sharper or blurrier than on the sensor: pass those of this exposure, "
    "or calibrate again"
)


def response_defect(
    y: F64, r: F64, t: F64, level: F64, usable: Flags, *, bayer: BayerPhase | None
) -> Defect | None:
    """Return the defect that the slope of r over t shows: a camera's gamma, a black level, or
    masks of less contrast.

    Gamma g bends r ≈ g t + g(g − 1)/2 t². A black level β divides the slope by 1 + β/ȳ: most where
    the scene is dark. Weighted by ȳ, the scene's texture, which does not know of the masks, has no
    part in the mean slope.
    """
    r = r[usable]
    t = t[usable]
    level = level[usable]
    slope, error = _slope(r * level, t * level, t)
    if _SLOPE[0] <= slope + SURE * error and slope - SURE * error <= _SLOPE[1]:
        return None
    # r ȳ = t (ȳ − β)
    black = (1 - slope) * float((t * t * level).sum() / (t * t).sum())
    if slope < 1:
        design = np.stack([t * level, -t], 1)
        contrast = float(np.linalg.lstsq(design, r * level, rcond=None)[0][0])
        if contrast > _FULL_CONTRAST:
            return _black_level(black)
    _, first, second = np.linalg.lstsq(np.stack([np.ones_like(t), t, t * t], 1), r, rcond=None)[0]
    bend = second / first
    if bend < _GAMMA_CURVATURE * (slope - 1) / 2 if slope < 1 else bend > _UPWARDS:
        exponent = 1.0
        for _ in range(4):
            r, level, _ = modulation((y.clip(0) / y.max()) ** exponent, usable, bayer)
            exponent /= max(0.1, _slope((r * level)[usable], t * level[usable], t)[0])
        if not _GAMMAS[0] < exponent < _GAMMAS[1]:
            return Defect("mask_contrast", _CONTRAST.format(slope))
        return gamma_defect(1 / exponent)
    # Steeper where the scene is bright, by an amount that masks of less contrast do not have.
    bright = level >= np.median(level)
    slopes = [
        _slope(r[part] * level[part], t[part] * level[part], t[part])[0]
        for part in (bright, ~bright)
    ]
    expected = black * (1 / level[~bright].mean() - 1 / level[bright].mean())
    if (slopes[0] - slopes[1]) / expected > 0.5:
        return _black_level(black)
    return Defect("mask_contrast", _CONTRAST.format(slope))


def gamma_defect(gamma: float) -> Defect:
    """Return a gamma as a defect."""
    text = (
        f"y is not proportional to the light but has a gamma of about {gamma:.2f}: "
        f"pass y ** {1 / gamma:.2f}, or switch the camera's gamma off"
    )
    return Defect("gamma", text)


def _black_level(black: float) -> Defect:
    remedy = f"has a black level of about {black:.4g}: pass y - {black:.4g}"
    if black < 0:
        remedy = f"lacks about {-black:.4g}, subtracted as black level: pass y + {-black:.4g}"
    return Defect("black_level", f"y {remedy}")


def _slope(z: F64, x: F64, t: F64) -> tuple[float, float]:
    """Return the slope of z over x, by their means weighted by t, and its standard error."""
    power = max(float((t * x).sum()), 1e-300)
    slope = float((t * z).sum()) / power
    rest = t * (z - slope * x)
    return slope, float(np.linalg.norm(rest) * alike(rest)) / power
