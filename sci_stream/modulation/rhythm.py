"""The rhythm of exposures: after a lost pulse they begin a pattern late. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

_PERIODS = 16
# Fewer periods show no usual one.
_PERIODS_NEEDED = 3
# Exposures begin whole patterns late, within this share of a pattern; jitter is smaller than half
# of it.
_WHOLE = 0.2


class ExposureRhythm:
    """Compare the times of exposures with their usual period, in patterns of ``slot_us``."""

    def __init__(self, slot_us: float) -> None:
        self._slot_ns = 1e3 * slot_us
        self._before_ns: int | None = None
        self._periods_ns = deque[float](maxlen=_PERIODS)

    def add(self, now_ns: int | None) -> int:
        """Add the camera's time of an exposure; return by how many patterns it is late, or early if
        negative.
        """
        before_ns = self._before_ns
        self._before_ns = now_ns
        if before_ns is None or now_ns is None or now_ns <= before_ns:
            return 0
        elapsed_ns = float(now_ns - before_ns)
        if len(self._periods_ns) < _PERIODS_NEEDED:
            self._periods_ns.append(elapsed_ns)
            return 0
        usual_ns = median(self._periods_ns)
        cycles = max(1, round(elapsed_ns / usual_ns))
        late = (elapsed_ns - cycles * usual_ns) / self._slot_ns
        deviations = sorted(abs(period - usual_ns) for period in self._periods_ns)
        # Few slips within the window are no jitter.
        jitter_ns = deviations[3 * len(deviations) // 4]
        self._periods_ns.append(elapsed_ns / cycles)
        if abs(late - round(late)) > _WHOLE or jitter_ns > _WHOLE / 2 * self._slot_ns:
            return 0
        return round(late)
