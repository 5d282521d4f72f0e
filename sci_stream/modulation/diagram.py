"""A timing plan in words and as a diagram of text."""

from __future__ import annotations

from typing import NamedTuple

from sci_stream.modulation.plan import TimingPlan

_COLUMNS = 72


class Track(NamedTuple):
    """One signal: when it is high, with a label of each part."""

    name: str
    parts: list[tuple[float, float, str]]


def describe(plan: TimingPlan) -> str:
    """Return the figures of a plan in a line."""
    mask = plan.mask
    camera = plan.camera
    every = f", one in {camera.every} pulses" if camera.every > 1 else ""
    dark = f" + {mask.dark_us:g} µs dark" if mask.dark_us else ""
    gap = f" and {mask.gap_us:g} µs of darkness" if mask.gap_us else ""
    return (
        f"{mask.n_patterns} masks of {mask.pattern_us:g} µs{dark}"
        f"{gap}; {mask.master} is master; exposure {camera.exposure_us:g} µs, {camera.delay_us:g} "
        "µs after the "
        f"{'pulse' if camera.source == 'line' else 'start'}{every}; {1e6 / plan.period_us:.4g} "
        "snapshots per second"
    )


def text_diagram(plan: TimingPlan) -> str:
    """Return the diagram as text, one line per signal."""
    tracks, end_us = tracks_of(plan)
    lines = []
    for track in tracks:
        row = [" "] * _COLUMNS if track.name == "masks" else ["_"] * _COLUMNS
        for start_us, stop_us, label in track.parts:
            first = min(_COLUMNS - 1, round(start_us / end_us * _COLUMNS))
            last = min(_COLUMNS, max(first + 1, round(stop_us / end_us * _COLUMNS)))
            row[first:last] = list("▔" * (last - first))
            if track.name == "masks":
                row[first:last] = list(f"│{label}".ljust(last - first)[: last - first])
        lines.append(f"{track.name:<9}{''.join(row)}")
    lines.append(f"{'':<9}0{f'{end_us:g} µs':>{_COLUMNS - 1}}")
    return "\n".join(lines)


def tracks_of(plan: TimingPlan) -> tuple[list[Track], float]:
    """Return the signals of one exposure and the begin of the next, and the end of the drawing."""
    mask = plan.mask
    camera = plan.camera
    n = plan.mask.n_patterns
    # Of a camera that is master, each exposure starts a cycle, some time after its own begin.
    led = mask.master == "camera"
    cycle_us = plan.period_us if led else mask.cycle_us
    end_us = plan.period_us + 2 * mask.slot_us
    cycles = int(end_us // cycle_us) + 1
    starts = [k * cycle_us + b * mask.slot_us for k in range(cycles) for b in range(n)]
    light_us = camera.exposure_us - (n * mask.slot_us - mask.dark_us) if led else camera.delay_us
    shown = [
        (light_us + start, light_us + start + mask.pattern_us, str(i % n))
        for i, start in enumerate(starts)
    ]
    tracks = [Track("masks", [(a, min(b, end_us), label) for a, b, label in shown if a < end_us])]
    exposures = [(k * plan.period_us, k * plan.period_us + camera.exposure_us) for k in range(2)]
    shift_us = 0.0 if led else light_us
    tracks.append(
        Track("exposure", [(a + shift_us, min(b + shift_us, end_us), "") for a, b in exposures])
    )
    width_us = mask.pulse_width_us or mask.slot_us / 4
    if led:
        pulses = [a for a, _ in exposures]
    else:
        pulses = starts if mask.pulse == "per_pattern" else [k * cycle_us for k in range(cycles)]
    name = "camera" if led else "pulse"
    tracks.insert(
        0, Track(name, [(a, min(a + width_us, end_us), "") for a in pulses if a < end_us])
    )
    return tracks, end_us
