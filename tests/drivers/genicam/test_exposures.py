"""Trigger, exposure, delay and counter of GenICam cameras behind a modulator."""

from __future__ import annotations

import pytest

from sci_stream.errors import ConfigError
from sci_stream.modulation.timing import CameraTrigger
from sci_stream_drivers.genicam.exposures import arm, timing_of, trigger_of
from sci_stream_drivers.genicam.library import feature
from sci_stream_drivers.genicam.standard_features import settings
from tests.drivers.genicam.node_maps import made_up

CAMERA = {
    "ExposureTime": (5000.0, "us"),
    "TriggerSelector": ["FrameStart", "AcquisitionStart"],
    "TriggerMode": ["Off", "On"],
    "TriggerSource": ["Software", "Line0", "Counter1End"],
    "TriggerActivation": ["RisingEdge", "FallingEdge"],
    "TriggerDelay": (0.0, "us"),
    "ExposureMode": ["Timed", "TriggerWidth"],
    "AcquisitionFrameRate": (50.0, "Hz"),
    "AcquisitionFrameRateEnable": False,
}
COUNTER = {
    "CounterSelector": ["Counter0", "Counter1"],
    "CounterEventSource": ["Off", "Line0"],
    "CounterEventActivation": ["RisingEdge", "FallingEdge"],
    "CounterResetSource": ["Off", "Counter1End"],
    "CounterDuration": 1,
}


def test_line_trigger_is_set_and_read_back() -> None:
    nodes = made_up(CAMERA)
    wanted = CameraTrigger("line", 8000.0, 15.0)
    assert arm(nodes, wanted, None, "camera") == wanted == trigger_of(nodes)
    assert feature(nodes, "TriggerSource") == "Line0"
    assert feature(nodes, "ExposureMode") == "Timed"


@pytest.mark.parametrize("unit", ["s", "ms", "ns", "µs"])
def test_times_are_set_and_limited_in_the_unit_of_the_feature(unit: str) -> None:
    nodes = made_up({**CAMERA, "ExposureTime": (1.0, unit), "TriggerDelay": (0.0, unit)})
    armed = arm(nodes, CameraTrigger("line", 8.0, 4.0), None, "camera")
    assert (armed.exposure_us, armed.delay_us) == pytest.approx((8.0, 4.0))
    scale = {"s": 1e-6, "ms": 1e-3, "ns": 1e3}.get(unit, 1.0)
    assert feature(nodes, "ExposureTime") == pytest.approx(8 * scale)
    (shown,) = (p for p in settings(nodes) if p.name == "ExposureTime")
    assert (shown.value, shown.high) == pytest.approx((8.0, 100_000 / scale))


def test_camera_exposes_freely_while_a_pattern_is_held() -> None:
    nodes = made_up(CAMERA)
    planned = arm(nodes, CameraTrigger("line", 8000.0, 15.0), None, "camera")
    assert (
        arm(nodes, CameraTrigger("free", 8000.0, period_us=20_000.0), None, "camera").source
        == "free"
    )
    assert (feature(nodes, "TriggerMode"), feature(nodes, "AcquisitionFrameRate")) == ("Off", 50.0)
    assert feature(nodes, "AcquisitionFrameRateEnable") is True
    assert arm(nodes, planned, None, "camera") == planned


def test_pulses_per_pattern_are_counted_by_the_camera() -> None:
    nodes = made_up({**CAMERA, **COUNTER})
    assert timing_of(nodes).max_every > 8
    armed = arm(nodes, CameraTrigger("line", 8000.0, 0.0, every=8), None, "camera")
    assert armed.every == 8
    assert feature(nodes, "TriggerSource") == "Counter1End"
    assert feature(nodes, "CounterEventSource") == "Line0"
    assert feature(nodes, "CounterResetSource") == "Counter1End"


def test_camera_without_counter_or_line_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot count pulses"):
        arm(made_up(CAMERA), CameraTrigger("line", 8000.0, every=8), None, "camera")
    without = {**CAMERA, "TriggerSource": ["Software"]}
    with pytest.raises(ConfigError, match="no input line"):
        arm(made_up(without), CameraTrigger("line", 8000.0), None, "camera")
