"""The choice among the cameras that drivers have found."""

from __future__ import annotations

import pytest

from sci_stream.errors import CameraError, ConfigError
from sci_stream.model import FoundCamera, FoundInterface, FoundProducer
from sci_stream.tools.cameras import FoundDriver, choose


def found(driver: str, *cameras: tuple[str, str]) -> FoundDriver:
    listed = tuple(
        FoundCamera(id, "Maker", "M-1", serial, "", "ready", {}) for id, serial in cameras
    )
    interface = FoundInterface("eth0", "eth0", "GEV", listed)
    return FoundDriver(
        driver, [FoundProducer("producer.cti", "producer", "Maker", "1.0", (interface,))]
    )


def test_camera_that_two_drivers_see_asks_for_the_driver() -> None:
    seen = [found("aravis", ("Maker-1", "1")), found("harvesters", ("Maker-1", "1"))]
    with pytest.raises(
        ConfigError, match=r"(?s)2 cameras match '1'.*--driver aravis or harvesters"
    ):
        choose("1", seen)
    assert choose("1", seen[:1])[0] == "aravis"


def test_two_cameras_of_one_driver_ask_for_the_id() -> None:
    with pytest.raises(ConfigError, match=r"driver aravis\nGive the id of one"):
        choose("1", [found("aravis", ("a", "1"), ("b", "1"))])


def test_unknown_camera_lists_those_there_are() -> None:
    with pytest.raises(CameraError, match=r"(?s)no camera '9'.*serial '1', id 'a', driver aravis"):
        choose("9", [found("aravis", ("a", "1"))])


def test_unknown_camera_names_drivers_without_a_search() -> None:
    failed = FoundDriver(
        "pylon", [FoundProducer("", "pylon", "", "", (), "pypylon is not installed.")]
    )
    expected = (
        r"(?s)driver pylon: pypylon is not.*driver mine cannot look for.*config init "
        r"--driver mine RIG"
    )
    with pytest.raises(CameraError, match=expected):
        choose("9", [failed, FoundDriver("mine", ())])
