"""The contract of every camera, and further promises of the cameras of this repository."""

from __future__ import annotations

import pytest

from sci_stream.ports import Camera
from sci_stream.testing.cameras import CameraContract
from tests.drivers.camera_kit import SHOTS, MakeCamera


class TestCameras(CameraContract):
    """Cameras of SHOTS snapshots."""

    n_frames = SHOTS

    @pytest.fixture(autouse=True)
    def _set_maker(self, make_camera: MakeCamera) -> None:
        self._make_camera = make_camera

    def make(self) -> Camera:
        return self._make_camera()

    def test_calls_out_of_order_raise_runtime_error(self) -> None:
        with self._made() as camera:
            with pytest.raises(RuntimeError, match="open"):
                camera.start()
            with pytest.raises(RuntimeError, match="open"):
                camera.calibration()
            camera.open()
            with pytest.raises(RuntimeError, match="start"):
                camera.read(0.0)

    def test_counters_count_delivered_frames_since_open(self) -> None:
        with self._made() as camera:
            for count in (3, 1):
                self._frames(camera, count)
                assert camera.counters()["delivered"] == count
                camera.close()
