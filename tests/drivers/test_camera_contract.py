"""The contract of every camera, on those that need no device."""

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
