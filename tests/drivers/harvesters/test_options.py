"""Options of a GenICam camera."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sci_stream.config import validate_options
from sci_stream.errors import ConfigError
from sci_stream_drivers.genicam.features import settings_of
from sci_stream_drivers.harvesters import HarvestersOptions

pytestmark = pytest.mark.rig


def options(**table: Any) -> HarvestersOptions:
    return validate_options(HarvestersOptions, table, "rig.toml: [camera.options]")


def steps(**table: Any) -> list[tuple[str, object]]:
    return [(step.feature, step.value) for step in settings_of(options(**table))]


def test_features_are_pairs_commands_or_tables() -> None:
    given = options(
        features=[
            ["Width", 640],
            ["TimerReset"],
            {"feature": "Gain", "value": 1.5, "optional": True},
        ]
    )
    assert [str(step) for step in given.features] == ["Width = 640", "TimerReset", "Gain = 1.5"]
    assert [step.optional for step in given.features] == [False, False, True]


def test_values_keep_their_types() -> None:
    given = options(features=[["A", 1], ["B", 1.0], ["C", True], ["D", "1"]])
    assert [type(step.value) for step in given.features] == [int, float, bool, str]


def test_settings_are_ordered() -> None:
    got = steps(
        chunks=["FrameID"],
        trigger={
            "source": "Line0",
            "activation": "RisingEdge",
            "exposure_mode": "TriggerWidth",
            "output_line": "Line1",
        },
        features=[["Width", 640]],
        user_set="Default",
    )
    assert got == [
        ("UserSetSelector", "Default"), ("UserSetLoad", None),
        ("Width", 640),
        ("TriggerSelector", "FrameStart"), ("TriggerSource", "Line0"), ("TriggerActivation",
        "RisingEdge"),
        ("ExposureMode", "TriggerWidth"),
        ("LineSelector", "Line1"), ("LineMode", "Output"), ("LineSource", "ExposureActive"),
        ("TriggerMode", "On"),
        ("ChunkModeActive", True), ("ChunkSelector", "FrameID"), ("ChunkEnable", True),
    ]  # fmt: skip


def test_empty_options_set_nothing() -> None:
    assert steps() == []


def test_single_producer_needs_no_list() -> None:
    assert options(cti="/opt/sdk/a.cti").cti == [Path("/opt/sdk/a.cti")]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"serial": "1"}, "[camera.options] serial is unknown"),
        ({"selector": {"serail": "1"}}, "selector.serail is unknown. Did you mean serial?"),
        ({"features": [["Width", 640, 8]]}, 'features[0]: a feature is written ["Name", value]'),
        ({"features": [["Width", [1]]]}, "features[0]"),
        ({"buffers": 3}, "buffers is wrong; expected ≥ 4; got 3"),
        ({"ptp": "maybe"}, "ptp is wrong; expected 'off' or 'on'"),
        ({"trigger": {}}, "trigger.source is missing"),
    ],
)
def test_invalid_options_are_named_with_their_place(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(**table)
    assert words in str(caught.value)
