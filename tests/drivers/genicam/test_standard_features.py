"""Exposure, gain and rate under the names of every maker, and settings that spoil a measurement."""

from __future__ import annotations

import pytest

from sci_stream.errors import ConfigError
from sci_stream_drivers.genicam import node_map
from sci_stream_drivers.genicam.chunks import chunk_units, in_standard_units
from sci_stream_drivers.genicam.features import apply
from sci_stream_drivers.genicam.options import FeatureSetting
from sci_stream_drivers.genicam.standard_features import (
    EXPOSURE,
    distortions,
    frame_rate_hz,
    settings,
    suggested_features,
    trigger_line,
)
from tests.drivers.genicam.node_maps import made_up


@pytest.mark.parametrize(
    ("features", "offered"),
    [
        (
            {"ExposureTime": (800.0, "us"), "Gain": (3.0, "dB"), "AcquisitionFrameRate": (50.0,
            "Hz")},
            {"ExposureTime": "us", "Gain": "dB", "AcquisitionFrameRate": "Hz"},
        ),
        (
            {"ExposureTimeAbs": 800.0, "GainRaw": 12, "AcquisitionFrameRateAbs": 50.0},
            {"ExposureTime": "us", "GainRaw": "steps of the camera", "AcquisitionFrameRate": "Hz"},
        ),
        ({"ExposureTimeRaw": 40, "Gain": None, "GainAbs": (1.5, "dB")},
         {"ExposureTimeRaw": "steps of the camera", "Gain": "dB"}),
    ],
    ids=["SFNC 2", "SFNC 1", "raw, and a category Gain"],
)  # fmt: skip
def test_settings_are_offered_by_their_standard_names(
    features: dict, offered: dict[str, str]
) -> None:
    nodes = made_up(features)
    found = {parameter.name: parameter.description for parameter in settings(nodes)}
    assert list(found) == list(offered)
    assert all(f"({unit})" in found[name] for name, unit in offered.items())


def test_standard_name_sets_the_feature_that_the_camera_has() -> None:
    nodes = made_up({"ExposureTimeAbs": 800.0})
    assert apply(nodes, FeatureSetting(feature="ExposureTime", value=500.0), "camera") == 500.0
    assert nodes.get_node("ExposureTimeAbs").value == 500.0


def test_time_in_steps_of_the_camera_takes_no_microseconds() -> None:
    with pytest.raises(ConfigError, match="has no feature ExposureTime"):
        apply(
            made_up({"ExposureTimeRaw": 40}),
            FeatureSetting(feature="ExposureTime", value=500.0),
            "camera",
        )


@pytest.mark.parametrize(
    ("features", "rate_hz"),
    [
        ({"AcquisitionFrameRate": 50.0}, 50.0),
        ({"AcquisitionFrameRateAbs": 50.0, "ResultingFrameRateAbs": 40.0}, 40.0),
        ({"AcquisitionFrameRate": 50.0, "AcquisitionFrameRateEnable": False}, None),
        ({"AcquisitionFrameRateAbs": 50.0, "AcquisitionFrameRateEnabled": False}, None),
        ({"Width": 64}, None),
    ],
)
def test_frame_rate_is_the_one_that_applies(features: dict, rate_hz: float | None) -> None:
    assert frame_rate_hz(made_up(features)) == rate_hz


def test_exposure_is_read_in_microseconds_whatever_its_unit() -> None:
    assert EXPOSURE.read(made_up({"ExposureTime": (0.002, "s")})) == pytest.approx(2000)
    assert EXPOSURE.read(made_up({"ExposureTimeRaw": 40})) is None


def test_chunks_of_times_are_in_microseconds_too() -> None:
    nodes = made_up({"ChunkExposureTime": (0.002, "s"), "ChunkGain": (3.0, "dB")})
    assert chunk_units(nodes, ["ExposureTime", "Gain"]) == {"ExposureTime": "us", "Gain": "dB"}
    assert in_standard_units("ExposureTime", nodes.get_node("ChunkExposureTime")) == pytest.approx(
        2000
    )
    assert in_standard_units("Gain", nodes.get_node("ChunkGain")) == 3.0


@pytest.mark.parametrize(
    ("features", "found"),
    [
        ({"Gamma": 0.8}, ["Gamma"]),
        ({"Gamma": 0.8, "GammaEnable": False}, []),
        ({"Gamma": 1.0, "LUTEnable": True}, ["LUTEnable"]),
        (
            {"ExposureAuto": ["Continuous", "Off"], "GainAuto": ["Off", "Continuous"]},
            ["ExposureAuto"],
        ),
        (
            {"SharpeningEnable": True, "DefectMaskEnable": True},
            ["SharpeningEnable", "DefectMaskEnable"],
        ),
        ({"ImageCompressionMode": ["Lossless", "Off"]}, ["ImageCompressionMode"]),
        (
            {"BlackLevelClampingEnable": True, "LUTMode": ["Gamma45", "Linear"]},
            ["LUTMode", "BlackLevelClampingEnable"],
        ),
        (
            {"DefectMaskPixelEnable": ["Enabled", "Disabled"], "EdgeFilter": ["Smooth"]},
            ["DefectMaskPixelEnable"],
        ),
        ({"Width": 64}, []),
    ],
)
def test_settings_that_break_the_measurement_are_found(features: dict, found: list[str]) -> None:
    assert [distortion.feature for distortion in distortions(made_up(features))] == found


def test_harmless_value_removes_every_finding() -> None:
    nodes = made_up(
        {
            "GammaEnable": True,
            "Gamma": 0.8,
            "ExposureAuto": ["Continuous", "Off"],
            "LUTEnable": True,
        }
    )
    for distortion in distortions(nodes):
        apply(
            nodes, FeatureSetting(feature=distortion.feature, value=distortion.harmless), "camera"
        )
    assert not distortions(nodes)


@pytest.mark.parametrize(
    ("formats", "best"),
    [
        (["Mono8", "Mono12", "Mono12Packed", "RGB8Packed"], "Mono12Packed"),
        (["Mono16", "Mono8"], "Mono16"),
        (["Mono8", "Mono12", "BayerRG8", "BayerRG12p"], "BayerRG12p"),
        (["Mono8", "Mono10", "YUV422Packed"], "Mono10"),
    ],
    ids=["packed of 12 bits", "more than 12", "mosaic of a colour camera", "10 bits"],
)
def test_suggested_format_has_the_most_bits_in_the_fewest_bytes(
    formats: list[str], best: str
) -> None:
    assert suggested_features(made_up({"PixelFormat": formats})) == [["PixelFormat", best]]


def test_suggested_settings_switch_off_distortions() -> None:
    nodes = made_up(
        {"GammaEnable": False, "Gamma": 1.0, "GainAuto": ["Off", "Continuous"], "LUTEnable": False}
    )
    assert suggested_features(nodes) == [
        ["GammaEnable", False],
        ["LUTEnable", False],
        ["GainAuto", "Off"],
    ]


def test_trigger_line_is_one_that_the_camera_has() -> None:
    assert trigger_line(made_up({"TriggerSource": ["Software", "Line1", "Line2"]})) == "Line1"
    assert trigger_line(made_up({"TriggerSource": ["Software"]})) is None


# Of the 119 node maps in the archive, those without a feature of the quantity under any name: their
# XML was read.


def test_text_that_is_not_utf_8_leaves_the_other_features_listed() -> None:
    listed = {
        f.name: f.value
        for f in node_map.features(made_up({"DeviceUserID": b"Kamera \xe4\0", "Gain": 3.0}))
    }
    assert listed["Gain"] == 3.0
    assert listed["DeviceUserID"] is None
