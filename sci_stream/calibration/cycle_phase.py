"""Find the mask with which exposures begin from their videos, snapshot by snapshot.

An exposure begins and ends between two masks that follow each other in the cycle, but its ends are
far apart in time: in the ring of B frames in the order of the masks, most moves in the step across
the ends. `sci_stream.calibration.mask_order` needs several pairs of snapshots, but also recognises
a reversed order.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from sci_stream.calibration.mask_order import thumbnails
from sci_stream.model import F64, Array

# The step across the ends must be this many times the next largest one, in the mean of one, two or
# three snapshots, or the phase is unknown: a scene at rest, or one that only flickers. On the
# simulated scenes none of 200 was wrong twice.
_CLEAR = (1.6, 1.35, 1.25)
# The newest exposure must show the same: a warm start makes the first ones after a fault look like
# those before.
_AGREES = 1.15
# Least RMS step, relative to the mean brightness: below it, noise decides.
_MOTION = 0.003


class CyclePhase:
    """Return the first mask of the latest exposures; call `forget` when the modulator
    was changed.
    """

    def __init__(self) -> None:
        self._rings = deque[F64](maxlen=len(_CLEAR))

    def forget(self) -> None:
        """Forget earlier exposures."""
        self._rings.clear()

    def add(self, video: Array) -> int | None:
        """Add a video, (B, H, W), in the order of the masks; return the first mask, None if it is
        unknown.
        """
        small = thumbnails(video)
        ring = np.square(small.astype(np.float64) - np.roll(small, 1, 0)).mean((1, 2))
        brightness = float(np.mean(small)) ** 2 + 1e-12
        if len(ring) < 3 or not np.isfinite(ring).all() or ring.max() < _MOTION**2 * brightness:
            return None
        self._rings.append(ring / ring.mean())
        for count in range(1, len(self._rings) + 1):
            mean = np.mean(list(self._rings)[-count:], axis=0)
            first = int(mean.argmax())
            limits = ((mean, _CLEAR[count - 1]), (self._rings[-1], _AGREES))
            if all(
                steps[first] > factor * np.delete(steps, first).max() for steps, factor in limits
            ):
                return first
        return None
