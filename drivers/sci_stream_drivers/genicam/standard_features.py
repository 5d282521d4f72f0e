"""Exposure, gain, rate and their like under the names that cameras give them, and settings that
spoil a measurement.

SFNC 2 names them ``ExposureTime``, ``Gain``, ``AcquisitionFrameRate``; of 119 node maps of real
cameras 51, 79 and 52 do. The others have the names of SFNC 1 (``…Abs``, in the same units, and
``…Raw``, in steps of the camera), their maker's own, or nothing of the kind.

References
----------
EMVA, *GenICam Standard Features Naming Convention* (SFNC) 1.5.1 and 2.7.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sci_stream.parameters import Kind
from sci_stream.plugins import Feature, Parameter, Value
from sci_stream_drivers.genicam.formats import FORMATS, PixelFormat
from sci_stream_drivers.genicam.library import feature
from sci_stream_drivers.genicam.node_map import (
    access_of,
    choices_of,
    describe,
    is_settable,
    kind_of,
    unit_of,
)

_NUMBERS = ("integer", "float")
_MICROSECONDS = {"s": 1e6, "ms": 1e3, "ns": 1e-3}
_KINDS: dict[str, Kind] = {"integer": "integer", "float": "number", "enumeration": "choice"}


@dataclass(frozen=True)
class StandardFeature:
    """A quantity and the features that may hold it, best first.

    ``names`` are features in ``unit``; ``raw`` are features in steps of the camera, whose size it
    does not give, or enumerations of the few values that it has.
    """

    name: str
    unit: str
    names: tuple[str, ...]
    raw: tuple[str, ...] = ()

    def find(self, node_map: Any) -> str | None:
        """Return the feature of a camera that holds the quantity; None if it has none."""
        kinds = {
            **dict.fromkeys(self.raw, (*_NUMBERS, "enumeration")),
            **dict.fromkeys(self.names, _NUMBERS),
        }
        nodes = {
            name: node_map.get_node(name)
            for name in (*self.names, *self.raw)
            if node_map.has_node(name)
        }
        # Not every feature of the name is a number: six cameras have a category Gain.
        present = [name for name, node in nodes.items() if kind_of(node) in kinds[name]]
        writable = [name for name in present if "W" in access_of(nodes[name])]
        return next(iter(writable or present), None)

    def read(self, node_map: Any) -> float | None:
        """Return its value in ``unit``; None if the camera does not give it in that unit."""
        values = (
            self.describe(node_map.get_node(name)).value
            for name in self.names
            if node_map.has_node(name)
        )
        return next(
            (float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)),
            None,
        )

    def limits(self, node_map: Any) -> tuple[float | None, float | None, float]:
        """Return minimum, maximum and step in ``unit``; None where it is unknown."""
        name = self.find(node_map)
        if name not in self.names:
            return None, None, 0.0
        about = self.describe(node_map.get_node(name))
        return about.minimum, about.maximum, about.step or 0.0

    def describe(self, node: Any) -> Feature:
        """Describe a feature that holds it; times are in µs, whatever the unit of the feature."""
        about = describe(node, "")
        scale = microseconds(node)
        if about.name not in self.names or scale == 1:
            return about
        names = ("value", "minimum", "maximum", "step")
        scaled: dict[str, Any] = {
            name: n if (n := getattr(about, name)) is None else scale * n for name in names
        }
        return replace(about, kind="float", unit=self.unit, **scaled)


EXPOSURE = StandardFeature(
    "ExposureTime", "us",
    ("ExposureTime", "ExposureTimeAbs", "AcquisitionExpTime"),
    (
        "ExposureTimeRaw", "Exposure", "MANUALDIRECTSHUTTER",
        "ManualDirectShutter", "ExtendedExposure", "Shutter",
    ),
)  # fmt: skip
GAIN = StandardFeature(
    "Gain",
    "dB",
    ("Gain", "GainAbs"),
    ("GainRaw", "AnalogGain", "DigitalGain", "GainMode", "MaxAGCGain"),
)
FRAME_RATE = StandardFeature(
    "AcquisitionFrameRate", "Hz",
    ("AcquisitionFrameRate", "AcquisitionFrameRateAbs", "FrameRate"),
    ("AcquisitionFrameRateRaw", "SensorFrameRate"),
)  # fmt: skip
# The rate that results from exposure, readout and bandwidth.
_RESULTING = (
    "AcquisitionResultingFrameRate",
    "ResultingFrameRate",
    "ResultingFrameRateAbs",
    "AcquisitionFrameRateLimit",
)
# Without it, a free-running camera takes as many frames as it can, whatever its rate says.
RATE_SWITCHES = ("AcquisitionFrameRateEnable", "AcquisitionFrameRateEnabled")
TRIGGER_DELAY = StandardFeature(
    "TriggerDelay", "us", ("TriggerDelay", "TriggerDelayAbs"), ("TriggerDelayRaw",)
)
TIMES = (EXPOSURE.name, TRIGGER_DELAY.name)

# Features that synchronise the camera's clock with IEEE 1588, with the value that does, and their
# state.
CLOCK_SWITCHES: dict[str, tuple[Value, str]] = {
    "PtpEnable": (True, "PtpStatus"),
    "PtpMode": ("Slave", "PtpStatus"),
    "GevIEEE1588": (True, "GevIEEE1588Status"),
}


def settings(node_map: Any) -> list[Parameter]:
    """Return exposure, gain and frame rate as parameters, as far as they can be set now.

    They have the names of SFNC 2 where the camera gives them in its unit, else the name of the
    feature.
    """
    parameters = []
    for quantity in (EXPOSURE, GAIN, FRAME_RATE):
        name = quantity.find(node_map)
        if name is None:
            continue
        node = quantity.describe(node_map.get_node(name))
        if node.access != "RW" or node.value is None:
            continue
        in_unit = name in quantity.names
        unit = (node.unit or quantity.unit) if in_unit else "steps of the camera"
        shown = quantity.name if in_unit else name
        description = f"{node.about} ({unit})".strip()
        limits = (node.minimum, node.maximum, node.choices)
        parameters.append(
            Parameter(shown, _KINDS[node.kind], node.value, *limits, description=description)
        )
    return parameters


def feature_named(node_map: Any, name: str) -> str:
    """Return the feature of a camera behind a parameter's name; a time in steps of the camera is
    none.
    """
    for quantity in (EXPOSURE, GAIN, FRAME_RATE, TRIGGER_DELAY):
        if name == quantity.name and (
            name not in TIMES or quantity.find(node_map) in quantity.names
        ):
            return quantity.find(node_map) or name
    return name


def frame_rate_hz(node_map: Any) -> float | None:
    """Return the rate of a free-running camera; None if it does not give it."""
    resulting = (feature(node_map, name) for name in _RESULTING)
    known = next(
        (float(rate) for rate in resulting if isinstance(rate, int | float) and rate > 0), None
    )
    if known is not None:
        return known
    if any(feature(node_map, switch, True) is False for switch in RATE_SWITCHES):
        return None  # disabled: the feature holds a rate that does not apply
    rate = FRAME_RATE.read(node_map)
    return rate if rate is not None and rate > 0 else None


def microseconds(node: Any) -> float:
    """Return the µs in the unit of a feature; 1 if that is no unit of time."""
    return _MICROSECONDS.get(unit_of(node), 1.0)


class Distortion(NamedTuple):
    """A setting that breaks y = Φx: its value now, one for which it does no harm,
    and its effect.
    """

    feature: str
    value: Value
    harmless: Value
    effect: str

    def __str__(self) -> str:
        setting = json.dumps([self.feature, self.harmless])
        return (
            f"{self.feature} is {self.value}: {self.effect}; add {setting} to [camera.options] "
            "features"
        )


# Features by their effect where they are on. A gamma of 0.8 costs 4 to 5 dB.
_DISTORTING = {
    "counts are not proportional to light": (
        "GammaEnable", "GammaEnabled", "Gamma", "LUTEnable", "LUTMode", "BslContrastMode",
        "ContrastMode",
        "ContrastEnable", "HDREnable", "HDR_Mode", "pgrHDRModeEnabled", "PGR_HDRModeEnabled",
        "WDRMode",
    ),
    "frames are not exposed alike": (
        "ExposureAuto", "GainAuto", "GainAutoBalance", "BalanceWhiteAuto",
        "pgrExposureCompensationAuto",
        "ContrastAuto",
    ),
    "the black level follows the picture": (
        "BlackLevelAuto", "BlackLevelAutoBalance", "BlackLevelClampingEnable", "DF_BlackClamp",
        "BF_AutoLevelAdjust",
    ),
    "pixels depend on their neighbours": (
        "SharpeningEnable", "SharpnessEnabled", "SharpnessEnhancementAbs", "EdgeFilter",
        "NoiseReductionAbs",
        "NoiseReductionEnable", "DenoisingEnable", "Noisefilter", "MedianFilter",
    ),
    "pixels are replaced by their neighbours": (
        "DefectCorrectStaticEnable", "DefectCorrectionMode", "DefectMaskEnable",
        "DefectMaskColumnEnable",
        "DefectMaskPixelEnable", "pgrDefectPixelCorrectionEnable", "DefectPixelCorrection",
        "DefectPixelCorrectionEnable", "DefectivePixelCorrection",
        "DynamicDefectivePixelCorrection",
        "HotPixelCorrection", "BslStaticDefectPixelCorrectionMode",
    ),
    "frames are compressed": ("ImageCompressionMode", "CompressionMode",
    "AdaptiveCompressionEnable"),
}  # fmt: skip
# Entries of enumerations that switch a setting off.
_OFF = ("off", "disable", "disabled", "none", "linear", "contrastmode_linear", "uncompressed")
# A switch that is off makes the setting behind it harmless.
_SWITCHED_BY = {"Gamma": ("GammaEnable", "GammaEnabled")}


def distortions(node_map: Any) -> list[Distortion]:
    """Return the settings of a camera that break y = Φx now."""
    return [
        distortion
        for distortion in _distorting(node_map)
        if not _is(distortion.value, distortion.harmless)
        and not any(
            feature(node_map, name) is False for name in _SWITCHED_BY.get(distortion.feature, ())
        )
    ]


def _distorting(node_map: Any) -> Iterator[Distortion]:
    """Yield the settings of a camera that may break y = Φx, as far as they can be read and switched
    off.
    """
    for effect, names in _DISTORTING.items():
        for name in names:
            value = feature(node_map, name)
            harmless = None if value is None else _harmless(name, node_map.get_node(name))
            if harmless is not None:
                yield Distortion(name, value, harmless, effect)


def _is(value: Value, harmless: Value) -> bool:
    if isinstance(value, float) and isinstance(harmless, float):
        return math.isclose(value, harmless, abs_tol=1e-3)  # in the camera's own steps
    return value == harmless


def _harmless(name: str, node: Any) -> Value | None:
    """Return the value of a setting that does no harm; None if there is none."""
    match kind_of(node):
        case "boolean":
            return False
        case "integer" | "float":
            return 1.0 if name == "Gamma" else 0.0
        case "enumeration":
            return next(
                (choice for choice in choices_of(node, available=False) if choice.lower() in _OFF),
                None,
            )
    return None


# Formats with more bits than converters have only add padding.
_CONVERTER_BITS = 12


def suggested_features(node_map: Any) -> list[list[Value]]:
    """Return the settings that a measurement needs: the best pixel format, and everything that may
    break y = Φx off.
    """
    settings: list[list[Value]] = []
    choices = [
        FORMATS[name] for name in choices_of_feature(node_map, "PixelFormat") if name in FORMATS
    ]
    if choices:
        settings.append(["PixelFormat", max(choices, key=_merit).name])
    for setting in _distorting(node_map):
        switches = _SWITCHED_BY.get(setting.feature, ())
        if is_settable(node_map, setting.feature) and not any(
            is_settable(node_map, switch) for switch in switches
        ):
            settings.append([setting.feature, setting.harmless])
    return settings


def _merit(form: PixelFormat) -> tuple[int, bool, bool, int]:
    """Return a key that is largest for the best format: most bits, in the fewest bytes."""
    bits = min(form.bit_depth, _CONVERTER_BITS)
    # A colour camera computes its grey formats from several pixels.
    return bits, form.bayer is not None, form.bit_depth <= _CONVERTER_BITS, -form.bits_per_pixel


def trigger_line(node_map: Any) -> str | None:
    """Return the first input line that can trigger a camera; None without one."""
    return next(
        (name for name in choices_of_feature(node_map, "TriggerSource") if name.startswith("Line")),
        None,
    )


def choices_of_feature(node_map: Any, name: str) -> tuple[str, ...]:
    """Return the values of an enumeration that can be chosen now; none without such a feature."""
    if not node_map.has_node(name) or access_of(node_map.get_node(name)) == "NI":
        return ()
    return choices_of(node_map.get_node(name))
