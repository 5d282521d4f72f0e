"""The optical bench that a simulated modulator and a simulated camera share: which mask is in front
of the sensor when.

Its time is that of the modulator's pulses, not of the machine, so that runs can be repeated.
"""

from __future__ import annotations

import math
import threading
import weakref
from typing import NamedTuple

import numpy as np

from sci_stream.plugins import U8, CameraTrigger, MaskTiming, Pattern
from sci_stream_drivers.simulated.options import ModulatorFaultOptions

# A camera that is not triggered begins anywhere in a cycle: by this share of it further each time.
_FREE_STEP = 0.381966
# Positions of a moving mask within the time of one pattern, over which its image blurs.
_STEPS = 4


class Slot(NamedTuple):
    """A mask during a part of an exposure: its number, or position, with its share of a pattern's
    light and its time.

    ``time`` counts patterns since the begin of the exposure, and is whole where the two are in
    step.
    """

    mask: float
    weight: float
    time: float


class Bench:
    """State of a bench; the modulator writes it, the camera reads it.

    Each device uses it from its own thread.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.lost_pulses = set[int]()
        self.underruns = set[int]()
        self.restarts = set[int]()
        self._first_phase = 0.0
        self.light = 0.4
        self.close()

    def close(self) -> None:
        """Take the modulator away."""
        with self.lock:
            self.patterns: U8 | None = None
            self.motion = ""
            self.n_patterns = 0
            self.attached = self.playing = False
            self.shown: Pattern | None = None
            self.timing = MaskTiming()
            self.phase = 0.0
            self.latency_us = 0.0
            self.late_us = 0.0
            self.version = 0
            self.counts = {"cycles": 0, "underruns": 0, "restarts": 0}

    def attach(self, motion: str, n_patterns: int, latency_us: float) -> None:
        """Put a modulator on the bench."""
        self.attached = True
        self.motion = motion
        self.n_patterns = n_patterns
        self.latency_us = latency_us

    def plan_faults(self, faults: ModulatorFaultOptions) -> None:
        """Plan faults, each of which happens once."""
        self.lost_pulses = set(faults.lost_pulses)
        self.underruns = set(faults.underruns)
        self.restarts = set(faults.restarts)
        self._first_phase = float(faults.first_pattern)

    def load(self, patterns: U8) -> None:
        """Give the modulator other patterns; nothing is held any more."""
        with self.lock:
            self.patterns = patterns.copy()
            self.n_patterns = len(patterns)
            self.shown = None
            self.version += 1

    def run(self) -> None:
        """Start the cycle with its first pattern, or, for the first time,
        with that of the fault.
        """
        with self.lock:
            self.playing = True
            self.shown = None
            self.phase = self._first_phase
            self._first_phase = 0.0

    def silent(self, trigger: CameraTrigger) -> bool:
        """Return whether the camera waits for pulses that do not come."""
        return self.attached and trigger.source == "line" and not self.playing

    def expose(self, n: int, trigger: CameraTrigger) -> list[Slot]:
        """Return the masks during exposure ``n``, and inject the faults that fall into it."""
        with self.lock:
            if trigger.source == "line" or self.timing.master == "camera":
                # The camera counted a pulse too few, and begins a pattern late from now on.
                lost = n in self.lost_pulses
                self.phase += lost
                self.late_us += lost * self.timing.slot_us
                begin = self.phase
            else:
                begin = (n * _FREE_STEP % 1) * self.n_patterns
            self.counts["cycles"] += 1
            slots = self._slots(begin, trigger)
            if n in self.underruns:
                # The memory was late: a pattern stays for two, and all later ones are delayed by
                # one.
                self.counts["underruns"] += 1
                middle = len(slots) // 2
                slots[middle:] = [
                    Slot(before.mask, slot.weight, slot.time)
                    for before, slot in zip(slots[middle - 1 : -1], slots[middle:], strict=True)
                ]
                self.phase -= 1
            if n in self.restarts:
                # Power was lost: dark, without patterns and pulses, until it is loaded and armed
                # again.
                self.counts["restarts"] += 1
                self.playing = False
                slots = slots[: len(slots) // 2]
            for faults in (self.lost_pulses, self.underruns, self.restarts):
                faults.discard(n)
            return slots

    def _slots(self, begin: float, trigger: CameraTrigger) -> list[Slot]:
        """Return the masks in the window of an exposure that begins ``begin`` patterns into the
        cycle.
        """
        timing = self.timing
        count = self.n_patterns
        slot_us = timing.slot_us
        cycle_us = timing.cycle_us
        ahead_us = trigger.delay_us - timing.pulse_delay_us - self.latency_us
        if timing.master == "camera":
            # The mask begins with the light, after the camera.
            ahead_us = -self.latency_us
        start_us = begin * slot_us + ahead_us
        end_us = start_us + trigger.exposure_us
        slots = []
        for cycle in range(math.floor(start_us / cycle_us) - 1, math.floor(end_us / cycle_us) + 2):
            for b in range(count):
                from_us = cycle * cycle_us + b * slot_us
                overlap_us = min(end_us, from_us + timing.pattern_us) - max(start_us, from_us)
                if overlap_us > 1e-6 * slot_us:
                    slots.append(
                        Slot(
                            b,
                            overlap_us / timing.pattern_us,
                            (from_us - start_us + ahead_us) / slot_us,
                        )
                    )
        return self._moving(slots, start_us, end_us, cycle_us) if self.motion else slots

    def _moving(
        self, slots: list[Slot], start_us: float, end_us: float, cycle_us: float
    ) -> list[Slot]:
        """Return fine positions of a mask that a waveform moves from end to end in each cycle."""
        steps = max(1, round(_STEPS * (end_us - start_us) / self.timing.slot_us))
        times_us = start_us + (np.arange(steps) + 0.5) * (end_us - start_us) / steps
        turn = (times_us % cycle_us) / cycle_us
        last = self.n_patterns - 1
        where = last * turn if self.motion == "sawtooth" else last * (1 - np.cos(np.pi * turn)) / 2
        weight = (end_us - start_us) / self.timing.slot_us / steps
        per_slot = max(1, len(where) // max(1, len(slots)))
        return [Slot(float(at), weight, float(i // per_slot)) for i, at in enumerate(where)]


_BENCHES = weakref.WeakValueDictionary[str, Bench]()
_LOCK = threading.Lock()


def bench_of(name: str) -> Bench:
    """Return the bench of this name in this process; a new one if no device has it."""
    with _LOCK:
        bench = _BENCHES.get(name)
        if bench is None:
            bench = _BENCHES[name] = Bench()
        return bench
