"""Work that takes a small share of the time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Paced:
    """Does work, which then pauses for so many times its duration."""

    def __init__(self, pauses: float) -> None:
        self._pauses = pauses
        self._due_s = -math.inf

    def __call__(self, work: Callable[[], None]) -> None:
        """Do the work, unless it pauses."""
        began_s = time.monotonic()
        if began_s < self._due_s:
            return
        work()
        ended_s = time.monotonic()
        self._due_s = ended_s + self._pauses * (ended_s - began_s)
