"""A mask modulator driver in 100 lines: one that only notes its calls.

Register a driver in the pyproject.toml of its package, then select it with ``[modulator] driver =
"noted"``::

    [project.entry-points."sci_stream.modulators"]
    noted = "my_package:NotedModulator"
"""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from sci_stream.plugins import (
    MaskTiming,
    ModulatorCapabilities,
    checked_patterns,
    checked_timing,
    pattern_hash,
)
from sci_stream_testing.modulators import ModulatorContract


class NotedModulator:
    """Satisfies `sci_stream.ports.MaskModulator`.

    A real one sends its commands where this one notes them.
    """

    class Options(BaseModel):
        """``[modulator.options]`` of the rig."""

        model_config = ConfigDict(extra="forbid")
        height_px: int = 768
        width_px: int = 1024

    def __init__(self, options: Options) -> None:
        self.notes: list[str] = []
        self._options = options
        self._capabilities: ModulatorCapabilities | None = None
        self._patterns: np.ndarray | None = None
        self._timing: MaskTiming | None = None
        self._running = False

    def open(self) -> ModulatorCapabilities:
        """Connect, once; return the capabilities for the timing plan."""
        size = (self._options.height_px, self._options.width_px)
        self._capabilities = ModulatorCapabilities(
            "noted", "1", *size, max_patterns=96, min_pattern_us=50.0
        )
        return self._capabilities

    def load(self, patterns: np.ndarray) -> str:
        """Store the masks, (B, H, W) of 0 and 255, and return their hash."""
        self._patterns = checked_patterns(patterns, self._opened()).copy()
        self.stop()
        self._timing = None
        return pattern_hash(self._patterns)

    def arm(self, timing: MaskTiming) -> MaskTiming:
        """Set the times; return those that the device keeps: this one has whole microseconds."""
        if self._patterns is None or self._running:
            raise RuntimeError("arm() needs load(), and stop() before it")
        self._timing = checked_timing(timing, self._opened())
        return self._timing

    def start(self) -> None:
        """Show the cycle from its first pattern on."""
        self._opened()
        if self._timing is None:
            raise RuntimeError("start() needs arm()")
        if not self._running:
            self._running = True
            self.notes.append("start")

    def stop(self) -> None:
        """Stop the cycle; never raises."""
        self._running = False

    def hold(self, pattern: int | str | None) -> None:
        """Show one pattern, for calibration: a mask by its number, "dark", "white", or none any
        more.
        """
        self._opened()
        self.stop()
        self._timing = None  # the times of a cycle have to be armed again
        count = 0 if self._patterns is None else len(self._patterns)
        if isinstance(pattern, int) and not 0 <= pattern < count:
            raise ValueError(f"there are {count} patterns, got {pattern}")
        self.notes.append(f"hold {pattern}")

    def advance(self, patterns: int) -> None:
        """Let exposures begin later in the cycle: the picture has shown that they begin with
        another mask.
        """
        self._opened()
        self.notes.append(f"advance {patterns}")

    def counters(self) -> dict[str, int]:
        """Return counts since open(); "restarts" and "underruns" make the rig load and start the
        device again.
        """
        self._opened()
        return {"restarts": 0, "underruns": 0}

    def close(self) -> None:
        """Stop, and release the device; never raises."""
        self.stop()
        self._capabilities = self._patterns = self._timing = None

    def _opened(self) -> ModulatorCapabilities:
        if self._capabilities is None:
            raise RuntimeError("the modulator is not open: call open() first")
        return self._capabilities


class TestNotedModulator(ModulatorContract):
    """``pytest my_package.py`` runs the suite that every modulator must pass."""

    def make(self) -> NotedModulator:
        """Return a modulator with small patterns."""
        return NotedModulator(NotedModulator.Options(height_px=12, width_px=16))
