"""Whether a node lives, whether it is ready, what it has to say: written by its loop, read by the server's threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from sci_stream.health.metrics import Figures, Value

ALIVE_WITHIN_S = 5.0
"""A node whose loop has not turned for so long hangs: it turns tens of times a second."""


class Health:
    """State of one node for `/healthz`, `/readyz`, `/status` and `/metrics`.

    Parameters
    ----------
    figures
        Where the node's figures go.
    clock
        Monotonic seconds.
    """

    def __init__(self, figures: Figures, clock: Callable[[], float] = time.monotonic) -> None:
        self.figures = figures
        self._clock = clock
        self._turned_s = clock()
        self._not_ready = "it is starting"
        self._status: Mapping[str, Any] = {}

    def turn(self) -> None:
        """Note that the node's loop turns."""
        self._turned_s = self._clock()

    def report(self, not_ready: str, status: Mapping[str, Any], figures: Mapping[str, Value]) -> None:
        """Publish what there is to say now.

        Parameters
        ----------
        not_ready
            Why the node cannot do its work, ``""`` if it can.
        status
            In full, of JSON types; not changed afterwards.
        figures
            For `Figures.tell`.
        """
        self._not_ready = not_ready
        self._status = status
        self.figures.report({"ready": float(not not_ready), **figures})

    @property
    def hangs_for_s(self) -> float:
        """Seconds since the loop last turned, 0 if that is no reason for concern."""
        silent_s = self._clock() - self._turned_s
        return silent_s if silent_s > ALIVE_WITHIN_S else 0.0

    @property
    def not_ready(self) -> str:
        """Why the node cannot do its work now, ``""`` if it can."""
        if self.hangs_for_s:
            return f"its loop has not turned for {self.hangs_for_s:.1f} s"
        return self._not_ready

    @property
    def status(self) -> dict[str, Any]:
        """What the node says of itself."""
        return {**self._status, "ready": not self.not_ready, "not_ready": self.not_ready}
