"""A simulated mask modulator on the bench of the simulated camera, as
`sci_stream.ports.MaskModulator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from sci_stream.errors import ConfigError
from sci_stream.plugins import (
    Array,
    MaskTiming,
    ModulatorCapabilities,
    Pattern,
    checked_patterns,
    checked_timing,
    pattern_hash,
)
from sci_stream_drivers.fields import DriverOptions, Rare
from sci_stream_drivers.simulated.bench import bench_of
from sci_stream_drivers.simulated.options import ModulatorFaultOptions


class SimulatedModulatorOptions(DriverOptions):
    """Options of the simulated modulator."""

    width_px: int = Field(256, ge=1, le=8192)
    """Width of a pattern, mirrors."""
    height_px: int = Field(256, ge=1, le=8192)
    """Height of a pattern, mirrors."""
    motion: Literal["none", "sine", "sawtooth"] = "none"
    """none: patterns; sine, sawtooth: the camera's shifting mask, moved by a waveform."""
    n_frames: int = Field(8, ge=1, le=256)
    """B of a mask that is moved by a waveform."""
    min_pattern_us: float = Field(50.0, gt=0)
    """Shortest time of a pattern, µs."""
    pulse: Literal["per_cycle", "per_pattern"] = "per_cycle"
    """Pulses that it gives."""
    latency_us: Rare[float] = Field(0.0, ge=0, le=1e5)
    """From the pulse to the light of the first pattern, µs."""
    bench: Rare[str] = "bench"
    """Optical bench that it shares with the camera."""
    faults: Rare[ModulatorFaultOptions] = Field(default_factory=ModulatorFaultOptions)
    """Faults on request."""


class SimulatedModulator:
    """A modulator that shows its patterns to the simulated camera of the same ``bench``.

    Satisfies `sci_stream.ports.MaskModulator`, which says more about each method.
    """

    Options: ClassVar[type[SimulatedModulatorOptions]] = SimulatedModulatorOptions

    def __init__(self, options: SimulatedModulatorOptions | None = None) -> None:
        self._options = options or SimulatedModulatorOptions()
        self._bench = bench_of(self._options.bench)
        self._bench.plan_faults(self._options.faults)
        self._capabilities: ModulatorCapabilities | None = None
        self._loaded = self._armed = False

    def open(self) -> ModulatorCapabilities:
        """Put it on the bench."""
        if self._capabilities is None:
            o = self._options
            moves = o.motion != "none"
            self._bench.attach(o.motion if moves else "", o.n_frames if moves else 0, o.latency_us)
            self._capabilities = ModulatorCapabilities(
                model="sci_stream simulated modulator",
                serial="SIM-MOD",
                height_px=o.height_px,
                width_px=o.width_px,
                bits=8,
                max_patterns=256,
                min_pattern_us=o.min_pattern_us,
                step_us=0.1,
                pulses=(o.pulse,),
                masters=("modulator",) if moves else ("modulator", "camera", "external"),
                gap=True,
                max_delay_us=1e6,
                holds=not moves,
                field_brightness=self._bench.light,
            )
        return self._capabilities

    def load(self, patterns: Array) -> str:
        """Store patterns."""
        capabilities = self._opened()
        self.stop()
        if capabilities.holds:
            self._bench.load(checked_patterns(patterns, capabilities))
        self._loaded = True
        self._armed = False
        return pattern_hash(patterns)

    def arm(self, timing: MaskTiming) -> MaskTiming:
        """Set the timing."""
        capabilities = self._opened()
        if not self._loaded or self._bench.playing:
            raise RuntimeError("arm() needs load(), and stop() before it")
        self._bench.timing = checked_timing(timing, capabilities)
        self._armed = True
        return self._bench.timing

    def start(self) -> None:
        """Show the cycle from its first pattern on."""
        self._opened()
        if not self._armed:
            raise RuntimeError("start() needs load() and arm()")
        if not self._bench.playing:
            self._bench.run()

    def stop(self) -> None:
        """Stop the cycle."""
        if self._capabilities is not None:
            self._bench.playing = False

    def hold(self, pattern: Pattern | None) -> None:
        """Show one pattern to the camera, which then films a white field."""
        capabilities = self._opened()
        self.stop()
        if pattern is not None and not capabilities.holds:
            raise ConfigError(f"The modulator {capabilities.model} cannot hold a pattern")
        count = self._bench.n_patterns if self._loaded else 0
        if isinstance(pattern, int) and not 0 <= pattern < count:
            raise ValueError(f"the patterns are numbered from 0; {count} are loaded, got {pattern}")
        self._armed = self._armed and pattern is None
        self._bench.shown = pattern

    def advance(self, patterns: int) -> None:
        """Shift the phase of the cycle."""
        self._opened()
        self._bench.phase += patterns

    def counters(self) -> Mapping[str, int]:
        """Return cycles, underruns and restarts."""
        self._opened()
        return dict(self._bench.counts)

    def close(self) -> None:
        """Take it away."""
        if self._capabilities is not None:
            self._bench.close()
            self._capabilities = None
            self._loaded = self._armed = False

    def _opened(self) -> ModulatorCapabilities:
        if self._capabilities is None:
            raise RuntimeError("the modulator is not open: call open() first")
        return self._capabilities
