"""The white level of a measurement of unknown scale: the value that one white frame adds through an
open mask.
"""

from __future__ import annotations

import numpy as np

from sci_stream.errors import InputError
from sci_stream.model import F32, F64, Array

# The maximum would be determined by a few specular highlights or hot pixels.
_BRIGHT_PERCENTILE = 99.5
# Pixels that the masks hardly open, relative to the mean, have a brightness of noise.
_LEAST_LIGHT = 0.1


def transmission(masks: Array) -> tuple[float, F32]:
    """Return the maximum of masks, (B, H, W), and the masks divided by it.

    Raises `InputError` if they are not transmissions.
    """
    if masks.ndim != 3 or 0 in masks.shape:
        raise InputError(
            "The masks have an invalid shape", expected="(B, H, W), none of them 0", got=masks.shape
        )
    peak = float(masks.max())
    low = float(masks.min())
    if low < 0:
        raise InputError(
            "The masks have negative values",
            expected="transmissions ≥ 0",
            got=f"{low:.4g} to {peak:.4g}",
            hint="Patterns of ±1 transmit 0 and 1: pass (masks + 1) / 2, if y was taken with them."
            if {-1, 1} <= set(np.unique(masks)) <= {-1, 0, 1}
            else "Clip them: masks.clip(0).",
        )
    empty = np.flatnonzero(~masks.any((1, 2)))
    if len(empty):
        raise InputError(
            "Empty masks: their frames leave no trace in y",
            expected="some light through each mask",
            got=f"{len(empty)} of {len(masks)} masks are 0 or NaN everywhere, such as number "
            f"{empty[0]}",
        )
    return peak, np.asarray(masks / peak, np.float32)


def white_level(truth: Array) -> float:
    """Return the white level of true frames, 255 or 1.

    Raises `InputError` if their values are of another range.
    """
    low = float(truth.min())
    top = float(truth.max())
    if low < -64 or top > 510:  # resampled frames overshoot
        raise InputError(
            "The true frames have another range of values",
            expected="0–1 or 0–255",
            got=f"{low:.4g} to {top:.4g}",
            hint="Divide them by their white level, such as 4095 for 12 bits.",
        )
    return 255.0 if top > (1 if np.issubdtype(truth.dtype, np.integer) else 2) else 1.0


def brightness_percentile(y: Array, phi: Array) -> float:
    r"""Return the 99.5th percentile of y/Σ_b φ_b, the mean brightness of each pixel's video, in the
    unit of y.

    Divided by it, the video of a measurement without an absolute scale fills 0–1, and only its
    highlights exceed that.

    Parameters
    ----------
    y
        (N, H, W), measurements.
    phi
        (B, H, W), masks, 0–1, not all of them 0.
    """
    light = np.asarray(phi, np.float64).sum(0)
    seen = light > _LEAST_LIGHT * light.mean()
    return float(
        np.percentile(np.asarray(y, np.float64)[:, seen] / light[seen], _BRIGHT_PERCENTILE)
    )


def fit_white(y: Array, phi: Array, truth: Array) -> tuple[float, float]:
    r"""Return the least-squares s of ``y = s · Σ_b φ_b ⊙ x_b``, and the residual ‖y − sΦx‖₂/‖y‖₂
    that it leaves.

    Parameters
    ----------
    y
        (N, H, W), measurements.
    phi
        (B, H, W), masks, 0–1.
    truth
        (N, B, H, W), x, 0–1.
    """
    model: F64 = np.einsum("bhw,nbhw->nhw", np.asarray(phi, np.float64), truth)
    y = np.asarray(y, np.float64)
    scale = float((y * model).sum() / max(float((model * model).sum()), np.finfo(np.float64).tiny))
    residual = float(np.linalg.norm(y - scale * model) / max(float(np.linalg.norm(y)), 1e-300))
    return scale, residual
