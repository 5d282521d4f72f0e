"""Exposure, gain, rate and their like under the names that cameras give them, and settings that spoil a measurement.

SFNC 2 names them ``ExposureTime``, ``Gain``, ``AcquisitionFrameRate``; of 119 node maps of real cameras 51, 79 and 52
do. The others have the names of SFNC 1 (``…Abs``, in the same units, and ``…Raw``, in steps of the camera), or their
maker's own.

References
----------
EMVA, *GenICam Standard Features Naming Convention* (SFNC) 1.5.1 and 2.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from sci_stream.parameters import Kind, Parameter, Value
from sci_stream_drivers.genicam.formats import FORMATS, PixelFormat
from sci_stream_drivers.genicam.library import feature
from sci_stream_drivers.genicam.node_map import access_of, choices_of, describe, kind_of

_NUMBERS = ("integer", "float")


@dataclass(frozen=True, slots=True)
class StandardFeature:
    """A quantity and the features that may hold it, best first.

    ``names`` are features in ``unit``; ``raw`` are features in steps of the camera, whose size it does not give.
    """

    name: str
    unit: str
    names: tuple[str, ...]
    raw: tuple[str, ...] = ()

    def find(self, node_map: Any) -> str | None:
        """Return the feature of a camera that holds the quantity; None if it has none."""
        # Not every feature of the name is a number: six cameras have a category Gain.
        numbers = (
            n for n in (*self.names, *self.raw) if node_map.has_node(n) and kind_of(node_map.get_node(n)) in _NUMBERS
        )
        present = list(numbers)
        writable = [n for n in present if "W" in access_of(node_map.get_node(n))]
        return next(iter(writable or present), None)

    def read(self, node_map: Any) -> float | None:
        """Return its value in ``unit``; None if the camera does not give it in that unit."""
        values = (_in_unit(node_map, name, self.unit) for name in self.names if node_map.has_node(name))
        return next((value for value in values if value is not None), None)


EXPOSURE = StandardFeature(
    "ExposureTime", "us",
    ("ExposureTime", "ExposureTimeAbs"),
    ("ExposureTimeRaw", "Exposure", "MANUALDIRECTSHUTTER", "ManualDirectShutter", "ExtendedExposure"),
)  # fmt: skip
GAIN = StandardFeature(
    "Gain", "dB", ("Gain", "GainAbs"), ("GainRaw", "AnalogGain", "DigitalGain", "GainMode", "MaxAGCGain")
)
FRAME_RATE = StandardFeature(
    "AcquisitionFrameRate", "Hz",
    ("AcquisitionFrameRate", "AcquisitionFrameRateAbs", "FrameRate", "SensorFrameRate"),
    ("AcquisitionFrameRateRaw",),
)  # fmt: skip
# The rate that results from exposure, readout and bandwidth.
_RESULTING = (
    "AcquisitionResultingFrameRate",
    "ResultingFrameRate",
    "ResultingFrameRateAbs",
    "AcquisitionFrameRateLimit",
)
# Without it, a free-running camera takes as many frames as it can, whatever its rate says.
_RATE_SWITCHES = ("AcquisitionFrameRateEnable", "AcquisitionFrameRateEnabled")
TRIGGER_DELAY = StandardFeature("TriggerDelay", "us", ("TriggerDelay", "TriggerDelayAbs"), ("TriggerDelayRaw",))

# Features that synchronise the camera's clock with IEEE 1588, with the value that does, and their state.
CLOCK_SWITCHES: dict[str, tuple[Value, str]] = {
    "PtpEnable": (True, "PtpStatus"),
    "PtpMode": ("Slave", "PtpStatus"),
    "GevIEEE1588": (True, "GevIEEE1588Status"),
}


def settings(node_map: Any) -> list[Parameter]:
    """Return exposure, gain and frame rate as parameters, as far as they can be set now.

    They have the names of SFNC 2 where the camera gives them in its unit, else the name of the feature.
    """
    parameters = []
    for quantity in (EXPOSURE, GAIN, FRAME_RATE):
        name = quantity.find(node_map)
        if name is None:
            continue
        node = describe(node_map.get_node(name), "")
        if node.access != "RW" or not isinstance(node.value, int | float):
            continue
        kind: Kind = "integer" if node.kind == "integer" else "number"
        in_unit = name in quantity.names
        unit = (node.unit or quantity.unit) if in_unit else "steps of the camera"
        shown = quantity.name if in_unit else name
        description = f"{node.about} ({unit})".strip()
        parameters.append(Parameter(shown, kind, node.value, node.minimum, node.maximum, description=description))
    return parameters


def feature_named(node_map: Any, name: str) -> str:
    """Return the feature of a camera behind a parameter's name."""
    for quantity in (EXPOSURE, GAIN, FRAME_RATE, TRIGGER_DELAY):
        if name == quantity.name:
            return quantity.find(node_map) or name
    return name


def frame_rate_hz(node_map: Any) -> float | None:
    """Return the rate of a free-running camera; None if it does not give it."""
    resulting = (feature(node_map, name) for name in _RESULTING)
    known = next((float(rate) for rate in resulting if isinstance(rate, int | float) and rate > 0), None)
    if known is not None:
        return known
    if any(feature(node_map, switch, True) is False for switch in _RATE_SWITCHES):
        return None  # disabled: the feature holds a rate that does not apply
    rate = FRAME_RATE.read(node_map)
    return rate if rate is not None and rate > 0 else None


def _in_unit(node_map: Any, name: str, unit: str) -> float | None:
    """Return a feature's number in a unit; its own unit may be another prefix of seconds."""
    value = feature(node_map, name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    scale = {("s", "us"): 1e6, ("ms", "us"): 1e3, ("ns", "us"): 1e-3}
    stated = str(getattr(node_map.get_node(name), "unit", "") or "")
    return float(value) * scale.get((stated, unit), 1.0)


class Spoiler(NamedTuple):
    """A setting that breaks y = Φx: a value for which it does no harm, and its effect otherwise."""

    feature: str
    harmless: Value
    effect: str


_CURVE = "counts are not proportional to light"
_AUTO = "frames are not exposed alike"
_NEIGHBOURS = "pixels depend on their neighbours"
SPOILERS = (
    # Gamma as a number where nothing switches it off; 0.8 costs 4 to 5 dB.
    *(Spoiler(name, False, _CURVE) for name in ("GammaEnable", "GammaEnabled", "LUTEnable", "pgrHDRModeEnabled")),
    Spoiler("Gamma", 1.0, _CURVE),
    Spoiler("BslContrastMode", "Linear", _CURVE),
    Spoiler("ContrastEnable", False, _CURVE),
    *(
        Spoiler(name, "Off", _AUTO)
        for name in ("ExposureAuto", "GainAuto", "BlackLevelAuto", "BalanceWhiteAuto", "pgrExposureCompensationAuto")
    ),
    *(
        Spoiler(name, False, _NEIGHBOURS)
        for name in ("SharpeningEnable", "SharpnessEnabled", "NoiseReductionEnable", "DenoiseEnable")
    ),
    *(Spoiler(name, 0.0, _NEIGHBOURS) for name in ("SharpnessEnhancementAbs", "NoiseReductionAbs")),
    *(
        Spoiler(name, False, "pixels are replaced by their neighbours")
        for name in (
            "DefectCorrectStaticEnable",
            "DefectMaskEnable",
            "pgrDefectPixelCorrectionEnable",
            "DefectPixelCorrection",
        )
    ),
    *(Spoiler(name, "Off", "frames are compressed") for name in ("ImageCompressionMode", "CompressionMode")),
    Spoiler("AdaptiveCompressionEnable", False, "frames are compressed"),
)
# A switch that is off makes the setting behind it harmless.
_SWITCHED_BY = {"Gamma": ("GammaEnable", "GammaEnabled")}


def spoilers(node_map: Any) -> Iterator[tuple[Spoiler, Value]]:
    """Yield the settings of a camera that break y = Φx now, with their values."""
    for spoiler in SPOILERS:
        switches = _SWITCHED_BY.get(spoiler.feature, ())
        if any(feature(node_map, switch) is False for switch in switches):
            continue
        value = feature(node_map, spoiler.feature)
        if value is not None and _differs(value, spoiler.harmless):
            yield spoiler, value


def _differs(value: Any, harmless: Value) -> bool:
    if isinstance(harmless, float) and isinstance(value, int | float):
        return abs(value - harmless) > 1e-6
    return bool(value != harmless)


# Formats with more bits than converters have only add padding.
_CONVERTER_BITS = 12


def suggested_features(node_map: Any) -> list[list[Value]]:
    """Return the settings that a measurement needs: the best pixel format, and every spoiler switched off."""
    settings: list[list[Value]] = []
    choices = [FORMATS[name] for name in choices_of_feature(node_map, "PixelFormat") if name in FORMATS]
    if choices:
        settings.append(["PixelFormat", max(choices, key=_merit).name])
    for spoiler in SPOILERS:
        switches = _SWITCHED_BY.get(spoiler.feature, ())
        if any(_settable(node_map, switch) for switch in switches) or not _settable(node_map, spoiler.feature):
            continue
        settings.append([spoiler.feature, spoiler.harmless])
    return settings


def _merit(form: PixelFormat) -> tuple[int, bool, bool, int]:
    """Return a key that is largest for the best format: most bits, in the fewest bytes."""
    bits = min(form.bit_depth, _CONVERTER_BITS)
    # A colour camera computes its grey formats from several pixels.
    return bits, form.bayer is not None, form.bit_depth <= _CONVERTER_BITS, -form.bits_per_pixel


def trigger_line(node_map: Any) -> str | None:
    """Return the first input line that can trigger a camera; None without one."""
    return next((name for name in choices_of_feature(node_map, "TriggerSource") if name.startswith("Line")), None)


def choices_of_feature(node_map: Any, name: str) -> tuple[str, ...]:
    """Return the values of an enumeration that can be chosen now; none without such a feature."""
    return choices_of(node_map.get_node(name)) if node_map.has_node(name) else ()


def _settable(node_map: Any, name: str) -> bool:
    return bool(node_map.has_node(name)) and access_of(node_map.get_node(name)) == "RW"
