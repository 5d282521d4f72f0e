"""Timing of the frames of a simulated camera."""

from __future__ import annotations

import time


class Pacer:
    """A schedule of frames on the monotonic clock.

    Frame k (from 0) is due (k + 1)/rate after `start`, at the end of its exposure. Due times depend
    on k alone, not on the time of earlier reads, so neither a late reader nor the inaccuracy of
    sleep accumulates to a drift.

    Parameters
    ----------
    rate_hz
        Frames per second; 0: every frame is due immediately.
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
        """Nominal frame period, None without a rate."""
        return round(self._period_s * 1e9) if self._period_s else None

    def start(self) -> None:
        """Set the zero of the schedule and of the camera clock to now."""
        self._origin_s = time.monotonic()
        self._k0 = 0
        self._k0_s = 0.0
        self._paused_s = 0.0
        self._held_until_s = 0.0

    def retime(self, rate_hz: float, k: int) -> None:
        """Continue at another rate from frame ``k``, the next one, which is due a new period after
        the previous one, and at the earliest now.

        A late reader does not catch up: frames that were due at the old rate are not delivered at
        the new one.
        """
        elapsed_s = time.monotonic() - self._origin_s - self._paused_s
        period_s = 1.0 / rate_hz if rate_hz > 0 else 0.0
        # Not a period after now: a rate that changes more often than that would stop the camera.
        self._k0_s = max(self._due_s(k - 1), elapsed_s - period_s) if self._period_s else elapsed_s
        self._k0 = k
        self._period_s = period_s

    def _due_s(self, k: int) -> float:
        """Return the end of frame ``k``, s since the start, without pauses."""
        return self._k0_s + (k - self._k0 + 1) * self._period_s

    def pause(self, seconds: float) -> None:
        """Delay all later frames by this time."""
        self._paused_s += seconds
        self._held_until_s = time.monotonic() + seconds

    def late_s(self, k: int) -> float:
        """Return the delay of frame ``k``; negative if it is not due yet."""
        due_s = max(self._origin_s + self._paused_s + self._due_s(k), self._held_until_s)
        return time.monotonic() - due_s

    def wait(self, k: int, timeout_s: float) -> bool:
        """Sleep until frame ``k`` is due, but at most ``timeout_s``; return whether it is due."""
        remaining_s = -self.late_s(k)
        if remaining_s > timeout_s:
            time.sleep(max(timeout_s, 0.0))
            return False
        if remaining_s > 0:
            time.sleep(remaining_s)
        return True

    def stamp_ns(self, k: int) -> int:
        """Return the camera timestamp of frame ``k``: exact with a rate, else the current time."""
        if self._period_s:
            return round((self._due_s(k) + self._paused_s) * 1e9)
        return round((time.monotonic() - self._origin_s) * 1e9)
