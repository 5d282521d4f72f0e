"""The timing plan: trigger, exposure, delay, pulse and period of a rig, such that an exposure
covers B masks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from sci_stream.errors import ConfigError
from sci_stream.modulation.timing import (
    CameraTiming,
    CameraTrigger,
    MaskTiming,
    Master,
    ModulatorCapabilities,
    Pulse,
)

# Light of the last mask that may be lost to a step of the exposure time; reconstruction learns the
# gain of each mask.
_MAX_LOSS = 0.01
# Cameras take pulses of a few µs; long ones reach into the next pattern.
_PULSE_US = 50.0


@dataclass(frozen=True)
class TimingRequest:
    """Wishes of a rig, from ``[modulator]``; 0 and ``auto`` leave the choice to the plan.

    ``delay_us`` is the time from the pulse, or from the camera's start, to the light of the first
    mask: `check` measures it.
    """

    pattern_us: float = 0.0
    dark_us: float = 0.0
    master: Master = "modulator"
    pulse: Literal["auto", "per_pattern", "per_cycle"] = "auto"
    delay_us: float = 0.0
    pulse_width_us: float = 0.0


@dataclass(frozen=True)
class TimingPlan:
    """Timing of both devices; ``period_us`` from one exposure to the next,
    ``notes`` in sentences.
    """

    mask: MaskTiming
    camera: CameraTrigger
    period_us: float
    notes: tuple[str, ...] = ()


def plan_timing(
    request: TimingRequest, modulator: ModulatorCapabilities, camera: CameraTiming, n_patterns: int
) -> TimingPlan:
    """Return the timing of a rig.

    Raises `ConfigError` if the devices cannot do it, with the reason and the nearest timing that
    fits.
    """
    pattern_us, dark_us = _slot(request, modulator, camera, n_patterns)
    exposure_us = _exposure(
        n_patterns * (pattern_us + dark_us) - dark_us, pattern_us, camera, n_patterns
    )
    pulse, every = _pulse(request, modulator, camera, n_patterns)
    master = request.master
    delay_us = request.delay_us
    gap_us = (
        _up(max(modulator.min_gap_us, camera.readout_us - dark_us, 0.0), modulator.step_us)
        if modulator.gap
        else 0
    )
    mask = MaskTiming(
        master=master,
        pattern_us=pattern_us,
        dark_us=dark_us,
        gap_us=gap_us,
        pulse=pulse,
        pulse_width_us=request.pulse_width_us or min(_PULSE_US, pattern_us / 2),
        n_patterns=n_patterns,
    )
    cycles = max(1, math.ceil((exposure_us + camera.readout_us) / mask.cycle_us - 1e-9))
    period_us = cycles * mask.cycle_us
    if master == "camera":
        exposure_us += _up(max(0.0, delay_us), camera.step_us)  # it begins before the first mask
        period_us = max(mask.cycle_us + delay_us, exposure_us + camera.readout_us)
        return TimingPlan(mask, CameraTrigger("free", exposure_us, period_us=period_us), period_us)
    if pulse == "none" and master == "modulator":
        note = (
            "the modulator gives no pulse: exposures are not in step with it, unless the "
            "picture corrects it"
        )
        return TimingPlan(
            mask, CameraTrigger("free", exposure_us, period_us=period_us), period_us, (note,)
        )
    notes: tuple[str, ...] = ()
    if cycles > 1 and pulse == "per_cycle":
        notes = (
            f"the camera needs {camera.readout_us:g} µs between exposures: it takes one cycle in "
            f"{cycles}; "
            f"dark_us = {math.ceil(camera.readout_us):g} would let it take each",
        )
    elif pulse == "per_pattern" and every * cycles <= camera.max_every:
        every *= cycles
    delay_us += (
        mask.cycle_us if delay_us < 0 else 0.0
    )  # the light comes before the pulse: use the next cycle
    if delay_us > camera.max_delay_us:
        if delay_us > modulator.max_delay_us:
            raise ConfigError(
                "Neither camera nor modulator can delay so long",
                expected="a delay of at most "
                f"{max(camera.max_delay_us, modulator.max_delay_us):g} µs",
                got=f"{delay_us:g} µs",
                hint="Set [modulator] delay_us = 0 if the camera's input is fast, or use a delay "
                "generator.",
            )
        mask = replace(mask, pulse_delay_us=delay_us)
        delay_us = 0.0
    return TimingPlan(mask, CameraTrigger("line", exposure_us, delay_us, every), period_us, notes)


def _slot(
    request: TimingRequest, modulator: ModulatorCapabilities, camera: CameraTiming, n_patterns: int
) -> tuple[float, float]:
    """Return the times of a pattern and of the darkness after it."""
    if n_patterns > modulator.max_patterns:
        raise ConfigError(
            f"The modulator {modulator.model} cannot hold so many patterns",
            expected=f"at most {modulator.max_patterns}",
            got=n_patterns,
        )
    step_us = modulator.step_us
    dark_us = _up(max(request.dark_us, modulator.min_dark_us), step_us)
    least_us = (camera.min_exposure_us + dark_us) / n_patterns - dark_us
    fastest_us = _up(max(modulator.min_pattern_us, least_us, step_us), step_us)
    pattern_us = request.pattern_us or fastest_us
    if pattern_us < modulator.min_pattern_us - 1e-9:
        raise ConfigError(
            f"The modulator {modulator.model} is slower than [modulator] pattern_us",
            expected=f"at least {modulator.min_pattern_us:g} µs for a pattern of {modulator.bits} "
            "bits",
            got=f"{pattern_us:g} µs",
            hint=f"The nearest is pattern_us = {fastest_us:g}.",
        )
    return _up(pattern_us, step_us), dark_us


def _exposure(wanted_us: float, pattern_us: float, camera: CameraTiming, n_patterns: int) -> float:
    """Return the exposure that covers the masks and that the camera can do."""
    step_us = camera.step_us
    low_us = camera.min_exposure_us
    high_us = camera.max_exposure_us
    exposure_us = math.floor(wanted_us / step_us + 1e-6) * step_us if step_us else wanted_us
    if not low_us - 1e-6 <= wanted_us <= high_us + 1e-6:
        expected = f"{low_us:g} to {high_us:g} µs"
        near_us = min(max(wanted_us, low_us), high_us)
    elif wanted_us - exposure_us > _MAX_LOSS * pattern_us:
        expected = f"a multiple of {step_us:g} µs, to {_MAX_LOSS:.0%} of a mask"
        near_us = exposure_us + step_us
    else:
        return exposure_us
    nearest_us = pattern_us + (near_us - wanted_us) / n_patterns
    raise ConfigError(
        f"The camera cannot expose for exactly {n_patterns} masks",
        expected=expected,
        got=f"{wanted_us:g} µs",
        hint=f"The nearest is pattern_us = {nearest_us:.6g}."
        if nearest_us > 0
        else "Use more masks.",
    )


def _pulse(
    request: TimingRequest, modulator: ModulatorCapabilities, camera: CameraTiming, n_patterns: int
) -> tuple[Pulse, int]:
    """Return the pulse, and how many the camera counts for one exposure."""
    if request.master not in modulator.masters:
        raise ConfigError(
            f"The modulator {modulator.model} cannot be started that way",
            expected="[modulator] master = " + " or ".join(modulator.masters),
            got=request.master,
        )
    if request.master != "modulator" or not modulator.pulses:
        return "none", 1  # an external generator gives one pulse per cycle to both
    wanted: tuple[Pulse, ...] = (
        ("per_cycle", "per_pattern") if request.pulse == "auto" else (request.pulse,)
    )
    for pulse in wanted:
        every = 1 if pulse == "per_cycle" else n_patterns
        if pulse in modulator.pulses and every <= max(1, camera.max_every):
            return pulse, every
    ways = [
        "a camera with a counter (CounterDuration)" if "per_pattern" in modulator.pulses else "",
        "a modulator whose first pattern alone gives a pulse",
        "master = 'camera'" if "camera" in modulator.masters else "",
        "a pulse divider in between, with master = 'external'"
        if "external" in modulator.masters
        else "",
    ]
    raise ConfigError(
        f"No pulse of the modulator {modulator.model} starts one exposure per cycle",
        expected=f"one pulse in {n_patterns} patterns",
        got=f"{', '.join(modulator.pulses)}, and a camera that counts up to {camera.max_every}",
        hint=f"Use {' or '.join(filter(None, ways))}.",
    )


def _up(value: float, step: float) -> float:
    return math.ceil(value / step - 1e-6) * step if step else value
