"""A camera that its producer lists twice is one camera."""

from __future__ import annotations

import pytest

from sci_stream.errors import ConfigError
from sci_stream.model import FoundCamera
from sci_stream_drivers.genicam.options import CameraSelector
from sci_stream_drivers.genicam.selection import selected


def listed(
    id_: str = "MAC-1", access: str = "free", producer: str = "a.cti", serial: str = "U1"
) -> FoundCamera:
    return FoundCamera(id_, "JAI", "BM-500GE", serial, "", access, {"cti": [producer]})


@pytest.mark.parametrize("selector", [{}, {"serial": "U1"}, {"id": "MAC-1"}])
def test_camera_listed_twice_is_selected_once(selector: dict[str, str]) -> None:
    cameras = [(listed(access="busy"), 1), (listed(), 2), (listed(), 3)]
    assert selected(cameras, CameraSelector(**selector), "hint")[1] == 2


@pytest.mark.parametrize("other", [{"id_": "MAC-2"}, {"producer": "b.cti"}])
def test_cameras_that_differ_are_ambiguous(other: dict[str, str]) -> None:
    cameras = [(listed(), 1), (listed(**other), 2)]
    with pytest.raises(ConfigError, match="2 cameras match the selector serial 'U1'"):
        selected(cameras, CameraSelector(serial="U1"), "hint")


def test_cameras_without_an_id_are_not_taken_for_one() -> None:
    cameras = [(listed(id_="", serial=""), 1), (listed(id_="", serial=""), 2)]
    with pytest.raises(ConfigError, match="2 cameras are found"):
        selected(cameras, CameraSelector(), "hint")
