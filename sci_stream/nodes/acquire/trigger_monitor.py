"""Detection of missed and duplicate triggers from frames and their timestamps."""

from __future__ import annotations

from collections import Counter, deque
from statistics import median

import numpy as np

from sci_stream.model import Array, CameraFrame

_MAX_PERIODS = 32
# Fewer periods give no median to compare with; more than are kept would lag behind a changed rate.
_PERIODS_NEEDED = 8
# Noise makes two frames differ in nearly every pixel: a sample finds a repeated one as surely as
# the whole frame.
_SAMPLES = 4096
# Jitter stays within these limits; a missed trigger doubles the period.
_SHORT, _LONG = 0.6, 1.5
_REGULAR = 0.1


class TriggerMonitor:
    """Compare each frame with the previous one of the same epoch.

    ``identical``: the same counts in every pixel, impossible for a noisy sensor: a buffer was
    delivered twice. ``trigger_missed``: periods without an exposure that no gap in the frame ids
    explains, as when the camera was not ready for a trigger. ``trigger_early``: exposures after
    less than 0.6 of the usual period, as from a bouncing trigger line. The usual period is the
    median of the last ones; without camera timestamps only ``identical`` is detected.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._before_ns: int | None = None
        self._sampled: Array | None = None
        self._periods_ns: deque[float] = deque(maxlen=_MAX_PERIODS)

    def restart(self) -> None:
        """Reset after a camera restart, which resets its clock."""
        self._before_ns = self._sampled = None
        self._periods_ns.clear()

    def check(self, frame: CameraFrame, missed: int) -> None:
        """Check a frame; ``missed`` frames precede it according to its id."""
        step = max(1, frame.counts.size // _SAMPLES)
        # Copy only a sample, so that the frame's memory can be released.
        sampled = frame.counts.reshape(-1)[::step].copy()
        if (
            self._sampled is not None
            and _has_structure(sampled)
            and np.array_equal(sampled, self._sampled)
        ):
            self.counts["identical"] += 1
        self._see_time(self._before_ns, frame.camera_time_ns, missed)
        self._sampled, self._before_ns = sampled, frame.camera_time_ns

    def _see_time(self, before_ns: int | None, now_ns: int | None, missed: int) -> None:
        if before_ns is None or now_ns is None or now_ns <= before_ns:
            return
        elapsed_ns = now_ns - before_ns
        if len(self._periods_ns) >= _PERIODS_NEEDED and self._is_regular():
            periods = elapsed_ns / median(self._periods_ns) - missed
            if periods > _LONG:
                self.counts["trigger_missed"] += round(periods) - 1
            elif periods < _SHORT:
                self.counts["trigger_early"] += 1
        self._periods_ns.append(elapsed_ns / (1 + missed))

    def _is_regular(self) -> bool:
        """Return whether the frames are periodic; manually triggered ones are not."""
        usual = median(self._periods_ns)
        return median(abs(period - usual) for period in self._periods_ns) < _REGULAR * usual


def _has_structure(sampled: Array) -> bool:
    """Return whether equal samples are significant: black or clipped images always match."""
    return bool(sampled.min() != sampled.max())
