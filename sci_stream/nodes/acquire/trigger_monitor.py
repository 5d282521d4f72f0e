"""Triggers that were missed or came twice, as far as frames and their time stamps tell."""

from __future__ import annotations

from collections import Counter, deque
from statistics import median

import numpy as np

from sci_stream.model import Array, CameraFrame

_PERIODS_KEPT = 32
_PERIODS_NEEDED = 8
_SAMPLES = 4096
_SHORT, _LONG = 0.6, 1.5
_REGULAR = 0.1


class TriggerWatch:
    """Compares each frame with the one before it, within an epoch.

    ``identical``: the same counts again, pixel by pixel, which no sensor with noise does: a buffer delivered twice.
    ``trigger_missed``: periods without an exposure that no gap in the camera's numbers explains, as where the camera
    was not ready for a trigger. ``trigger_early``: exposures that came after less than 0.6 of the usual period, as a
    trigger line does that bounces. The usual period is the median of the last ones; without camera time stamps only
    ``identical`` can be told.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._previous: CameraFrame | None = None
        self._sampled: Array | None = None
        self._periods_ns: deque[float] = deque(maxlen=_PERIODS_KEPT)

    def restart(self) -> None:
        """Forget the frame before: the camera was started again, and its clock with it."""
        self._previous = self._sampled = None
        self._periods_ns.clear()

    def see(self, frame: CameraFrame, missed: int) -> None:
        """Take a frame, and how many its number says were lost before it."""
        step = max(1, frame.counts.size // _SAMPLES)
        # A copy of a sample at most: the frame's memory is not kept.
        sampled = frame.counts.reshape(-1)[::step].copy()
        if self._sampled is not None and _has_structure(sampled) and np.array_equal(sampled, self._sampled):
            self.counts["identical"] += 1
        if self._previous is not None:
            self._see_time(self._previous.camera_time_ns, frame.camera_time_ns, missed)
        self._sampled = sampled
        self._previous = CameraFrame(sampled, frame.frame_id, frame.camera_time_ns, frame.host_time_ns)

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
        """Return whether there is a usual period at all; where exposures are asked for by hand, there is none."""
        usual = median(self._periods_ns)
        return median(abs(period - usual) for period in self._periods_ns) < _REGULAR * usual


def _has_structure(sampled: Array) -> bool:
    """Return whether equal samples mean anything: a black or clipped picture is like the next one."""
    return bool(sampled.min() != sampled.max())
