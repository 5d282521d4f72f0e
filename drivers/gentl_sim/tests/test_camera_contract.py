"""The contract of every camera, for the driver `harvesters` on the simulated camera."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivers.gentl_sim.tests.kit import sim_options
from sci_stream_drivers.harvesters import HarvestersCamera, HarvestersOptions
from tests.drivers.camera_kit import MakeCamera
from tests.drivers.test_camera_contract import TestCameras  # noqa: F401 - its tests run on the camera below


@pytest.fixture
def make_camera(gentl_producer: Path) -> MakeCamera:
    options = HarvestersOptions.model_validate(sim_options(gentl_producer))
    return lambda: HarvestersCamera(options)
