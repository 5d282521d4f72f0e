"""A simulated mask modulator on the bench of the simulated camera, as `sci_stream.ports.MaskModulator`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from sci_stream.model import Array
from sci_stream.modulation.timing import MaskTiming, ModulatorCapabilities
from sci_stream.ports import Pattern
from sci_stream_drivers.fields import DriverOptions, Rare
from sci_stream_drivers.modulators.base import BaseModulator
from sci_stream_drivers.simulated.bench import bench_of


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
    bench: Rare[str] = Field(default="bench", description="Optical bench that it shares with the camera.")
    faults: Rare[ModulatorFaultOptions] = Field(default_factory=ModulatorFaultOptions, description="Faults on request.")


class SimulatedModulator(BaseModulator[SimulatedModulatorOptions]):
    """A modulator that shows its patterns to the simulated camera of the same ``bench``."""

    Options: ClassVar[type[SimulatedModulatorOptions]] = SimulatedModulatorOptions

    def __init__(self, options: SimulatedModulatorOptions | None = None) -> None:
        super().__init__(options or SimulatedModulatorOptions())
        self._bench = bench_of(self.options.bench)
        self._bench.plan_faults(self.options.faults)

    def _connect(self) -> ModulatorCapabilities:
        o = self.options
        moves = o.motion != "none"
        self._bench.attach(o.motion if moves else "", o.n_frames if moves else 0, o.latency_us)
        return ModulatorCapabilities(
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

    def _upload(self, patterns: Array) -> None:
        if not self._bench.motion:
            self._bench.load(patterns)

    def _apply(self, timing: MaskTiming) -> MaskTiming:
        self._bench.timing = timing
        return timing

    def _run(self) -> None:
        self._bench.run()

    def _halt(self) -> None:
        self._bench.playing = False

    def hold(self, pattern: Pattern | None) -> None:
        """Show one pattern to the camera, which then films a white field."""
        super().hold(pattern)
        self._bench.shown = pattern

    def _show(self, _image: Array) -> None:
        """Do nothing: the bench shows patterns by number."""

    def advance(self, patterns: int) -> None:
        """Shift the phase of the cycle."""
        self._opened()
        self._bench.phase += patterns

    def counters(self) -> Mapping[str, int]:
        """Return cycles, underruns and restarts."""
        self._opened()
        return dict(self._bench.counts)

    def _disconnect(self) -> None:
        self._bench.close()
