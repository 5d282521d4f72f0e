"""Rate of growth of a total that is observed from outside and grows in steps."""

from __future__ import annotations

from collections import deque

# Short enough to follow a change of the rate, long enough for a steady figure.
_WINDOW_S = 5.0
# Steps kept beyond the window, so that a camera of one snapshot in ten seconds still shows a rate.
_STEPS_KEPT = 4
# Snapshots of the same instant would divide by zero.
_SHORTEST_S = 1e-6


class ThroughputMeter:
    """Rate of a total over the last five seconds, or over its last few steps if they are rare."""

    def __init__(self) -> None:
        self._seen = deque[tuple[float, float]]()

    def update(self, now_s: float, total: float) -> None:
        """Record the total; an unchanged one is ignored."""
        if self._seen and self._seen[-1][1] == total:
            return
        self._seen.append((now_s, total))

    def per_s(self, now_s: float) -> float:
        """Return the rate; 0 once no step has come for longer than usual."""
        while len(self._seen) > _STEPS_KEPT and now_s - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        if len(self._seen) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        step_s = (last_s - first_s) / (len(self._seen) - 1)
        # Three usual steps without one: the total has stopped growing, and the page must show that.
        if now_s - last_s > max(_WINDOW_S, 3 * step_s):
            return 0.0
        return (last - first) / max(last_s - first_s, _SHORTEST_S)
