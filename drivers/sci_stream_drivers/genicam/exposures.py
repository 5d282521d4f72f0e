"""Trigger, exposure, delay and counter of a camera behind a mask modulator: limits, setting,
reading back.

A modulator that gives a pulse per pattern needs a camera that counts: ``CounterDuration`` exists in
30 of 119 node maps of real cameras, ``TriggerDivider`` in none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sci_stream.errors import ConfigError
from sci_stream.plugins import CameraTiming, CameraTrigger, Value
from sci_stream_drivers.genicam.features import apply
from sci_stream_drivers.genicam.library import feature
from sci_stream_drivers.genicam.node_map import choices_of, describe
from sci_stream_drivers.genicam.options import FeatureSetting, TriggerOptions
from sci_stream_drivers.genicam.standard_features import (
    EXPOSURE,
    FRAME_RATE,
    RATE_SWITCHES,
    TRIGGER_DELAY,
    choices_of_feature,
    trigger_line,
)

# Names of counters and of their ends as trigger sources, as cameras give them.
_COUNTERS = ("Counter1", "Counter0")
# Where the camera does not give the limit of its counter.
_MAX_COUNT = 255
_ENDS = ("Counter1End", "Counter0End", "Counter1Active", "Counter0Active")


def timing_of(nodes: Any) -> CameraTiming:
    """Return the limits of a camera.

    The readout is its shortest period less its present exposure.
    """
    low_us, high_us, step_us = EXPOSURE.limits(nodes)
    _, delay_us, _ = TRIGGER_DELAY.limits(nodes)
    _, fastest_hz, _ = FRAME_RATE.limits(nodes)
    exposure_us = EXPOSURE.read(nodes)
    readout_us = (
        0.0 if not fastest_hz or exposure_us is None else max(0.0, 1e6 / fastest_hz - exposure_us)
    )
    counts = (
        (describe(nodes.get_node("CounterDuration"), "").maximum or _MAX_COUNT)
        if _counter(nodes)
        else 1
    )
    return CameraTiming(
        min_exposure_us=low_us or 1.0,
        max_exposure_us=high_us or 1e9,
        step_us=step_us,
        max_delay_us=delay_us or 0.0,
        readout_us=readout_us,
        max_every=max(1, int(counts)),
    )


def _counter(nodes: Any) -> tuple[str, str] | None:
    """Return a counter of a camera and the trigger source that it is; None if it cannot count
    pulses.
    """
    if not nodes.has_node("CounterDuration"):
        return None
    # Those that are not available, too: that may depend on the counter itself.
    counters, sources = (
        choices_of(nodes.get_node(name), available=False) if nodes.has_node(name) else ()
        for name in ("CounterSelector", "TriggerSource")
    )
    pairs = (
        (c, end)
        for end in _ENDS
        for c in _COUNTERS
        if end.startswith(c) and c in counters and end in sources
    )
    return next(pairs, None)


def trigger_of(nodes: Any) -> CameraTrigger:
    """Return how exposures are started at present."""
    on = feature(nodes, "TriggerMode") == "On"
    counted = on and str(feature(nodes, "TriggerSource", "")).startswith("Counter")
    return CameraTrigger(
        source="line" if on else "free",
        exposure_us=EXPOSURE.read(nodes) or 0.0,
        delay_us=(TRIGGER_DELAY.read(nodes) or 0.0) if on else 0.0,
        every=int(feature(nodes, "CounterDuration") or 1) if counted else 1,
    )


def arm(
    nodes: Any, trigger: CameraTrigger, options: TriggerOptions | None, camera: str
) -> CameraTrigger:
    """Set trigger, exposure and delay of a stopped camera; return them as read back.

    Raises `ConfigError` if it has no input line, cannot count or refuses a value.
    """
    steps = {
        "TriggerSelector": "FrameStart" if options is None else options.selector,
        "ExposureMode": "Timed",
    }
    before: list[tuple[str, Value]] = [
        (name, value) for name, value in steps.items() if nodes.has_node(name)
    ]
    if trigger.exposure_us and EXPOSURE.find(nodes) in EXPOSURE.names:
        before.append((EXPOSURE.name, trigger.exposure_us))
    started = (
        _free(nodes, trigger)
        if trigger.source == "free"
        else _by_line(nodes, trigger, options, camera)
    )
    for name, value in (*before, *started):
        apply(nodes, FeatureSetting(feature=name, value=value), camera)
    return trigger_of(nodes)


def _free(nodes: Any, trigger: CameraTrigger) -> Iterator[tuple[str, Value]]:
    yield "TriggerMode", "Off"
    rate = FRAME_RATE.find(nodes)
    if trigger.period_us and rate is not None and rate in FRAME_RATE.names:
        yield from ((switch, True) for switch in RATE_SWITCHES if nodes.has_node(switch))
        _, highest_hz, _ = FRAME_RATE.limits(nodes)
        yield rate, min(1e6 / trigger.period_us, highest_hz or 1e9)


def _by_line(
    nodes: Any, trigger: CameraTrigger, options: TriggerOptions | None, camera: str
) -> Iterator[tuple[str, Value]]:
    line = trigger_line(nodes) if options is None else options.source
    if line is None:
        raise ConfigError(
            f"The camera {camera} has no input line", hint="Set [camera.options.trigger] source."
        )
    edge = (None if options is None else options.activation) or "RisingEdge"
    source = line
    if trigger.every > 1:
        counter = _counter(nodes)
        if counter is None:
            raise ConfigError(
                f"The camera {camera} cannot count pulses",
                expected="CounterDuration among its features",
            )
        name, source = counter
        yield "CounterSelector", name
        yield "CounterEventSource", line
        if nodes.has_node("CounterEventActivation"):
            yield "CounterEventActivation", edge
        yield "CounterDuration", trigger.every
        if source in choices_of_feature(nodes, "CounterResetSource"):
            yield "CounterResetSource", source  # it begins again by itself
    yield "TriggerSource", source
    if source == line and edge in choices_of_feature(nodes, "TriggerActivation"):
        yield "TriggerActivation", edge
    yield "TriggerMode", "On"
    if TRIGGER_DELAY.find(nodes) in TRIGGER_DELAY.names:
        yield TRIGGER_DELAY.name, trigger.delay_us
