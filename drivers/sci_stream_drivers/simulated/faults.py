"""Faults of real cameras, determined by the seed so that a failure can be repeated."""

from __future__ import annotations

import time

import numpy as np

from sci_stream.errors import CameraError, CameraLost
from sci_stream_drivers.simulated.options import FaultOptions

# Every random part has a stream of its own, so that switching one on does not change the others.
_FAULT_STREAM = 3


class Faults:
    """Decide the faults of each snapshot, and track whether the camera is connected.

    ``name`` is that of the camera in messages.
    """

    def __init__(self, options: FaultOptions, seed: int, name: str) -> None:
        self._options = options
        self._seed = seed
        self._name = name
        self._back_at_s = 0.0
        self._disconnects = 0

    def drops(self, index: int) -> bool:
        """Return whether snapshot ``index`` is lost between sensor and host."""
        return self._draw(index, 0) < self._options.drop_probability

    def duplicates(self, index: int) -> bool:
        """Return whether snapshot ``index`` is delivered twice."""
        return self._draw(index, 1) < self._options.duplicate_probability

    def stall_s(self, delivered: int) -> float:
        """Return the duration of the stall after the ``delivered``-th frame; 0 for none."""
        every = self._options.stall_every
        return self._options.stall_s if every and delivered % every == 0 else 0.0

    def unplugs(self, delivered: int) -> bool:
        """Return whether the camera is lost after ``delivered`` frames; it then stays away for a
        while.
        """
        after = self._options.disconnect_after
        due = bool(after) and delivered >= after and self._disconnects < self._options.disconnects
        if due:
            self._disconnects += 1
            self._back_at_s = time.monotonic() + self._options.return_after_s
        return due

    def lost(self) -> CameraLost:
        """Return the error for reading a lost camera."""
        return CameraLost(
            f"{self._name} was disconnected",
            hint="Close and reopen it; faults.return_after_s sets when it returns.",
        )

    def check_present(self) -> None:
        """Raise `CameraError` until a lost camera has returned."""
        remaining_s = self._back_at_s - time.monotonic()
        if remaining_s > 0:
            raise CameraError(
                f"{self._name} cannot be opened: it was disconnected",
                hint=f"It returns in {remaining_s:.1f} s (faults.return_after_s).",
            )

    def _draw(self, index: int, which: int) -> float:
        options = self._options
        if not (options.drop_probability, options.duplicate_probability)[which]:
            return 1.0  # without drawing: the usual case costs nothing
        rng = np.random.Generator(np.random.SFC64([self._seed, _FAULT_STREAM, which, index]))
        return float(rng.random())
