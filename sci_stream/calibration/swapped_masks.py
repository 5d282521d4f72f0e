"""Tell from several snapshots whether two masks are exchanged, or exposures begin a mask late.

In a block of a few pixels a scene changes nearly linearly while the masks pass
(`sci_stream.calibration.registration`). With the times of two masks exchanged it does not, and
the masks explain less of it. No solve is needed, which could hide it: a warm start keeps the order
of the video before.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque

import numpy as np

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.mask_order import Places
from sci_stream.model import F64

# The mean of so many snapshots decides.
_LOOKS = 8
# Fewer do not decide.
_FEWEST = 6
# A look is followed by so many times its duration without one: it takes 5 % of the time at most.
_PAUSES = 20
# More masks have too many pairs: a look at those of 24 masks takes 0.6 s of a core, and 0.06 s at
# those of 8 (256 × 256 pixels).
_MAX_FRAMES = 16
# Least mean gain over the blocks, in the logarithm of the variance. Right masks had at most 0.016;
# exchanged ones 0.017 to 0.044 (fans, moving discs, B = 6 and 8, 96 to 256 px).
_LEAST_GAIN = 0.008
# Least gain in units of its standard error: right masks had at most 3.2, exchanged ones 4.9 to 10.
_CERTAIN = 4.0
# Its least excess over all other orders in such units.
_CLEAR = 3.0
# No block decides alone.
_MAX_GAIN = 1.0
_TINY = 1e-12


class SwappedMasks:
    """Compare orders of the masks; ``defects`` are those that the last snapshots show.

    ``orders``, (n, B): the time of each mask; the calibrated ones first.
    """

    def __init__(self, n_frames: int, *, paced: bool) -> None:
        steps = np.arange(n_frames)
        self._pairs = list(itertools.combinations(range(n_frames), 2))
        orders = [steps, np.roll(steps, 1), np.roll(steps, -1)]
        for one, other in self._pairs:
            order = steps.copy()
            order[[one, other]] = other, one
            orders.append(order)
        self.orders: Places = np.stack(orders)
        self._possible = 2 < n_frames <= _MAX_FRAMES
        self._pauses = _PAUSES if paced else 0
        self._began_s = 0.0
        self._rests_until_s = -math.inf
        self.forget()

    def forget(self) -> None:
        """Forget all snapshots."""
        self._gains = deque[F64](maxlen=_LOOKS)
        self.defects: list[Defect] = []

    def is_due(self) -> bool:
        """Return whether to `add` the next snapshot, and begin to count its time."""
        self._began_s = time.monotonic()
        return self._possible and self._began_s >= self._rests_until_s

    def add(self, misfits: F64) -> bool:
        """Add the logarithm of the variance that each order leaves in each block of a snapshot,
        (n, N); return whether the defects are others now.
        """
        ended_s = time.monotonic()
        self._rests_until_s = ended_s + self._pauses * (ended_s - self._began_s)
        self._gains.append((misfits[0] - misfits[1:]).clip(-_MAX_GAIN, _MAX_GAIN))
        before = self.defects
        self.defects = self._shown()
        return before != self.defects

    def _shown(self) -> list[Defect]:
        if len(self._gains) < _FEWEST:
            return []
        of_blocks = np.mean(self._gains, 0)
        second, best = (int(place) for place in of_blocks.mean(1).argsort()[-2:])
        if of_blocks[best].mean() < _LEAST_GAIN or _certainty(of_blocks[best]) < _CERTAIN:
            return []
        # Another fault shows so in one snapshot or two, before it is corrected.
        of_looks = sorted(float(look[best].mean()) for look in self._gains)
        if of_looks[-_FEWEST] < _LEAST_GAIN / 2:
            return []
        if best < 2:
            first = int(np.flatnonzero(self.orders[best + 1] == 0)[0])
            text = (
                f"the exposures begin with mask {first}: a pulse of the modulator was lost, or "
                "counted twice; the frames of each snapshot are in the wrong order"
            )
            return [Defect("mask_order", text)]
        if _certainty(of_blocks[best] - of_blocks[second]) < _CLEAR:
            return []
        one, other = self._pairs[best - 2]
        text = (
            f"masks {one} and {other} are shown in each other's place: their frames are "
            "exchanged; load the patterns again"
        )
        return [Defect("mask_order", text)]


def _certainty(gains: F64) -> float:
    """Return the mean of the gains of blocks in units of its standard error."""
    return float(gains.mean() / (gains.std() / math.sqrt(len(gains)) + _TINY))
