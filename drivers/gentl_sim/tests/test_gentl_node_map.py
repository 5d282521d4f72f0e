"""The feature description is valid GenApi, and features behave as described."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from genicam import genapi, gentl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivers.gentl_sim.tests.bench import FORMATS, Bench, harvester

RO, RW, WO = genapi.EAccessMode.RO, genapi.EAccessMode.RW, genapi.EAccessMode.WO
NAMESPACE = "{http://www.genicam.org/GenApi/Version_1_1}"

# The elements that this description uses, in the order in which the schema has them within a node.
ORDER = (
    "ToolTip", "Description", "DisplayName", "Visibility", "pIsAvailable", "pIsLocked",
    "Streamable", "EnumEntry",
    "Address", "Value", "pValue", "Length", "AccessMode", "pPort", "Cachable", "pInvalidator",
    "OnValue", "OffValue",
    "CommandValue", "Min", "pMin", "Max", "pMax", "Inc", "Unit", "Sign", "Endianess",
    "pSelected", "ChunkID", "pFeature",
)  # fmt: skip


def features(node_map: Any) -> Iterator[Any]:
    for node in node_map.nodes:
        if (
            node.node.is_feature()
            and node.node.principal_interface_type != genapi.EInterfaceType.intfICategory
        ):
            yield node


def description(port: Any) -> ET.Element:
    """Read a module's description like a consumer."""
    url = port.url_info_list[0].url
    _, address, size = url.removeprefix("Local:///").split("?")[0].split(";")
    return ET.fromstring(port.read(int(address, 16), int(size, 16))[1])


REAL_CAMERAS_HAVE = {
    "AcquisitionFrameRate", "AcquisitionFrameRateEnable", "AcquisitionMode", "AcquisitionStart",
    "AcquisitionStop",
    "BlackLevel", "ChunkEnable", "ChunkModeActive", "ChunkSelector", "DeviceModelName",
    "DeviceSerialNumber",
    "DeviceTemperature", "DeviceUserID", "DeviceVendorName", "ExposureMode", "ExposureTime", "Gain",
    "GevTimestampValue", "Height", "LineMode", "LineSelector", "LineSource", "OffsetX", "OffsetY",
    "PayloadSize",
    "PixelFormat", "PtpEnable", "PtpStatus", "SensorHeight", "SensorWidth", "TLParamsLocked",
    "TestPattern",
    "TimestampLatch", "TimestampLatchValue", "TriggerActivation", "TriggerDelay", "TriggerMode",
    "TriggerSelector",
    "TriggerSoftware", "TriggerSource", "UserSetDefault", "UserSetLoad", "UserSetSave",
    "UserSetSelector", "Width",
    "WidthMax",
}  # fmt: skip


def test_camera_has_the_features_of_a_real_one(bench: Bench) -> None:
    assert {node.node.name for node in features(bench.node_map)} >= REAL_CAMERAS_HAVE


def test_every_feature_of_every_module_can_be_read(bench: Bench) -> None:
    acquirer = bench.acquirer
    modules = (
        acquirer.remote_device,
        acquirer.device,
        acquirer.interface,
        acquirer.system,
        acquirer.data_streams[0],
    )
    for module in modules:
        access = {node.node.name: node.node.get_access_mode() for node in features(module.node_map)}
        # All are there but the chunks, which are when a buffer is.
        assert {name for name, mode in access.items() if mode not in (RO, RW, WO)} == {
            name
            for name in access
            if name in ("ChunkFrameID", "ChunkTimestamp", "ChunkExposureTime", "ChunkGain")
        }
        read = [
            module.node_map.get_node(name).to_string()
            for name, mode in access.items()
            if mode in (RO, RW)
        ]
        assert len(read) >= 5


def test_description_conforms_to_the_schema(bench: Bench) -> None:
    acquirer = bench.acquirer
    ports = (
        acquirer.remote_device.port, acquirer.device.port, acquirer.interface.module.port,
        acquirer.system.module.port, acquirer.data_streams[0].module.port,
    )  # fmt: skip
    for port in ports:
        root = description(port)
        nodes = root.findall("*")
        names = [node.attrib["Name"] for node in nodes]
        assert len(names) == len(set(names))
        assert port.name in names
        for node in nodes:
            tags = [child.tag.removeprefix(NAMESPACE) for child in node]
            assert set(tags) <= set(ORDER)
            assert [ORDER.index(tag) for tag in tags] == sorted(ORDER.index(tag) for tag in tags), (
                node.attrib["Name"]
            )
            for child in node.iter():
                if child.tag.removeprefix(NAMESPACE).startswith("p"):
                    assert child.text in names


def test_feature_accepts_its_range_and_refuses_values_beyond(bench: Bench) -> None:
    tried = []
    for node in features(bench.node_map):
        if (
            node.node.get_access_mode() != RW
            or not hasattr(node, "min")
            or node.node.name == "TLParamsLocked"
        ):
            continue
        name, before, low, high = node.node.name, node.value, node.min, node.max
        for value in (low, high):
            node.value = value
            assert node.value == pytest.approx(value), name
        for value in (low - 1, high + 1):
            with pytest.raises(genapi.OutOfRangeException):
                node.value = value
        node.value = before
        tried.append(name)
    assert {
        "Width",
        "OffsetY",
        "ExposureTime",
        "Gain",
        "SimLinePeriod",
        "TriggerDelay",
        "BlackLevel",
    } <= set(tried)


def test_every_offered_choice_can_be_set(bench: Bench) -> None:
    tried = 0
    for node in features(bench.node_map):
        if node.node.get_access_mode() == RW and hasattr(node, "symbolics"):
            before = node.value
            for choice in node.symbolics:
                node.value = choice
                assert node.value == choice
                tried += 1
            node.value = before
    assert tried > len(FORMATS) + 30


def test_strings_and_booleans_read_back_as_written(bench: Bench) -> None:
    bench.set(DeviceUserID="left")
    assert bench.get("DeviceUserID") == "left"
    for name in (
        "AcquisitionFrameRateEnable",
        "ChunkModeActive",
        "PtpEnable",
        "LineInverter",
        "SimUnplugSilent",
    ):
        for value in (True, False):
            bench.set(**{name: value})
            assert bench.get(name) is value


STEPS = st.tuples(st.sampled_from(["Width", "Height", "OffsetX", "OffsetY"]), st.floats(0, 1))


@given(steps=st.lists(STEPS, min_size=1, max_size=8))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_image_region_never_exceeds_the_sensor(
    bench: Bench, steps: list[tuple[str, float]]
) -> None:
    for name, fraction in steps:
        node = bench.node_map.get_node(name)
        node.value = node.min + node.inc * int(fraction * ((node.max - node.min) // node.inc))
    assert bench.get("OffsetX") + bench.get("Width") <= bench.get("SensorWidth") == 1280
    assert bench.get("OffsetY") + bench.get("Height") <= bench.get("SensorHeight") == 1024
    assert bench.get("PayloadSize") == bench.get("Width") * bench.get("Height")


@pytest.mark.parametrize("value", [17, 1288])
def test_register_refuses_values_outside_the_description(bench: Bench, value: int) -> None:
    root = description(bench.acquirer.remote_device.port)
    register = next(node for node in root if node.attrib.get("Name") == "WidthReg")
    address = int(register.findtext(f"{NAMESPACE}Address") or "", 16)
    with pytest.raises(
        gentl.InvalidValueException, match=f"Width: expected 16 to 1280 in steps of 8, got {value}"
    ):
        bench.acquirer.remote_device.port.write(address, value.to_bytes(8, "little"))
    assert bench.get("Width") == 1280


def test_image_features_are_locked_while_streaming(bench: Bench) -> None:
    bench.start()
    for name in (
        "Width",
        "Height",
        "OffsetX",
        "OffsetY",
        "PixelFormat",
        "ChunkModeActive",
        "SimFramesFile",
    ):
        assert bench.node_map.get_node(name).node.get_access_mode() == RO
    bench.set(ExposureTime=200.0, Gain=1.0)
    bench.stop()
    bench.set(Width=32)


def test_long_exposure_limits_the_frame_rate(bench: Bench) -> None:
    bench.set(AcquisitionFrameRate=500.0, ExposureTime=9900.0)
    assert (
        bench.get("AcquisitionFrameRate")
        == bench.node_map.AcquisitionFrameRate.max
        == pytest.approx(100.0)
    )


def test_selected_features_have_a_value_for_each_choice(bench: Bench) -> None:
    bench.set(TriggerSelector="FrameStart", TriggerDelay=5.0)
    bench.set(TriggerSelector="AcquisitionStart", TriggerDelay=7.0)
    bench.set(TriggerSelector="FrameStart")
    assert bench.get("TriggerDelay") == 5.0
    bench.set(TriggerSelector="AcquisitionStart")
    assert bench.get("TriggerDelay") == 7.0
    assert {node.node.name for node in bench.node_map.TriggerSelector.node.selected_features} == {
        "TriggerMode", "TriggerSource", "TriggerActivation", "TriggerDelay",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "empty"), (b"x" * 100, "expected the mark SCIFRAME"), (None, "No such file")],
)
def test_invalid_frame_file_is_refused_without_effect(
    bench: Bench, tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "bad.sciframes"
    if content is not None:
        path.write_bytes(content)
    bench.set(Width=64)
    with pytest.raises(gentl.IoException, match=why):
        bench.set(SimFramesFile=str(path))
    assert (bench.get("SimFramesFile"), bench.get("Width")) == ("", 64)


def test_environment_sets_the_number_of_cameras(
    gentl_producer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count in (0, 5, 2):
        monkeypatch.setenv("SCI_GENTL_SIM_DEVICES", str(count))
        with harvester(gentl_producer) as opened:
            found = [info.serial_number for info in opened.device_info_list]
            assert found == [f"SIM{number:04d}" for number in range(1, count + 1)]
