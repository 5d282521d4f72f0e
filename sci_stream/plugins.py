"""Names for plug-ins: interfaces of cameras, modulators, denoisers, networks and analyses, and
their values.

Errors are in `sci_stream.errors`. Suites that test a plug-in are in `sci_stream_testing`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from sci_stream.clock import unix_ns
from sci_stream.model import (
    F32,
    F64,
    U8,
    Array,
    BayerPhase,
    CameraCapabilities,
    CameraFrame,
    Feature,
    Flags,
    FoundCamera,
    FoundInterface,
    FoundProducer,
    FrameIds,
    Inspection,
)
from sci_stream.modulation.timing import (
    CameraTiming,
    CameraTrigger,
    MaskTiming,
    Master,
    ModulatorCapabilities,
    Pulse,
    checked_patterns,
    checked_timing,
    pattern_hash,
)
from sci_stream.optics.calibration import Calibration
from sci_stream.parameters import Parameter, Value, checked_changes, declare
from sci_stream.ports import (
    Abilities,
    AdjustableCamera,
    Camera,
    CameraFinder,
    Coded,
    Denoiser,
    FeatureLister,
    LocalDenoiser,
    MaskModulator,
    MemoryReducible,
    MosaicDenoiser,
    Pattern,
    Reconstructor,
    Recordable,
    TriggeredCamera,
    VideoDenoiser,
)
from sci_stream.reports import SolveReport

if TYPE_CHECKING:
    from sci_stream.devices.analyses import Analysis
    from sci_stream.recon.denoisers.external import CallableDenoiser, DenoiserDefaults

__all__ = [
    "F32",
    "F64",
    "U8",
    "Abilities",
    "AdjustableCamera",
    "Analysis",
    "Array",
    "BayerPhase",
    "Calibration",
    "CallableDenoiser",
    "Camera",
    "CameraCapabilities",
    "CameraFinder",
    "CameraFrame",
    "CameraTiming",
    "CameraTrigger",
    "Coded",
    "Denoiser",
    "DenoiserDefaults",
    "Feature",
    "FeatureLister",
    "Flags",
    "FoundCamera",
    "FoundInterface",
    "FoundProducer",
    "FrameIds",
    "Inspection",
    "LocalDenoiser",
    "MaskModulator",
    "MaskTiming",
    "Master",
    "MemoryReducible",
    "ModulatorCapabilities",
    "MosaicDenoiser",
    "Parameter",
    "Pattern",
    "Pulse",
    "Reconstructor",
    "Recordable",
    "SolveReport",
    "TriggeredCamera",
    "Value",
    "VideoDenoiser",
    "checked_changes",
    "checked_patterns",
    "checked_timing",
    "declare",
    "pattern_hash",
    "unix_ns",
]

# Imported on demand: a camera's host has no torch.
_ON_DEMAND = {
    "Analysis": "sci_stream.devices.analyses",
    "CallableDenoiser": "sci_stream.recon.denoisers.external",
    "DenoiserDefaults": "sci_stream.recon.denoisers.external",
}


def __getattr__(name: str) -> object:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ON_DEMAND[name]), name)


def __dir__() -> list[str]:
    return __all__
