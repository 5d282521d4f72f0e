"""A simulated SCI camera: scene, mask, colour filters, exposure, sensor and its faults, as an optical model.

==============  ====================================================================
``options``     everything that can be set, validated
``textures``    procedural images: noise landscapes, lettered wheels, balls
``scenes``      moving worlds composed of them: a linear-light RGB image at any time
``video``       scenes from video files and image sequences
``masks``       the mask stack φ as a calibration would measure it: blurred, uneven, grey
``exposure``    y = Σ_b φ_b ⊙ x_b of one snapshot
``sensor``      y to digital numbers: full well, noise, black level, quantisation
``faults``      faults of real cameras, on request
``bench``       the bench that camera and modulator share
``camera``      the camera as `sci_stream.ports.Camera`
``modulator``   the mask modulator as `sci_stream.ports.MaskModulator`
==============  ====================================================================
"""

from __future__ import annotations

from sci_stream_drivers.simulated.camera import SimulatedCamera
from sci_stream_drivers.simulated.modulator import SimulatedModulator, SimulatedModulatorOptions
from sci_stream_drivers.simulated.options import FaultOptions, SimulatedOptions

__all__ = ["FaultOptions", "SimulatedCamera", "SimulatedModulator", "SimulatedModulatorOptions", "SimulatedOptions"]
