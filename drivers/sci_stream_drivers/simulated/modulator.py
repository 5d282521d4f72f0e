"""A simulated mask modulator on the bench of the simulated camera, as `sci_stream.ports.MaskModulator`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from sci_stream.errors import ConfigError
from sci_stream.model import Array
from sci_stream.modulation.timing import (
    MaskTiming,
    Master,
    ModulatorCapabilities,
    Pulse,
    checked_patterns,
    pattern_hash,
)
from sci_stream.ports import Pattern
from sci_stream_drivers.fields import DriverOptions, Rare
from sci_stream_drivers.simulated.bench import Bench, bench_of


class ModulatorFaultOptions(DriverOptions):
    """Faults of the modulator, by the number of the exposure at which they happen."""

    first_pattern: int = Field(default=0, ge=0, le=255, description="Pattern with which the first cycle begins.")
    lost_pulses: list[int] = Field(default_factory=list, description="Exposures before which a pulse gets lost.")
    underruns: list[int] = Field(default_factory=list, description="Exposures in which a pattern comes late.")
    restarts: list[int] = Field(default_factory=list, description="Exposures in which the modulator loses power.")


class SimulatedModulatorOptions(DriverOptions):
    """Options of the simulated modulator."""

    width_px: int = Field(default=256, ge=1, le=8192, description="Width of a pattern, mirrors.")
    height_px: int = Field(default=256, ge=1, le=8192, description="Height of a pattern, mirrors.")
    motion: Literal["none", "sine", "sawtooth"] = Field(
        default="none", description="none: patterns; sine, sawtooth: the camera's shifting mask, moved by a waveform."
    )
    n_frames: int = Field(default=8, ge=1, le=256, description="B of a mask that is moved by a waveform.")
    min_pattern_us: float = Field(default=50.0, gt=0, description="Shortest time of a pattern, µs.")
    pulse: Literal["per_cycle", "per_pattern"] = Field(default="per_cycle", description="Pulses that it gives.")
    latency_us: Rare[float] = Field(
        default=0.0, ge=0, le=1e5, description="From the pulse to the light of the first pattern, µs."
    )
    calibration_light: Rare[float] = Field(
        default=0.4, gt=0, le=10, description="Brightness of the white field while a pattern is held, 1 = white."
    )
    bench: Rare[str] = Field(default="bench", description="Optical bench that it shares with the camera.")
    faults: Rare[ModulatorFaultOptions] = Field(default_factory=ModulatorFaultOptions, description="Faults on request.")


class SimulatedModulator:
    """A modulator that shows its patterns to the simulated camera of the same ``bench``."""

    Options: ClassVar[type[SimulatedModulatorOptions]] = SimulatedModulatorOptions

    def __init__(self, options: SimulatedModulatorOptions | None = None) -> None:
        self._options = options or SimulatedModulatorOptions()
        self._bench = bench_of(self._options.bench)
        self._began = False

    def open(self) -> ModulatorCapabilities:
        """Put the modulator on the bench."""
        o, bench = self._options, self._bench
        if not bench.attached:
            bench.attached, bench.latency_us, bench.motion = True, o.latency_us, "" if o.motion == "none" else o.motion
            bench.lost_pulses = set(o.faults.lost_pulses)
            bench.underruns, bench.restarts = set(o.faults.underruns), set(o.faults.restarts)
            bench.n_patterns = o.n_frames if bench.motion else 0
            self._began = False
        pulses: tuple[Pulse, ...] = (o.pulse,)
        masters: tuple[Master, ...] = ("modulator",) if bench.motion else ("modulator", "camera", "external")
        return ModulatorCapabilities(
            model="sci_stream simulated modulator",
            serial="SIM-MOD",
            height_px=o.height_px,
            width_px=o.width_px,
            bits=8,
            max_patterns=256,
            min_pattern_us=o.min_pattern_us,
            step_us=0.1,
            pulses=pulses,
            masters=masters,
            gap=True,
            max_delay_us=1e6,
            holds=not bench.motion,
            field_brightness=o.calibration_light,
        )

    def load(self, patterns: Array) -> str:
        """Store patterns."""
        bench, capabilities = self._opened(), self.open()
        if not bench.motion:
            patterns = checked_patterns(patterns, capabilities)
            with bench.lock:
                bench.patterns, bench.n_patterns = patterns.copy(), len(patterns)
                bench.version += 1
        bench.playing, bench.shown = False, None
        return pattern_hash(patterns)

    def arm(self, timing: MaskTiming) -> MaskTiming:
        """Set the timing, rounded to 0.1 µs."""
        bench = self._loaded()
        if bench.playing:
            raise RuntimeError("arm() while it is started: call stop() first")
        rounded = ("pattern_us", "dark_us", "gap_us", "pulse_delay_us")
        times = {name: round(getattr(timing, name), 1) for name in rounded}
        if times["pattern_us"] < self._options.min_pattern_us:
            raise ConfigError(
                "The simulated modulator is slower",
                expected=f"a pattern of at least {self._options.min_pattern_us:g} µs",
                got=f"{timing.pattern_us:g} µs",
            )
        bench.timing = replace(timing, **times)
        return bench.timing

    def start(self) -> None:
        """Show the cycle from its first pattern on."""
        bench = self._loaded()
        if not bench.timing.pattern_us:
            raise RuntimeError("start() needs a timing: call arm() first")
        if not bench.playing:
            with bench.lock:
                bench.playing, bench.shown = True, None
                bench.phase = 0.0 if self._began else float(self._options.faults.first_pattern)
            self._began = True

    def stop(self) -> None:
        """Stop the cycle; its phase is lost."""
        self._bench.playing = False

    def hold(self, pattern: Pattern | None) -> None:
        """Show one pattern, or no longer."""
        bench = self._opened()
        if bench.motion and pattern is not None:
            raise ConfigError("A mask that is moved by a waveform cannot be held", hint="Calibrate it by phase.")
        if isinstance(pattern, int) and not 0 <= pattern < self._loaded().n_patterns:
            raise ValueError(f"patterns are numbered from 0 to {bench.n_patterns - 1}, got {pattern}")
        bench.playing, bench.shown = False, pattern

    def advance(self, patterns: int) -> None:
        """Shift the phase of the cycle."""
        bench = self._loaded()
        with bench.lock:
            bench.phase += patterns

    def counters(self) -> Mapping[str, int]:
        """Return cycles, underruns and restarts."""
        return dict(self._opened().counts)

    def close(self) -> None:
        """Take it off the bench."""
        self._bench.close()

    def _opened(self) -> Bench:
        if not self._bench.attached:
            raise RuntimeError("the modulator is not open: call open() first")
        return self._bench

    def _loaded(self) -> Bench:
        bench = self._opened()
        if not bench.n_patterns:
            raise RuntimeError("the modulator has no patterns: call load() first")
        return bench
