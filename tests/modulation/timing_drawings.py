"""The timing diagrams of docs/rig-guide.md: ``python -m tests.modulation.timing_drawings`` writes
them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.sax.saxutils import escape

from sci_stream.modulation.diagram import describe, tracks_of
from sci_stream.modulation.plan import TimingPlan, TimingRequest, plan_timing
from sci_stream.modulation.timing import CameraTiming, ModulatorCapabilities

IMAGES = Path(__file__).parents[2] / "docs" / "images"
_WIDTH_PX, _ROW_PX, _LEFT_PX = 720, 34, 96
_CAMERA = CameraTiming(20.0, 1e6, 0.0, max_delay_us=1000.0, readout_us=400.0, max_every=255)
_DMD = ModulatorCapabilities(
    "DMD", "", 1080, 1920, min_pattern_us=105.0, pulses=("per_cycle", "per_pattern"),
    masters=("modulator", "camera"),
    gap=True, max_delay_us=20_000.0,
)  # fmt: skip
_REQUEST = TimingRequest(pattern_us=1000.0)
_SIMPLE = replace(_DMD, pulses=("per_pattern",), gap=False)


def drawings() -> dict[str, str]:
    """Return the SVG documents by file name."""
    plans = {
        "timing-dmd": plan_timing(replace(_REQUEST, delay_us=100.0), _DMD, _CAMERA, 8),
        "timing-counter": plan_timing(_REQUEST, _SIMPLE, replace(_CAMERA, readout_us=0.0), 8),
        "timing-camera": plan_timing(
            replace(_REQUEST, master="camera", delay_us=200.0), _DMD, _CAMERA, 8
        ),
        "timing-moving": plan_timing(
            _REQUEST, replace(_DMD, holds=False, min_gap_us=2000.0), _CAMERA, 10
        ),
    }
    return {f"{name}.svg": svg_diagram(plan) for name, plan in plans.items()}


def svg_diagram(plan: TimingPlan) -> str:
    """Return the diagram as an SVG document."""
    tracks, end_us = tracks_of(plan)
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
                rows.append(
                    f'<text x="{(x0 + x1) / 2:.1f}" y="{low_px - 5}" '
                    f'text-anchor="middle">{label}</text>'
                )
        rows.append(
            f'<path d="{path} H{_WIDTH_PX - 8}" fill="none" stroke="currentColor" '
            'stroke-width="1.5"/>'
        )
    rows.append(f'<text x="4" y="{height_px - 8}">{escape(describe(plan))}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH_PX} {height_px}" '
        'font-family="sans-serif" '
        f'font-size="11" fill="currentColor">{"".join(rows)}</svg>\n'
    )


if __name__ == "__main__":
    for name, text in drawings().items():
        (IMAGES / name).write_text(text)
