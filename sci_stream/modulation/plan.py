"""The timing plan: trigger, exposure, delay, pulse and period of a rig, such that an exposure covers B masks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from sci_stream.errors import ConfigError
from sci_stream.modulation.timing import CameraTiming, CameraTrigger, MaskTiming, Master, ModulatorCapabilities, Pulse

# Light of the last mask that may be lost to a step of the exposure time; reconstruction learns the gain of each mask.
_MAX_LOSS = 0.01
# Cameras take pulses of a few µs; long ones reach into the next pattern.
_PULSE_US = 50.0


@dataclass(frozen=True, slots=True)
class TimingRequest:
    """Wishes of a rig, from ``[modulator]``; 0 and ``auto`` leave the choice to the plan.

    ``delay_us`` is the time from the pulse, or from the camera's start, to the light of the first mask: `check`
    measures it.
    """

    pattern_us: float = 0.0
    dark_us: float = 0.0
    master: Master = "modulator"
    pulse: Literal["auto", "per_pattern", "per_cycle"] = "auto"
    delay_us: float = 0.0
    pulse_width_us: float = 0.0


@dataclass(frozen=True, slots=True)
class TimingPlan:
    """Timing of both devices; ``period_us`` from one exposure to the next, ``notes`` in sentences."""

    mask: MaskTiming
    camera: CameraTrigger
    period_us: float
    notes: tuple[str, ...] = ()

    @property
    def n_patterns(self) -> int:
        """B."""
        return self.mask.n_patterns


def plan_timing(
    request: TimingRequest, modulator: ModulatorCapabilities, camera: CameraTiming, n_patterns: int
) -> TimingPlan:
    """Return the timing of a rig.

    Raises
    ------
    ConfigError
        If the devices cannot do it, with the reason and the nearest timing that fits.
    """
    pattern_us, dark_us = _slot(request, modulator, camera, n_patterns)
    slot_us = pattern_us + dark_us
    delay_us = request.delay_us
    exposure_us = _exposure(n_patterns * slot_us - dark_us, pattern_us, camera, n_patterns)
    pulse, every, master = _trigger(request, modulator, camera, n_patterns)
    notes = []
    gap_us = 0.0
    if modulator.gap:
        gap_us = _up(max(modulator.min_gap_us, camera.readout_us - dark_us, 0.0), modulator.step_us)
    mask = MaskTiming(
        master=master,
        pattern_us=pattern_us,
        dark_us=dark_us,
        gap_us=gap_us,
        pulse="none" if master == "camera" else pulse,
        pulse_width_us=request.pulse_width_us or min(_PULSE_US, pattern_us / 2),
        trigger="rising" if master != "modulator" else "none",
        n_patterns=n_patterns,
    )
    cycle_us = mask.cycle_us
    cycles = max(1, math.ceil((exposure_us + camera.readout_us) / cycle_us - 1e-9))
    if master == "camera":
        # The exposure begins before the first mask, by the delay of the modulator.
        exposure_us += max(0.0, delay_us)
        period_us = max(cycle_us + delay_us, exposure_us + camera.readout_us)
        trigger = CameraTrigger("free", exposure_us, period_us=period_us)
        return TimingPlan(mask, trigger, period_us)
    if pulse == "none" and master == "modulator":
        notes.append("the modulator gives no pulse: exposures are not in step with it, unless the picture corrects it")
        trigger = CameraTrigger("free", exposure_us, period_us=cycles * cycle_us)
        return TimingPlan(mask, trigger, trigger.period_us, tuple(notes))
    if cycles > 1 and pulse == "per_cycle" and master == "modulator":
        notes.append(
            f"the camera needs {camera.readout_us:g} µs between exposures: it takes one cycle in {cycles}; "
            f"dark_us = {math.ceil(camera.readout_us):g} would let it take each"
        )
    every = every * cycles if pulse == "per_pattern" and every * cycles <= camera.max_every else every
    if delay_us < 0:
        delay_us += cycle_us  # the light comes before the pulse: use the next cycle
    if delay_us > camera.max_delay_us:
        if delay_us > modulator.max_delay_us:
            raise _refused(
                "Neither camera nor modulator can delay so long",
                f"a delay of at most {max(camera.max_delay_us, modulator.max_delay_us):g} µs",
                f"{delay_us:g} µs",
                "Set [modulator] delay_us = 0 if the camera's input is fast, or use a delay generator.",
            )
        mask, delay_us = replace(mask, pulse_delay_us=delay_us), 0.0
    trigger = CameraTrigger("line", exposure_us, delay_us, every)
    return TimingPlan(mask, trigger, cycles * cycle_us, tuple(notes))


def _slot(
    request: TimingRequest, modulator: ModulatorCapabilities, camera: CameraTiming, n_patterns: int
) -> tuple[float, float]:
    """Return the times of a pattern and of the darkness after it."""
    if n_patterns > modulator.max_patterns:
        raise _refused(
            f"The modulator {modulator.model} cannot hold so many patterns",
            f"at most {modulator.max_patterns}",
            str(n_patterns),
            "Use fewer masks.",
        )
    dark_us = _up(max(request.dark_us, modulator.min_dark_us), modulator.step_us)
    fastest_us = max(
        modulator.min_pattern_us, (camera.min_exposure_us + dark_us) / n_patterns - dark_us, modulator.step_us
    )
    pattern_us = request.pattern_us or _up(fastest_us, modulator.step_us)
    if pattern_us < modulator.min_pattern_us - 1e-9:
        raise _refused(
            f"The modulator {modulator.model} is slower than [modulator] pattern_us",
            f"at least {modulator.min_pattern_us:g} µs for a pattern of {modulator.bits} bits",
            f"{pattern_us:g} µs",
            f"The nearest is pattern_us = {_up(fastest_us, modulator.step_us):g}.",
        )
    return _up(pattern_us, modulator.step_us), dark_us


def _exposure(wanted_us: float, pattern_us: float, camera: CameraTiming, n_patterns: int) -> float:
    """Return the exposure that covers the masks and that the camera can do."""
    if not camera.min_exposure_us - 1e-6 <= wanted_us <= camera.max_exposure_us + 1e-6:
        limit_us = camera.max_exposure_us if wanted_us > camera.max_exposure_us else camera.min_exposure_us
        nearest_us = pattern_us + (limit_us - wanted_us) / n_patterns
        nearest = f"The nearest is pattern_us = {nearest_us:.6g}." if nearest_us > 0 else "Use more masks."
        raise _refused(
            f"The camera cannot expose for {n_patterns} masks",
            f"{camera.min_exposure_us:g} to {camera.max_exposure_us:g} µs",
            f"{wanted_us:g} µs",
            nearest,
        )
    if not camera.step_us:
        return wanted_us
    exposure_us = math.floor(wanted_us / camera.step_us + 1e-6) * camera.step_us
    if wanted_us - exposure_us > _MAX_LOSS * pattern_us:
        nearest_us = pattern_us + (exposure_us + camera.step_us - wanted_us) / n_patterns
        raise _refused(
            f"The camera cannot expose for exactly {n_patterns} masks",
            f"{wanted_us:g} µs, to {_MAX_LOSS:.0%} of a mask",
            f"steps of {camera.step_us:g} µs",
            f"The nearest is pattern_us = {nearest_us:.6g}.",
        )
    return exposure_us


def _trigger(
    request: TimingRequest, modulator: ModulatorCapabilities, camera: CameraTiming, n_patterns: int
) -> tuple[Pulse, int, Master]:
    """Return the pulse, how many the camera counts for one exposure, and the master."""
    if request.master not in modulator.masters:
        raise _refused(
            f"The modulator {modulator.model} cannot be started that way",
            "[modulator] master = " + " or ".join(modulator.masters),
            request.master,
            f"The nearest is master = {modulator.masters[0]!r}.",
        )
    if request.master != "modulator" or not modulator.pulses:
        return "none", 1, request.master  # an external generator gives one pulse per cycle to both
    wanted: tuple[Pulse, ...] = ("per_cycle", "per_pattern") if request.pulse == "auto" else (request.pulse,)
    for pulse in wanted:
        if pulse not in modulator.pulses:
            continue
        if pulse == "per_cycle" or camera.max_every >= n_patterns:
            return pulse, 1 if pulse == "per_cycle" else n_patterns, request.master
    ways = [
        "a camera with a counter (CounterDuration)" if "per_pattern" in modulator.pulses else "",
        "a modulator whose first pattern alone gives a pulse",
        "master = 'camera'" if "camera" in modulator.masters else "",
        "a pulse divider in between, with master = 'external'" if "external" in modulator.masters else "",
    ]
    raise _refused(
        f"No pulse of the modulator {modulator.model} starts one exposure per cycle",
        f"one pulse in {n_patterns} patterns",
        f"{', '.join(modulator.pulses) or 'none'}, and a camera that counts up to {camera.max_every}",
        f"Use {' or '.join(filter(None, ways))}.",
    )


def _up(value: float, step: float) -> float:
    return math.ceil(value / step - 1e-6) * step if step else value


def _refused(what: str, expected: str, got: str, hint: str) -> ConfigError:
    return ConfigError(what, expected=expected, got=got, hint=hint)
