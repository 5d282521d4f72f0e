"""Simulated camera and simulated modulator of a test, on a bench of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from sci_stream.config.sections import ModulatorSection
from sci_stream.devices.modulated_camera import ModulatedCamera
from sci_stream.model import Array
from sci_stream.ports import MaskModulator
from sci_stream_drivers.simulated import (
    SimulatedCamera,
    SimulatedModulator,
    SimulatedModulatorOptions,
    SimulatedOptions,
)

SIZE = 64
_NUMBERS = itertools.count()


def masks(n: int = 8, size: int = SIZE, seed: int = 0) -> Array:
    """Return random binary patterns."""
    return ((np.random.default_rng(seed).random((n, size, size)) < 0.5) * 255).astype(np.uint8)


def modulated(
    patterns: Array | None = None,
    camera: dict[str, object] | None = None,
    modulator: dict[str, object] | None = None,
    driver: Callable[[SimulatedModulatorOptions], MaskModulator] = SimulatedModulator,
    **section: object,
) -> ModulatedCamera:
    """Return a simulated camera behind a simulated modulator;
    by default with eight random masks.
    """
    bench = f"test-{next(_NUMBERS)}"
    moves = (modulator or {}).get("motion", "none") != "none"
    shown = None if moves else masks() if patterns is None else patterns
    size = SIZE if shown is None else shown.shape[1]
    sizes = {"width_px": size, "height_px": size}
    of_camera = {
        "snapshot_rate_hz": 0.0,
        "truth": True,
        "bayer": "none",
        "bench": bench,
        **sizes,
        **(camera or {}),
    }
    of_modulator = {"bench": bench, **sizes, **(modulator or {})}
    wishes = {"driver": "simulated", "pattern_us": 1000.0, "n_frames": 8 if moves else 0, **section}
    return ModulatedCamera(
        SimulatedCamera(SimulatedOptions.model_validate(of_camera)),
        driver(SimulatedModulatorOptions.model_validate(of_modulator)),
        ModulatorSection.model_validate(wishes),
        shown,
    )
