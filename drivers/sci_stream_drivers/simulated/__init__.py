"""A simulated SCI camera and its mask modulator, as an optical model of scene, masks, exposure and
sensor.
"""

from __future__ import annotations

from sci_stream_drivers.simulated.camera import SimulatedCamera
from sci_stream_drivers.simulated.modulator import SimulatedModulator, SimulatedModulatorOptions
from sci_stream_drivers.simulated.options import FaultOptions, SimulatedOptions

__all__ = [
    "FaultOptions",
    "SimulatedCamera",
    "SimulatedModulator",
    "SimulatedModulatorOptions",
    "SimulatedOptions",
]
