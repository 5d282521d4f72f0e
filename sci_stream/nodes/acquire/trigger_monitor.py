"""Detection of missed and early triggers from the times of frames."""

from __future__ import annotations

import logging
from collections import deque
from statistics import median

log = logging.getLogger(__name__)

_MAX_PERIODS = 32
# Fewer periods show no rhythm. An announced period has to agree with some.
_PERIODS_NEEDED = 8
_ANNOUNCED_NEEDED = 3
# Jitter stays above this share of a period.
_SHORT = 0.6
# Missed triggers leave whole periods, within this share of one or four times the usual jitter.
_WHOLE = 0.02
_JITTERS = 4.0
# Frames with more jitter than this share of a period are not periodic.
_REGULAR = 0.1
# A camera that announces no period may run as fast as its host allows: its frames are a rhythm only
# where a clock triggers them, which this share of them keeps, with less jitter.
_CLOCKED = 0.02
_CLOCKED_SHARE = 0.9
# The observed period is a multiple of the announced one within the first share of itself, and its
# jitter stays below the second share of the announced one. A clock has little jitter, a person has
# more, and 20 announced periods are always within 5 % of a multiple.
_AGREES = 0.05
_KEEPS = 0.1


class TriggerMonitor:
    """Compare the time between frames with the usual period.

    The usual period is the median of the last ones, each without the triggers that it missed. From
    the first frames on, it is compared with the period that the camera or the timing plan
    announces.
    """

    def __init__(self) -> None:
        self._before_ns: int | None = None
        self._periods_ns = deque[float](maxlen=_MAX_PERIODS)
        self._in_row = 0
        self._was_late = False
        self._announced_ns: int | None = None

    def restart(self) -> None:
        """Reset after a camera restart, which resets its clock."""
        self._before_ns = None
        self._periods_ns.clear()

    def check(self, now_ns: int | None, missed: int, announced_ns: int | None) -> tuple[str, int]:
        """Return the fault of a frame, ``""`` for none, and the triggers missed before it.

        By its id, ``missed`` frames precede it, which are no fault of the trigger.
        """
        if announced_ns != self._announced_ns:
            self._announced_ns = announced_ns
            self.restart()
        before_ns = self._before_ns
        self._before_ns = now_ns
        if before_ns is None or now_ns is None:
            return "", 0
        if now_ns <= before_ns:
            return "clock", 0
        elapsed_ns = now_ns - before_ns
        periods = elapsed_ns / self._usual_ns() if self._is_regular() else 1.0 + missed
        extra = round(periods) - 1 - missed
        if extra <= 0 or abs(periods - round(periods)) > self._tolerance():
            extra = 0
        self._note(elapsed_ns / (1 + missed + extra), extra)
        # After a frame that was late itself, the next one is in time.
        early = periods - missed < _SHORT and not self._was_late
        self._was_late = periods - missed > 1 + _REGULAR
        if extra:
            return "trigger_missed", extra
        return ("trigger_early" if early else ""), 0

    def _note(self, period_ns: float, extra: int) -> None:
        self._periods_ns.append(period_ns)
        self._in_row = self._in_row + 1 if extra else 0
        if self._in_row > _MAX_PERIODS and not self._announced_ns:
            log.warning(
                "frames come every %.4g ms and no longer every %.4g ms: no trigger is called "
                "missed any more; look whether their rate was changed",
                (1 + extra) * period_ns / 1e6,
                period_ns / 1e6,
            )
            self._in_row = 0
            self._periods_ns.clear()

    def _usual_ns(self) -> float:
        """Return the period; that of the plan, if the observed one is a multiple of it."""
        usual_ns = median(self._periods_ns)
        multiple = self._multiple()
        if multiple > 1:
            usual_ns /= multiple
            self._periods_ns = deque([usual_ns] * _PERIODS_NEEDED, _MAX_PERIODS)
        return usual_ns

    def _multiple(self) -> int:
        """Return how many announced periods the usual period has; 0 if it is no multiple."""
        if not self._announced_ns:
            return 0
        ratio = median(self._periods_ns) / self._announced_ns
        multiple = round(ratio)
        agrees = abs(ratio - multiple) < _AGREES * multiple
        return multiple if agrees and ratio * self._spread() < _KEEPS else 0

    def _spread(self, share: float = 0.5) -> float:
        """Return the deviation from the usual period that this share of the periods keeps."""
        usual_ns = median(self._periods_ns)
        deviations_ns = sorted(abs(period - usual_ns) for period in self._periods_ns)
        return deviations_ns[int(share * (len(deviations_ns) - 1))] / usual_ns

    def _tolerance(self) -> float:
        return max(_WHOLE, _JITTERS * self._spread())

    def _is_regular(self) -> bool:
        """Return whether the frames are periodic; manually triggered ones are not."""
        n_periods = len(self._periods_ns)
        if n_periods >= _ANNOUNCED_NEEDED and self._multiple():
            return self._spread() < _REGULAR
        return n_periods >= _PERIODS_NEEDED and self._spread(_CLOCKED_SHARE) < _CLOCKED
