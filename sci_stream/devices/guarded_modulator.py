"""A mask modulator of which every failure is the same to its rig: it is lost, and opened again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from sci_stream.errors import CameraLost, InputError
from sci_stream.model import Array
from sci_stream.modulation.timing import MaskTiming, ModulatorCapabilities
from sci_stream.ports import MaskModulator, Pattern

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class GuardedModulator:
    """Satisfies `sci_stream.ports.MaskModulator`.

    Each method raises `CameraLost` whatever the driver raises, so that the modulator is opened
    again together with the camera; `InputError` passes. ``stop`` and ``close`` do not raise.
    """

    def __init__(self, modulator: MaskModulator) -> None:
        self._modulator = modulator

    def open(self) -> ModulatorCapabilities:
        """Connect."""
        return _guarded(self._modulator.open)

    def load(self, patterns: Array) -> str:
        """Store patterns."""
        return _guarded(self._modulator.load, patterns)

    def arm(self, timing: MaskTiming) -> MaskTiming:
        """Set the timing."""
        return _guarded(self._modulator.arm, timing)

    def start(self) -> None:
        """Start the cycle."""
        _guarded(self._modulator.start)

    def hold(self, pattern: Pattern | None) -> None:
        """Show one pattern."""
        _guarded(self._modulator.hold, pattern)

    def advance(self, patterns: int) -> None:
        """Shift the cycle."""
        _guarded(self._modulator.advance, patterns)

    def counters(self) -> Mapping[str, int]:
        """Return the counts."""
        return _guarded(self._counters)

    def _counters(self) -> dict[str, int]:
        return {str(name): int(count) for name, count in self._modulator.counters().items()}

    def stop(self) -> None:
        """Stop the cycle; log a failure."""
        _quietly(self._modulator.stop)

    def close(self) -> None:
        """Release the device; log a failure."""
        _quietly(self._modulator.close)


def _guarded(call: Callable[..., _T], *arguments: object) -> _T:
    try:
        return call(*arguments)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # a driver may raise anything
        name = call.__name__.strip("_")
        raise CameraLost(f"The mask modulator does not respond to {name}()", got=error) from error


def _quietly(call: Callable[[], None]) -> None:
    try:
        _guarded(call)
    except (CameraLost, InputError) as error:
        log.warning("%s: it is released without", error)
