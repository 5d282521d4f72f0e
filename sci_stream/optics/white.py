"""The white level of a measurement of unknown scale: the value that one white frame adds through an open mask."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sci_stream.model import Array

# The maximum would be determined by a few specular highlights or hot pixels.
_BRIGHT_PERCENTILE = 99.5
# Pixels that the masks hardly open, relative to the mean, have a brightness of noise.
_LEAST_LIGHT = 0.1


def white_level(truth: Array) -> float:
    """Return the white level of true frames: 255 for integers and for values beyond 2, otherwise 1."""
    return 255.0 if np.issubdtype(truth.dtype, np.integer) or truth.max() > 2 else 1.0


def brightness_percentile(y: Array, phi: Array) -> float:
    r"""Return the 99.5th percentile of y/Σ_b φ_b, the mean brightness of each pixel's video, in the unit of y.

    Divided by it, the video of a measurement without an absolute scale fills 0–1, and only its highlights exceed that.

    Parameters
    ----------
    y
        (N, H, W), measurements.
    phi
        (B, H, W), masks, 0–1, not all of them 0.
    """
    light = np.asarray(phi, np.float64).sum(0)
    seen = light > _LEAST_LIGHT * light.mean()
    return float(np.percentile(np.asarray(y, np.float64)[:, seen] / light[seen], _BRIGHT_PERCENTILE))


def fit_white(y: Array, phi: Array, truth: Array) -> tuple[float, float]:
    r"""Return the least-squares s of ``y = s · Σ_b φ_b ⊙ x_b``, and the residual ‖y − sΦx‖₂/‖y‖₂ that it leaves.

    Parameters
    ----------
    y
        (N, H, W), measurements.
    phi
        (B, H, W), masks, 0–1.
    truth
        (N, B, H, W), x, 0–1.
    """
    model: npt.NDArray[np.float64] = np.einsum("bhw,nbhw->nhw", np.asarray(phi, np.float64), truth)
    y = np.asarray(y, np.float64)
    scale = float((y * model).sum() / max(float((model * model).sum()), np.finfo(np.float64).tiny))
    residual = float(np.linalg.norm(y - scale * model) / max(float(np.linalg.norm(y)), 1e-300))
    return scale, residual
