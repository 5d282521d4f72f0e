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
from sci_stream.devices.camera_drivers import make_camera
from sci_stream.errors import CameraError, ConfigError
from sci_stream.model import CameraFrame
from sci_stream.optics.calibration import Calibration
from sci_stream.recording.calibration_file import save_calibration
from sci_stream_cameras.pylon import PylonCamera
from sci_stream_drivers.genicam.options import GenicamOptions
from sci_stream_testing.cameras import CameraContract
from tests.e2e.kit import RunningRig, assert_accounted_for, camera_of

pytestmark = pytest.mark.rig
pytest.importorskip(
    "genicam", reason="genicam is not installed: pip install './drivers/cameras[pylon]'"
)
pytest.importorskip(
    "pypylon", reason="pypylon is not installed: pip install './drivers/cameras[pylon]'"
)

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


SHOWN = np.random.default_rng(3).integers(0, 256, (5, H, W)).astype(np.uint8)


@pytest.fixture
def images(tmp_path: Path) -> list[list[Any]]:
    """Return features that make the camera show `SHOWN`, in a loop."""
    folder = tmp_path / "images"
    folder.mkdir()
    for index, frame in enumerate(SHOWN):
        cv2.imwrite(str(folder / f"{index}.png"), frame)
    return [["TestImageSelector", "Off"], ["ImageFilename", str(folder)], ["ImageFileMode", "On"]]


def test_frames_are_exact(make: Make, images: list[list[Any]]) -> None:
    camera = make(*images)
    assert camera.open().pixel_format == "Mono8"
    camera.start()
    frames = read(camera, 20)
    which = [
        next(k for k in range(5) if np.array_equal(frame.counts, SHOWN[k])) for frame in frames
    ]
    assert [(b - a) % 5 for a, b in pairwise(which)] == [1] * 19
    assert {b.frame_id - a.frame_id for a, b in pairwise(frames) if a.frame_id is not None} <= {1}


@pytest.mark.parametrize(
    ("pixel_format", "bits", "step"),
    [("Mono12", 12, 16), ("Mono16", 16, 256), ("BayerRG12", 12, 16)],
)
def test_pattern_is_a_ramp_in_every_depth(
    make: Make, pixel_format: str, bits: int, step: int
) -> None:
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
    assert [parameter.name for parameter in camera.settings()] == [
        "ExposureTime",
        "Gain",
        "AcquisitionFrameRate",
    ]
    assert camera.set("AcquisitionFrameRate", 50.0).frame_period_ns == 20_000_000


def test_camera_is_listed_inspected_and_selected(make: Make) -> None:
    (producer,) = PylonCamera.find([])
    (interface,) = producer.interfaces
    assert [camera.serial for camera in interface.cameras] == ["0815-0000", "0815-0001"]
    features = {feature.name: feature for feature in make().inspect().features}
    assert features["Width"].maximum == 4096
    assert "Mono12" in features["PixelFormat"].choices
    assert features["TriggerMode"].value == "Off"
    with pytest.raises(CameraError, match=r"(?s)No camera matches the selector.*0815-0000"):
        make(selector={"serial": "another"}).open()
    with pytest.raises(ConfigError, match="2 cameras are found and none is selected"):
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


def test_frames_with_lost_packets_are_gaps_of_the_ids(make: Make) -> None:
    camera = make()
    ids = camera.open().frame_ids
    camera.start()
    (before,) = read(camera)
    assert camera._camera is not None
    nodes = camera._camera.connection.node_map
    nodes.get_node("ForceFailedBufferCount").value = 3
    nodes.get_node("ForceFailedBuffer").execute()
    frames = [before, *read(camera, 30)]
    pairs = [(a.frame_id, b.frame_id) for a, b in pairwise(frames)]
    assert sum(ids.missed(a, b) for a, b in pairs if a is not None and b is not None) == 3
    assert camera.counters()["incomplete"] == 3


def test_rig_records_every_frame_that_is_complete(tmp_path: Path, images: list[list[Any]]) -> None:
    phi = (np.random.default_rng(1).random((4, H, W)) < 0.5).astype(np.float32)
    save_calibration(
        tmp_path / "calibration.h5", Calibration(phi=phi, full_scale_dn=60.0, bit_depth=8)
    )
    failing = [["ForceFailedBufferCount", 7], ["ForceFailedBuffer"]]
    features = [*SIZE, *images, ["AcquisitionFrameRate", 20.0], *failing]
    changes = {
        "camera": camera_of("pylon", selector={"serial": "0815-0000"}, features=features),
        "calibration": {"file": "calibration.h5"},
        "policy": {"mode": "record"},
    }
    with RunningRig(tmp_path, changes, "--snapshots", "60") as run:
        assert assert_accounted_for(run.finish())["acquired"] == 60
        with run.recordings() as (recording,):
            shown = [frame.tobytes() for frame in SHOWN]
            which = [shown.index(recording.raw(seq).tobytes()) for seq in recording.raw_seqs]
            assert recording.raw_seqs == list(range(60))
            assert recording.camera_frame_id(0) == 7, "the first frames failed"
            assert {(b - a) % 5 for a, b in pairwise(which)} == {1}
