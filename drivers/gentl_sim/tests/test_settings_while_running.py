"""Changing settings of a GenICam camera while it delivers frames,
with the simulated GenTL camera.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drivers.gentl_sim.tests.kit import sim_options
from sci_stream.errors import InputError
from sci_stream_drivers.harvesters import HarvestersCamera, HarvestersOptions


@pytest.fixture
def camera(gentl_producer: Path) -> Iterator[HarvestersCamera]:
    camera = HarvestersCamera(HarvestersOptions.model_validate(sim_options(gentl_producer)))
    camera.open()
    camera.start()
    yield camera
    camera.close()


def test_settings_have_the_ranges_of_the_camera(camera: HarvestersCamera) -> None:
    offered = {entry.name: entry for entry in camera.settings()}
    assert set(offered) == {"ExposureTime", "Gain", "AcquisitionFrameRate"}
    exposure = offered["ExposureTime"]
    assert (exposure.kind, exposure.value, exposure.low) == ("number", 100.0, 10.0)
    assert "(us)" in exposure.description


def test_settings_change_while_streaming(camera: HarvestersCamera) -> None:
    assert camera.read(5.0) is not None
    assert camera.set("AcquisitionFrameRate", 200.0).frame_period_ns == 5_000_000
    camera.set("ExposureTime", 250)
    assert {entry.name: entry.value for entry in camera.settings()}["ExposureTime"] == 250.0
    stamps = []
    for _ in range(40):
        frame = camera.read(5.0)
        assert frame is not None
        assert frame.camera_time_ns is not None
        stamps.append(frame.camera_time_ns)
    assert (stamps[-1] - stamps[-5]) / 4 == pytest.approx(5e6, rel=0.2), "on the camera's own clock"


def test_invalid_setting_error_names_the_range(camera: HarvestersCamera) -> None:
    with pytest.raises(InputError, match=r"ExposureTime.*from 10 to"):
        camera.set("ExposureTime", 1.0)
    with pytest.raises(InputError, match="Did you mean ExposureTime"):
        camera.set("ExposureTim", 1.0)


def test_stream_that_cannot_be_set_up_releases_the_camera(
    gentl_producer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = HarvestersOptions.model_validate(sim_options(gentl_producer))
    failed = HarvestersCamera(options)
    with monkeypatch.context() as patch:
        patch.setattr("sci_stream_drivers.harvesters.camera.HarvestersStream", None)
        with pytest.raises(TypeError):
            failed.open()
    other = HarvestersCamera(options)
    other.open()
    other.close()
