"""The timing diagrams of docs/rig-guide.md: ``python -m tests.modulation.timing_drawings`` writes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sci_stream.modulation.diagram import svg_diagram
from sci_stream.modulation.plan import TimingRequest, plan_timing
from sci_stream.modulation.timing import CameraTiming, ModulatorCapabilities

IMAGES = Path(__file__).parents[2] / "docs" / "images"
_CAMERA = CameraTiming(20.0, 1e6, 0.0, max_delay_us=1000.0, readout_us=400.0, max_every=255)
_DMD = ModulatorCapabilities(
    "DMD", "", 1080, 1920, min_pattern_us=105.0, pulses=("per_cycle", "per_pattern"), masters=("modulator", "camera"),
    gap=True, max_delay_us=20_000.0,
)  # fmt: skip
_REQUEST = TimingRequest(pattern_us=1000.0)
_SIMPLE = replace(_DMD, pulses=("per_pattern",), gap=False)


def drawings() -> dict[str, str]:
    """Return the SVG documents by file name."""
    plans = {
        "timing-dmd": plan_timing(replace(_REQUEST, delay_us=100.0), _DMD, _CAMERA, 8),
        "timing-counter": plan_timing(_REQUEST, _SIMPLE, replace(_CAMERA, readout_us=0.0), 8),
        "timing-camera": plan_timing(replace(_REQUEST, master="camera", delay_us=200.0), _DMD, _CAMERA, 8),
        "timing-moving": plan_timing(_REQUEST, replace(_DMD, holds=False, min_gap_us=2000.0), _CAMERA, 10),
    }
    return {f"{name}.svg": svg_diagram(plan) for name, plan in plans.items()}


if __name__ == "__main__":
    for name, text in drawings().items():
        (IMAGES / name).write_text(text)
