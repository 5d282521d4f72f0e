"""When frame k of a camera without hardware is due."""

from __future__ import annotations

import time


class Pacer:
    """A schedule of frames on the monotonic clock.

    Frame k (from 0) is due (k + 1)/rate after `start`: the exposure has to end first. Due times follow from k alone,
    never from when the preceding frame was read, so neither a late reader nor the sleep's inaccuracy adds up to a
    drift.

    Parameters
    ----------
    rate_hz
        Frames per second; 0 for frames that are due as soon as they are asked for.
    """

    def __init__(self, rate_hz: float) -> None:
        self._period_s = 1.0 / rate_hz if rate_hz > 0 else 0.0
        self._k0 = 0
        self._k0_s = 0.0
        self._origin_s = 0.0
        self._paused_s = 0.0
        self._held_until_s = 0.0

    @property
    def period_ns(self) -> int | None:
        """Nominal distance of frames, None without a rate."""
        return round(self._period_s * 1e9) if self._period_s else None

    def start(self) -> None:
        """Set the schedule's, and the camera clock's, zero to now."""
        self._origin_s = time.monotonic()
        self._k0, self._k0_s = 0, 0.0
        self._paused_s = 0.0
        self._held_until_s = 0.0

    def retime(self, rate_hz: float, k: int) -> None:
        """Go on at another rate from frame ``k``, the next one, on; it is due a new period after the one before it.

        A reader that was late has nothing to catch up on: frames that a slower camera took are not asked of a faster.
        """
        elapsed_s = time.monotonic() - self._origin_s - self._paused_s
        self._k0_s = max(self._due_s(k - 1), elapsed_s) if self._period_s else elapsed_s
        self._k0 = k
        self._period_s = 1.0 / rate_hz if rate_hz > 0 else 0.0

    def _due_s(self, k: int) -> float:
        """Return when frame ``k`` ends, s since the start, pauses left out."""
        return self._k0_s + (k - self._k0 + 1) * self._period_s

    def pause(self, seconds: float) -> None:
        """Let no frame come for that long; all later ones move back by as much."""
        self._paused_s += seconds
        self._held_until_s = time.monotonic() + seconds

    def late_s(self, k: int) -> float:
        """Return by how much frame ``k`` is overdue; negative while it is still to come."""
        due_s = max(self._origin_s + self._paused_s + self._due_s(k), self._held_until_s)
        return time.monotonic() - due_s

    def wait(self, k: int, timeout_s: float, extra_s: float = 0.0) -> bool:
        """Sleep until ``extra_s`` after frame ``k`` is due, but at most ``timeout_s``; tell whether it is due now."""
        remaining_s = extra_s - self.late_s(k)
        if remaining_s > timeout_s:
            time.sleep(max(timeout_s, 0.0))
            return False
        if remaining_s > 0:
            time.sleep(remaining_s)
        return True

    def stamp_ns(self, k: int) -> int:
        """Return the camera's own time stamp of frame ``k``: exact where there is a rate, else the time it is now."""
        if self._period_s:
            return round((self._due_s(k) + self._paused_s) * 1e9)
        return round((time.monotonic() - self._origin_s) * 1e9)
