"""The suite for modulators catches errors that are planted in one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sci_stream.model import Array
from sci_stream.modulation.timing import MaskTiming, pattern_hash
from sci_stream.ports import Pattern
from sci_stream_drivers.simulated import SimulatedModulator, SimulatedModulatorOptions
from sci_stream_drivers.simulated.bench import Bench
from sci_stream_testing.modulators import ModulatorContract

_BENCHES = itertools.count()


class Box(SimulatedModulator):
    """The simulated modulator; its bench is the device."""

    def __init__(self) -> None:
        name = f"planted-{next(_BENCHES)}"
        super().__init__(SimulatedModulatorOptions(width_px=20, height_px=12, bench=name))

    @property
    def bench(self) -> Bench:
        return self._bench


class BoxContract(ModulatorContract):
    """The contract with every hook."""

    def __init__(self, kind: type[Box] = Box) -> None:
        self.kind = kind

    def make(self) -> Box:
        return self.kind()

    def shown(self, modulator: Box) -> Array | None:
        bench = modulator.bench
        assert bench.patterns is not None
        if bench.playing or bench.shown is None:
            return bench.patterns
        if isinstance(bench.shown, int):
            return bench.patterns[bench.shown : bench.shown + 1]
        return np.full_like(bench.patterns[:1], 255 if bench.shown == "white" else 0)

    def timed(self, modulator: Box) -> MaskTiming:
        return modulator.bench.timing

    def disturb(self, modulator: Box) -> None:
        modulator.bench.counts["restarts"] += 1


class InvertsPatterns(Box):
    def load(self, patterns: Array) -> str:
        super().load(255 - patterns)
        return pattern_hash(patterns)


class SwapsBits(Box):
    def load(self, patterns: Array) -> str:
        bits = np.packbits(patterns[..., :16] > 0, axis=-1, bitorder="little")
        swapped = patterns.copy()
        swapped[..., :16] = 255 * np.unpackbits(bits, axis=-1)
        super().load(swapped)
        return pattern_hash(patterns)


class LoadsTheFirstPattern(Box):
    def load(self, patterns: Array) -> str:
        super().load(np.repeat(patterns[:1], len(patterns), 0))
        return pattern_hash(patterns)


class KeepsAReference(Box):
    def load(self, patterns: Array) -> str:
        super().load(patterns)
        self._patterns = patterns
        return pattern_hash(patterns)

    def start(self) -> None:
        self.bench.patterns = self._patterns
        super().start()


class HoldsInTheCycle(Box):
    def hold(self, pattern: Pattern | None) -> None:
        playing = self.bench.playing
        super().hold(pattern)
        self.bench.playing = playing


class StartsAfterHold(Box):
    def hold(self, pattern: Pattern | None) -> None:
        super().hold(pattern)
        self._armed = True


class CountsNothing(Box):
    def counters(self) -> Mapping[str, int]:
        super().counters()
        return {}


class LoadsWhileItRuns(Box):
    def stop(self) -> None:
        if not self.loading:
            super().stop()

    def load(self, patterns: Array) -> str:
        self.loading = True
        loaded = super().load(patterns)
        self.loading = False
        return loaded

    loading = False


class IgnoresTheGap(Box):
    def arm(self, timing: MaskTiming) -> MaskTiming:
        armed = super().arm(timing)
        self.bench.timing = replace(armed, gap_us=0.0)
        return armed


class ReturnsWhatWasAsked(Box):
    def arm(self, timing: MaskTiming) -> MaskTiming:
        super().arm(replace(timing, pattern_us=10 * round(timing.pattern_us / 10) + 10))
        return timing


class HashesOtherBytes(Box):
    def load(self, patterns: Array) -> str:
        return super().load(patterns)[::-1]


PLANTED: list[tuple[str, type[Box], Any]] = [
    ("patterns_are_shown_as_they_were_loaded", InvertsPatterns, AssertionError),
    ("patterns_are_shown_as_they_were_loaded", SwapsBits, AssertionError),
    ("patterns_are_shown_as_they_were_loaded", LoadsTheFirstPattern, AssertionError),
    ("patterns_are_shown_as_they_were_loaded", KeepsAReference, AssertionError),
    ("held_pattern_is_shown_alone", HoldsInTheCycle, (AssertionError, RuntimeError)),
    ("held_pattern_is_shown_alone", StartsAfterHold, pytest.fail.Exception),
    ("disturbance_is_counted", CountsNothing, AssertionError),
    ("load_stops_the_cycle", LoadsWhileItRuns, RuntimeError),
    ("device_has_the_armed_times", IgnoresTheGap, AssertionError),
    ("device_has_the_armed_times", ReturnsWhatWasAsked, AssertionError),
    ("load_returns_the_hash_and_refuses_another_shape", HashesOtherBytes, AssertionError),
]


@pytest.mark.parametrize(("test", "kind", "error"), PLANTED, ids=lambda value: str(value)[-50:])
def test_suite_catches_a_planted_error(test: str, kind: type[Box], error: Any) -> None:
    with pytest.raises(error):
        getattr(BoxContract(kind), f"test_{test}")()


@pytest.mark.parametrize("test", sorted(name for name in dir(ModulatorContract) if "test_" in name))
def test_right_modulator_passes_with_every_hook(test: str) -> None:
    getattr(BoxContract(), test)()
