"""Tell a gamma, a black level and masks that are blurred or moved from each other.

Each lowers the contrast of the masks. A gamma does so most where the scene is bright, a black level
where it is dark, a blur most for small features of the masks. So each is undone, and the one that
leaves the smallest share of the variance of the blocks unexplained is the cause.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sci_stream.calibration.registration.mask_fitter import MaskFitter
from sci_stream.calibration.registration.scene_fit import certainty
from sci_stream.model import F32, F64, Array, Flags
from sci_stream.optics.displacement import Displacement

GAMMA = "gamma"
BLACK_LEVEL = "black_level"
MASKS = "masks"
# Gammas that are tried, and black levels in units of the mean of y.
_GAMMAS = (0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 1.25, 1.5, 2.0, 2.2)
_BLACKS = (-0.2, -0.1, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
# Least gain in the logarithm of the unexplained share. Right snapshots had at most 0.01, a gamma of
# 0.7 and stray light of 30 % 0.23 and more (six rigs).
_LEAST_GAIN = 0.1
# A gamma explains more than the other causes by so many standard errors: by 6 and more behind a
# gamma of 0.7, by 5 at most behind stray light and blurred masks.
_CLEAR = 4.0
_MAX_GAIN = 4.0


class Cause(NamedTuple):
    """The cause of a contrast that is too low, ``""`` if it is not clear, and the gamma."""

    name: str
    gamma: float = 1.0


def response_cause(
    fitter: MaskFitter, y: F32, valid: Flags, at: Displacement, masks: Displacement
) -> Cause:
    """Return the cause that explains most of a snapshot, (H, W), behind masks ``at`` a
    displacement; or ``masks``, the one that is fitted to it.
    """
    planned = fitter.unexplained(y, valid, at)

    def gain(image: Array, where: Displacement = at) -> F64:
        rest = fitter.unexplained(image.astype(np.float32), valid, where)
        return (planned - rest).clip(-_MAX_GAIN, _MAX_GAIN)

    level = np.float32(y[valid].mean()) if valid.any() else np.float32(0)
    gammas = {gamma: gain(y.clip(0) ** (1 / gamma)) for gamma in _GAMMAS}
    gamma = max(gammas, key=lambda one: float(gammas[one].mean()))
    blacks = [gain(y - np.float32(black) * level) for black in _BLACKS]
    gains = {
        GAMMA: gammas[gamma],
        BLACK_LEVEL: max(blacks, key=lambda one: float(one.mean())),
        MASKS: gain(y, masks),
    }
    best = max(gains, key=lambda cause: float(gains[cause].mean()))
    if gains[best].mean() < _LEAST_GAIN:
        return Cause("")
    others = (gains[cause] for cause in gains if cause != best)
    if best == GAMMA and min(certainty(gains[best] - other) for other in others) < _CLEAR:
        return Cause("")
    return Cause(best, gamma)
