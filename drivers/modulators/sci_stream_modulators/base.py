"""The rules of `sci_stream.ports.MaskModulator`: a driver adds the commands of its device."""

from __future__ import annotations

import abc
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from sci_stream.errors import CameraError, ConfigError, SciStreamError
from sci_stream.plugins import (
    Array,
    MaskTiming,
    ModulatorCapabilities,
    Pattern,
    checked_patterns,
    checked_timing,
    pattern_hash,
)
from sci_stream_drivers.fields import DriverOptions

_T = TypeVar("_T")
OptionsT = TypeVar("OptionsT", bound=DriverOptions)


class BaseModulator(abc.ABC, Generic[OptionsT]):
    """A modulator in states closed, open, loaded, armed and started; methods with ``_`` are called
    in order only.

    Exceptions of the device's library become `CameraError`. The phase of the cycle is shifted by
    loading the patterns in another order: the sequence stops at the end of a cycle, so that a
    camera that counts pulses stays in step.
    """

    def __init__(self, options: OptionsT) -> None:
        self.options = options
        self.counts: Counter[str] = Counter()
        self._capabilities: ModulatorCapabilities | None = None
        self._patterns: Array | None = None
        self._timing: MaskTiming | None = None
        self._running = self._holding = self._stale = False
        self._first = 0

    # --- the device

    @abc.abstractmethod
    def _connect(self) -> ModulatorCapabilities:
        """Connect to the device."""

    def _upload(self, patterns: Array) -> None:
        """Store the patterns of a cycle on the stopped device, in which `_show` may have replaced
        them.
        """

    def _reorder(self, patterns: Array, first: int) -> None:
        """Let the cycle begin with another pattern of those that are stored; `_apply` follows."""
        self._upload(np.roll(patterns, -first, 0))

    def _apply(self, timing: MaskTiming) -> MaskTiming:
        """Set the timing, already rounded, of the stopped device;
        return the times that it keeps.
        """
        return timing

    @abc.abstractmethod
    def _run(self) -> None:
        """Start the sequence."""

    @abc.abstractmethod
    def _halt(self) -> None:
        """Stop the sequence at the end of a cycle."""

    def _show(self, image: Array) -> None:
        """Show one image, (H, W) uint8, on the stopped device, in place of its patterns (set
        ``_stale``).
        """
        raise NotImplementedError(image)

    def _show_stored(self, pattern: int) -> None:
        """Show one of the loaded patterns."""
        assert self._patterns is not None
        self._show(self._patterns[pattern])

    def _disconnect(self) -> None:
        """Release the device, whatever its state."""

    # --- the port

    def open(self) -> ModulatorCapabilities:
        """Connect."""
        if self._capabilities is None:
            self.counts.clear()
            try:
                self._capabilities = self._call(self._connect)
            except BaseException:
                with contextlib.suppress(Exception):
                    self._disconnect()
                raise
        return self._capabilities

    def load(self, patterns: Array) -> str:
        """Store patterns; see `sci_stream.ports.MaskModulator.load`."""
        capabilities = self._opened()
        if capabilities.holds:
            patterns = checked_patterns(patterns, capabilities).copy()
        self.stop()
        self._patterns, self._timing, self._first, self._stale = patterns, None, 0, True
        self._restore()
        return pattern_hash(patterns)

    def _restore(self) -> None:
        """Store the patterns again if they are not on the device."""
        if self._stale and self._patterns is not None:
            self._call(self._upload, self._patterns)
            if self._first:
                self._call(self._reorder, self._patterns, self._first)
            self._stale = False

    def arm(self, timing: MaskTiming) -> MaskTiming:
        """Set the timing; see `sci_stream.ports.MaskModulator.arm`."""
        capabilities = self._opened()
        if self._patterns is None or self._running:
            raise RuntimeError("arm() needs load(), and stop() before it")
        timing = checked_timing(timing, capabilities)
        if self._holding:
            self.stop()
        self._restore()
        self._timing = self._call(self._apply, timing)
        return self._timing

    def start(self) -> None:
        """Show the cycle from its first pattern on."""
        self._opened()
        if self._timing is None:
            raise RuntimeError("start() needs load() and arm()")
        if not self._running:
            self._call(self._run)
            self._running = True

    def stop(self) -> None:
        """Stop; does not raise."""
        busy, self._running, self._holding = self._running or self._holding, False, False
        with contextlib.suppress(Exception):  # of a lost device: the next call will report it
            if busy:
                self._halt()

    def hold(self, pattern: Pattern | None) -> None:
        """Show one pattern; see `sci_stream.ports.MaskModulator.hold`."""
        capabilities = self._opened()
        self.stop()
        if pattern is None:
            return
        if not capabilities.holds:
            raise ConfigError(f"The modulator {capabilities.model} cannot hold a pattern")
        if isinstance(pattern, int):
            count = 0 if self._patterns is None else len(self._patterns)
            if self._patterns is None or not 0 <= pattern < count:
                raise ValueError(
                    f"the patterns are numbered from 0; {count} are loaded, got {pattern}"
                )
            show: Callable[[], None] = partial(self._show_stored, pattern)
        else:
            level = 255 if pattern == "white" else 0
            image = np.full((capabilities.height_px, capabilities.width_px), level, np.uint8)
            show = partial(self._show, image)
        self._holding, self._timing = True, None
        self._call(show)

    def advance(self, patterns: int) -> None:
        """Begin the cycle so many patterns later."""
        self._opened()
        if self._patterns is None or self._timing is None:
            raise RuntimeError("advance() needs load() and arm()")
        self._call(self._shift, patterns, self._patterns, self._timing)

    def _shift(self, steps: int, patterns: Array, timing: MaskTiming) -> None:
        """Begin later in the cycle."""
        running = self._running
        self.stop()
        self._first = (self._first + steps) % len(patterns)
        self._reorder(patterns, self._first)
        self._apply(timing)
        if running:
            self.start()

    def counters(self) -> Mapping[str, int]:
        """Return the counts since `open`."""
        self._opened()
        self._call(self._poll)
        return dict(self.counts)

    def _poll(self) -> None:
        """Ask the device for its state, and count faults."""

    def close(self) -> None:
        """Release the device; does not raise."""
        self.stop()
        is_open, self._capabilities, self._patterns, self._timing = (
            self._capabilities is not None,
            None,
            None,
            None,
        )
        with contextlib.suppress(Exception):
            if is_open:
                self._disconnect()

    def _opened(self) -> ModulatorCapabilities:
        if self._capabilities is None:
            raise RuntimeError("the modulator is not open: call open() first")
        return self._capabilities

    def _call(self, call: Callable[..., _T], *arguments: object) -> _T:
        try:
            return call(*arguments)
        except SciStreamError:
            raise
        except Exception as error:  # libraries of makers raise anything
            name = getattr(call, "__name__", "hold").strip("_")
            raise CameraError(
                f"The mask modulator failed in {name}()", got=f"{type(error).__name__}: {error}"
            ) from error
