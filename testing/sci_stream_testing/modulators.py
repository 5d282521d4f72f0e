"""One suite of tests for every mask modulator, also those of other packages.

Derive a class from `ModulatorContract` in a test module; pytest runs its tests::

    class TestMyModulator(ModulatorContract):
        def make(self):
            return MyModulator(MyModulator.Options())
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from sci_stream.errors import InputError
from sci_stream.plugins import (
    Array,
    MaskModulator,
    MaskTiming,
    ModulatorCapabilities,
    Pattern,
    pattern_hash,
)


class ModulatorContract:
    """Tests of a modulator; see `sci_stream.ports.MaskModulator`."""

    n_patterns = 4
    """Patterns of a cycle."""

    def make(self) -> MaskModulator:
        """Return a modulator, not yet open; each call returns an equal one."""
        raise NotImplementedError

    def shown(self, modulator: Any) -> Array | None:  # noqa: ARG002 - for a suite that knows
        """Return the patterns that the device shows now, in their order, (n, H, W) uint8; one while
        one is held.

        Optional, from a fake of the device or a camera in front of it: the suite then tests its
        pictures.
        """
        return None

    def timed(self, modulator: Any) -> MaskTiming | None:  # noqa: ARG002 - for a suite that knows
        """Return the times that the armed device has; optional, as `shown`."""
        return None

    def disturb(self, modulator: Any) -> None:
        """Let the running device restart, or come late with a pattern.

        Optional: the suite then tests that its counters show it.
        """

    def test_capabilities_and_counters_are_complete(self) -> None:
        """It has all methods; sizes and limits are in range; counts have a name and are integers ≥
        0.
        """
        with self._made() as modulator:
            assert isinstance(modulator, MaskModulator)
            can = modulator.open()
            assert modulator.open() == can, "open() of an open modulator changes nothing"
            self._armed(modulator)
            for name, count in modulator.counters().items():
                assert isinstance(name, str)
                assert type(count) is int
                assert count >= 0
        assert isinstance(can, ModulatorCapabilities)
        assert can.model
        assert min(can.height_px, can.width_px, can.bits, can.max_patterns) >= 1
        assert (
            min(can.min_pattern_us, can.min_dark_us, can.step_us, can.min_gap_us, can.max_delay_us)
            >= 0
        )
        assert set(can.pulses) <= {"per_pattern", "per_cycle"}
        assert set(can.masters) <= {"modulator", "camera", "external"}
        assert can.field_brightness > 0

    def test_load_returns_the_hash_and_refuses_another_shape(self) -> None:
        """Other patterns have another hash; a modulator of a moving mask needs none."""
        with self._made() as modulator:
            can = modulator.open()
            if not can.holds:
                return
            patterns = self.patterns(can)
            assert modulator.load(patterns) == pattern_hash(patterns)
            assert modulator.load(patterns[::-1]) == pattern_hash(patterns[::-1])
            with pytest.raises(InputError):
                modulator.load(np.zeros((2, can.height_px + 1, can.width_px), np.uint8))

    def test_patterns_are_shown_as_they_were_loaded(self) -> None:
        """All of them, in their order, also if the caller uses their memory again; a suite needs
        `shown`.
        """
        with self._made() as modulator:
            can, timing = self._armed(modulator)
            if not can.holds:
                return
            for reverse in (False, True):
                patterns = self.patterns(can)[:: -1 if reverse else 1].copy()
                expected = patterns.copy()
                modulator.load(patterns)
                patterns[:] = 255 - patterns
                modulator.arm(timing)
                modulator.start()
                self._compare(modulator, expected)
                modulator.stop()

    def test_held_pattern_is_shown_alone(self) -> None:
        """A mask by its number, dark and white, also while the cycle runs; a suite needs
        `shown`.
        """
        with self._made() as modulator:
            can, timing = self._armed(modulator)
            if not can.holds:
                return
            closed, patterns = np.zeros((can.height_px, can.width_px), np.uint8), self.patterns(can)
            expected = {"dark": closed, "white": closed + np.uint8(255), 1: patterns[1]}
            for pattern, picture in expected.items():
                modulator.arm(timing)
                modulator.start()
                modulator.hold(cast(Pattern, pattern))
                self._compare(modulator, picture[np.newaxis])
                with pytest.raises(RuntimeError):
                    modulator.start()  # the timing of a cycle has to be armed again

    def test_load_stops_the_cycle(self) -> None:
        """It can be armed and started again at once."""
        with self._made() as modulator:
            can, timing = self._armed(modulator)
            modulator.start()
            modulator.load(self.patterns(can))
            modulator.arm(timing)
            modulator.start()
            modulator.stop()

    def test_device_has_the_armed_times(self) -> None:
        """Those of the pattern and of the darkness after it and after the cycle; a suite needs
        `timed`.
        """
        with self._made() as modulator:
            can, timing = self._armed(modulator)
            gap_us = max(can.min_gap_us, 500.0) if can.gap else 0.0
            armed = modulator.arm(replace(timing, gap_us=gap_us))
            if (has := self.timed(modulator)) is not None:
                for name in ("pattern_us", "dark_us", "gap_us"):
                    kept_us, had_us = getattr(armed, name), getattr(has, name)
                    assert had_us == pytest.approx(kept_us, abs=1e-3), (
                        f"arm() returned {name} = {kept_us}, the device has {had_us}"
                    )

    def test_disturbance_is_counted(self) -> None:
        """``restarts`` or ``underruns`` rises, if a suite has `disturb`."""
        if type(self).disturb is ModulatorContract.disturb:
            return
        with self._made() as modulator:
            self._armed(modulator)
            modulator.start()
            before = modulator.counters()
            self.disturb(modulator)
            after = modulator.counters()
            rises = [after.get(name, 0) - before.get(name, 0) for name in ("restarts", "underruns")]
            assert max(rises) > 0, f"counters() shows no restart and no underrun: {dict(after)}"

    def test_hold_shows_each_pattern_and_refuses_others(self) -> None:
        """Masks by number, dark and white, and None; `arm` ends it;
        a mask that moves is refused.
        """
        with self._made() as modulator:
            can, timing = self._armed(modulator)
            if not can.holds:
                with pytest.raises(InputError):
                    modulator.hold(0)
                return
            shown: tuple[Pattern | None, ...] = ("dark", "white", 0, self.n_patterns - 1, None)
            for pattern in shown:
                modulator.hold(pattern)
                modulator.arm(timing)
            with pytest.raises(ValueError, match=str(self.n_patterns)):
                modulator.hold(self.n_patterns)

    def test_arm_returns_the_times_that_are_kept(self) -> None:
        """Rounded by a step at most; armed again with them, they stay; patterns that are too short
        are refused.
        """
        with self._made() as modulator:
            can, timing = self._armed(modulator)
            delay_us = min(50.0, can.max_delay_us)
            armed = modulator.arm(replace(timing, pulse_delay_us=delay_us))
            assert armed.pulse_delay_us == pytest.approx(delay_us, abs=can.step_us)
            assert abs(armed.pattern_us - timing.pattern_us) <= max(
                can.step_us, 1e-3 * timing.pattern_us
            )
            assert modulator.arm(armed).pattern_us == pytest.approx(armed.pattern_us, rel=1e-6)
            if can.min_pattern_us:
                with pytest.raises(InputError):
                    modulator.arm(replace(timing, pattern_us=can.min_pattern_us / 2))

    def test_calls_out_of_order_raise_runtime_error(self) -> None:
        """Everything needs `open`; `arm` and `start` need `load`, `start` needs `arm`."""
        with self._made() as modulator:
            calls: list[Callable[[], object]] = [
                lambda: modulator.load(np.zeros((1, 1, 1), np.uint8)),
                lambda: modulator.arm(MaskTiming(pattern_us=1e3)),
                modulator.start,
                modulator.counters,
                lambda: modulator.hold("white"),
            ]
            for call in calls:
                with pytest.raises(RuntimeError):
                    call()
            can = modulator.open()
            modulator.load(self.patterns(can))
            with pytest.raises(RuntimeError):
                modulator.start()

    def test_it_starts_stops_and_closes_in_any_state(self) -> None:
        """Stop and close before `open`, twice, and while it runs; a second start changes nothing;
        it opens again.
        """
        with self._made() as modulator:
            for _ in range(2):
                modulator.stop()
                modulator.close()
                self._armed(modulator)
                for steps in (1, -1):
                    modulator.start()
                    modulator.start()
                    modulator.advance(steps)
                    modulator.stop()
                modulator.start()
                modulator.close()

    def _compare(self, modulator: MaskModulator, expected: Array) -> None:
        shown = self.shown(modulator)
        if shown is None:
            return
        assert shown.shape == expected.shape, (
            f"the device shows {len(shown)} patterns of {shown.shape[1:]}, not {expected.shape}"
        )
        np.testing.assert_array_equal(shown, expected, "the device shows other patterns")

    def patterns(self, can: ModulatorCapabilities) -> Array:
        """Return patterns that it can show; none for a mask that is moved."""
        shape = (self.n_patterns if can.holds else 0, can.height_px, can.width_px)
        return ((np.random.default_rng(1).random(shape) < 0.5) * 255).astype(np.uint8)

    def _armed(self, modulator: MaskModulator) -> tuple[ModulatorCapabilities, MaskTiming]:
        can = modulator.open()
        modulator.load(self.patterns(can))
        timing = MaskTiming(
            can.masters[0] if can.masters else "modulator",
            pattern_us=max(1000.0, 2 * can.min_pattern_us),
            dark_us=can.min_dark_us,
            pulse=can.pulses[0] if can.pulses else "none",
            pulse_width_us=50.0,
        )
        return can, modulator.arm(timing)

    @contextmanager
    def _made(self) -> Iterator[MaskModulator]:
        modulator = self.make()
        try:
            yield modulator
        finally:
            modulator.close()
