"""Measure how long after the light of the first mask exposures begin, with patterns that are half
open.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sci_stream.config import Rig
from sci_stream.devices.modulated_camera import ModulatedCamera
from sci_stream.devices.modulators import make_coded_camera
from sci_stream.model import F64
from sci_stream.modulation.diagram import describe, text_diagram
from sci_stream.modulation.timing import CameraTrigger
from sci_stream.ports import TriggeredCamera

_FRAMES = 4
_SETTLE = 1
_WAIT_S = 2.0
# Share of a mask that may be off: a tenth costs about a decibel.
_MAX_LATE = 0.02
# Least share of the light that has to tell the two halves apart.
_LEAST_CONTRAST = 0.02


def check_timing(rig: Rig) -> str:
    """Return the timing plan, its diagram, and the measured delay of a rig with a modulator."""
    camera = make_coded_camera(rig)
    assert isinstance(camera, ModulatedCamera)
    try:
        camera.open()
        words = [describe(camera.plan), *camera.plan.notes, _delay_in_words(camera)]
        return "; ".join(words) + "\n" + text_diagram(camera.plan)
    finally:
        camera.close()


def _delay_in_words(camera: ModulatedCamera) -> str:
    late_us = measure_delay(camera)
    if late_us is None:
        return (
            "delay not measured: it needs pulses, light, four masks or more, and a camera that "
            "can delay exposures"
        )
    pattern_us = camera.plan.mask.pattern_us
    if abs(late_us) <= _MAX_LATE * pattern_us:
        return f"measured: exposures begin within {abs(late_us):.1f} µs of the first mask"
    slots, rest_us = divmod(late_us, camera.plan.mask.slot_us)
    delay_us = camera.plan.camera.delay_us + camera.plan.mask.pulse_delay_us - late_us
    return (
        f"MEASURED: exposures begin {late_us:+.1f} µs after the light of the first mask "
        f"({slots:.0f} masks and "
        f"{rest_us:.1f} µs): set [modulator] delay_us = {delay_us:.1f}"
    )


def measure_delay(camera: ModulatedCamera) -> float | None:
    """Return by how much exposures of an open, stopped camera begin after the light of the first
    mask, µs.

    The first half of the cycle opens one half of the mirrors, the second half the other. Exposures
    of half a cycle, begun at each quarter, see both; their differences do not depend on dark level,
    evenness and orientation.
    """
    plan = camera.plan
    properties = camera.properties
    device = camera.camera
    n = plan.mask.n_patterns
    if (
        not properties.holds
        or n < 4
        or not isinstance(device, TriggeredCamera)
        or plan.camera.source != "line"
    ):
        return None
    half_us = (n // 2) * plan.mask.slot_us
    if plan.camera.delay_us + 1.5 * half_us > device.timing().max_delay_us:
        return None
    patterns = np.zeros((n, properties.height_px, properties.width_px), np.uint8)
    patterns[: n // 2, :, : properties.width_px // 2] = 255
    patterns[n // 2 : 2 * (n // 2), :, properties.width_px // 2 :] = 255
    modulator = camera.modulator
    try:
        modulator.load(patterns)
        device.arm(CameraTrigger("free", half_us, period_us=plan.period_us))
        halves = []
        for pattern in (0, n // 2):
            modulator.hold(pattern)
            halves.append(_mean(camera, modulate=False))
        difference = halves[0] - halves[1]
        light = float(np.abs(halves[0] + halves[1]).sum())
        seen = []
        for quarter in range(4):
            modulator.arm(plan.mask)
            begin_us = plan.camera.delay_us + quarter * half_us / 2
            device.arm(replace(plan.camera, exposure_us=half_us, delay_us=begin_us))
            seen.append(float((_mean(camera, modulate=True) * difference).sum()))
    finally:
        camera.stop()
    in_step = seen[0] - seen[2]
    turned = seen[3] - seen[1]
    whole = abs(in_step) + abs(turned)
    if whole == 0 or float(np.abs(difference).sum()) < _LEAST_CONTRAST * light:
        return None
    late_us = half_us * turned / (2 * whole)
    return late_us if in_step >= 0 else float(np.copysign(half_us, turned)) - late_us


def _mean(camera: ModulatedCamera, *, modulate: bool) -> F64:
    """Return the mean of some frames."""
    device = camera if modulate else camera.camera
    device.start()
    frames = [camera.camera.read(_WAIT_S) for _ in range(_SETTLE + _FRAMES)][_SETTLE:]
    device.stop()
    counts = [frame.counts for frame in frames if frame is not None]
    return np.asarray(np.mean(counts or [np.zeros((1, 1))], axis=0), np.float64)
