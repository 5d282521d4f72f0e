"""A timing plan as a diagram: text for a terminal, SVG for a page."""

from __future__ import annotations

from typing import NamedTuple
from xml.sax.saxutils import escape

from sci_stream.modulation.plan import TimingPlan

_COLUMNS = 72
_WIDTH_PX, _ROW_PX, _LEFT_PX = 720, 34, 96


class _Track(NamedTuple):
    """One signal: when it is high, with a label of each part."""

    name: str
    parts: list[tuple[float, float, str]]


def describe(plan: TimingPlan) -> str:
    """Return the figures of a plan in a line."""
    mask, camera = plan.mask, plan.camera
    every = f", one in {camera.every} pulses" if camera.every > 1 else ""
    dark = f" + {mask.dark_us:g} µs dark" if mask.dark_us else ""
    gap = f" and {mask.gap_us:g} µs of darkness" if mask.gap_us else ""
    return (
        f"{mask.n_patterns} masks of {mask.pattern_us:g} µs{dark}"
        f"{gap}; {mask.master} is master; exposure {camera.exposure_us:g} µs, {camera.delay_us:g} µs after the "
        f"{'pulse' if camera.source == 'line' else 'start'}{every}; {1e6 / plan.period_us:.4g} snapshots per second"
    )


def text_diagram(plan: TimingPlan) -> str:
    """Return the diagram as text, one line per signal."""
    tracks, end_us = _tracks(plan)
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


def svg_diagram(plan: TimingPlan) -> str:
    """Return the diagram as an SVG document."""
    tracks, end_us = _tracks(plan)
    scale = (_WIDTH_PX - _LEFT_PX - 8) / end_us
    height_px = _ROW_PX * len(tracks) + 28
    rows = []
    for index, track in enumerate(tracks):
        low_px = _ROW_PX * (index + 1)
        high_px = low_px - 20
        rows.append(f'<text x="4" y="{low_px - 5}">{escape(track.name)}</text>')
        path = f"M{_LEFT_PX} {low_px}"
        for start_us, stop_us, label in track.parts:
            x0, x1 = (_LEFT_PX + scale * time_us for time_us in (start_us, stop_us))
            path += f" H{x0:.1f} V{high_px} H{x1:.1f} V{low_px}"
            if label:
                rows.append(f'<text x="{(x0 + x1) / 2:.1f}" y="{low_px - 5}" text-anchor="middle">{label}</text>')
        rows.append(f'<path d="{path} H{_WIDTH_PX - 8}" fill="none" stroke="currentColor" stroke-width="1.5"/>')
    rows.append(f'<text x="4" y="{height_px - 8}">{escape(describe(plan))}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH_PX} {height_px}" font-family="sans-serif" '
        f'font-size="11" fill="currentColor">{"".join(rows)}</svg>\n'
    )


def _tracks(plan: TimingPlan) -> tuple[list[_Track], float]:
    """Return the signals of one exposure and the begin of the next, and the end of the drawing."""
    mask, camera, n = plan.mask, plan.camera, plan.mask.n_patterns
    # Of a camera that is master, each exposure starts a cycle, some time after its own begin.
    led = mask.master == "camera"
    cycle_us = plan.period_us if led else mask.cycle_us
    end_us = plan.period_us + 2 * mask.slot_us
    cycles = int(end_us // cycle_us) + 1
    starts = [k * cycle_us + b * mask.slot_us for k in range(cycles) for b in range(n)]
    light_us = camera.exposure_us - (n * mask.slot_us - mask.dark_us) if led else camera.delay_us
    shown = [(light_us + start, light_us + start + mask.pattern_us, str(i % n)) for i, start in enumerate(starts)]
    tracks = [_Track("masks", [(a, min(b, end_us), label) for a, b, label in shown if a < end_us])]
    exposures = [(k * plan.period_us, k * plan.period_us + camera.exposure_us) for k in range(2)]
    shift_us = 0.0 if led else light_us
    tracks.append(_Track("exposure", [(a + shift_us, min(b + shift_us, end_us), "") for a, b in exposures]))
    width_us = mask.pulse_width_us or mask.slot_us / 4
    if led:
        pulses = [a for a, _ in exposures]
    else:
        pulses = starts if mask.pulse == "per_pattern" else [k * cycle_us for k in range(cycles)]
    name = "camera" if led else "pulse"
    tracks.insert(0, _Track(name, [(a, min(a + width_us, end_us), "") for a in pulses if a < end_us]))
    return tracks, end_us
