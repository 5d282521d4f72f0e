"""The driver `pylon` on pylon's camera emulator, bit-exact."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sci_stream.cli.rigs import config_init
from sci_stream.config import load_rig
from sci_stream.errors import CameraError, ConfigError
from sci_stream.model import CameraFrame
from sci_stream.nodes.runtime.camera_drivers import make_camera
from sci_stream.testing.cameras import CameraContract
from sci_stream_drivers.genicam.options import GenicamOptions
from sci_stream_drivers.pylon import PylonCamera

pytest.importorskip("genicam", reason="genicam is not installed: pip install '.[pylon]'")
pytest.importorskip("pypylon", reason="pypylon is not installed: pip install '.[pylon]'")

H, W = 48, 64
SIZE = [["Width", W], ["Height", H], ["AcquisitionFrameRate", 200.0]]
Make = Callable[..., PylonCamera]


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PYLON_CAMEMU", "2")


@pytest.fixture
def make() -> Iterator[Make]:
    """Return a function that makes a driver of the first camera, closed after the test."""
    made: list[PylonCamera] = []

    def camera(*features: list[Any], **options: Any) -> PylonCamera:
        made.append(pylon_camera(*features, **options))
        return made[-1]

    yield camera
    for each in made:
        each.close()


def pylon_camera(*features: list[Any], **options: Any) -> PylonCamera:
    selector = {"serial": "0815-0000"}
    given = {"selector": selector, "features": [*SIZE, *features], **options}
    return PylonCamera(GenicamOptions.model_validate(given))


def read(camera: PylonCamera, count: int = 1) -> list[CameraFrame]:
    frames = [camera.read(5.0) for _ in range(count)]
    assert None not in frames
    return [frame for frame in frames if frame is not None]


class TestContract(CameraContract):
    """The suite of every camera."""

    def make(self) -> PylonCamera:
        return pylon_camera()


def test_frames_are_exact(make: Make, tmp_path: Path) -> None:
    shown = np.random.default_rng(3).integers(0, 256, (5, H, W)).astype(np.uint8)
    for index, frame in enumerate(shown):
        cv2.imwrite(str(tmp_path / f"{index}.png"), frame)
    camera = make(["TestImageSelector", "Off"], ["ImageFilename", str(tmp_path)], ["ImageFileMode", "On"])
    assert camera.open().pixel_format == "Mono8"
    camera.start()
    frames = read(camera, 20)
    which = [next(k for k in range(5) if np.array_equal(frame.counts, shown[k])) for frame in frames]
    assert [(b - a) % 5 for a, b in pairwise(which)] == [1] * 19
    assert {b.frame_id - a.frame_id for a, b in pairwise(frames) if a.frame_id is not None} <= {1}


@pytest.mark.parametrize(
    ("pixel_format", "bits", "step"), [("Mono12", 12, 16), ("Mono16", 16, 256), ("BayerRG12", 12, 16)]
)
def test_pattern_is_a_ramp_in_every_depth(make: Make, pixel_format: str, bits: int, step: int) -> None:
    camera = make(["PixelFormat", pixel_format], ["TestImageSelector", "Testimage1"])
    assert camera.open().bit_depth == bits
    camera.start()
    (frame,) = read(camera)
    np.testing.assert_array_equal(frame.counts, step * np.add.outer(np.arange(H), np.arange(W)))


def test_software_triggers_give_one_frame_each(make: Make) -> None:
    camera = make(trigger={"source": "Software"})
    assert camera.open().frame_period_ns is None
    camera.start()
    for _ in range(10):
        camera.trigger()
        read(camera)
    assert camera.read(0.2) is None
    assert camera.counters()["delivered"] == 10


def test_settings_change_the_period(make: Make) -> None:
    camera = make()
    assert camera.open().frame_period_ns == 5_000_000
    assert [parameter.name for parameter in camera.settings()] == ["ExposureTime", "Gain", "AcquisitionFrameRate"]
    assert camera.set("AcquisitionFrameRate", 50.0).frame_period_ns == 20_000_000


def test_camera_is_listed_inspected_and_selected(make: Make) -> None:
    (producer,) = PylonCamera.find([])
    (interface,) = producer.interfaces
    assert [camera.serial for camera in interface.cameras] == ["0815-0000", "0815-0001"]
    features = {feature.name: feature for feature in make().inspect().features}
    assert features["Width"].maximum == 4096
    assert "Mono12" in features["PixelFormat"].choices
    assert features["TriggerMode"].value == "Off"
    with pytest.raises(CameraError, match=r"No camera matches the selector.*0815-0000"):
        make(selector={"serial": "another"}).open()
    with pytest.raises(ConfigError, match="2 cameras match"):
        make(selector={}).open()
    with pytest.raises(ConfigError, match="no feature Exposition"):
        make(["Exposition", 1]).open()
    with pytest.raises(ConfigError, match="Width"):
        make(["Width", 1 << 20]).open()


def test_config_init_writes_a_rig_for_the_camera(tmp_path: Path) -> None:
    path = tmp_path / "rig.toml"
    config_init(path, driver="pylon", camera="0815-0001")
    rig = load_rig(path)
    assert rig.camera.options["selector"] == {"serial": "0815-0001"}
    assert dict(rig.camera.options["features"])["PixelFormat"] == "BayerGR12"
    made = make_camera(rig)
    try:
        assert made.open().serial == "0815-0001"
    finally:
        made.close()
