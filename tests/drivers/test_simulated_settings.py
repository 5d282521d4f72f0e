"""Changing settings of a running simulated camera."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sci_stream.errors import InputError
from sci_stream.ports import AdjustableCamera
from tests.drivers.camera_kit import frames, simulated


def mean_light(camera: Any) -> float:
    frame = camera.read(5.0)
    return float((frame.counts - camera.calibration().dark).mean())


@pytest.mark.parametrize("loop_snapshots", [0, 1])
def test_double_exposure_doubles_the_light(loop_snapshots: int) -> None:
    camera = simulated(
        exposure=0.4, noise=False, scene="static", snapshots=0, loop_snapshots=loop_snapshots
    )
    frames(camera, 1)
    calibration = camera.calibration()
    before = mean_light(camera)
    camera.set("exposure", 0.8)
    assert mean_light(camera) == pytest.approx(2 * before, rel=0.01)
    assert camera.calibration().hash == calibration.hash, (
        "as on a real bench, the calibration is that of the previous exposure"
    )


def test_truth_after_shorter_exposure_is_darker() -> None:
    camera = simulated(exposure=0.8, scene="static", snapshots=0, truth=True)
    bright = frames(camera, 1)[0].truth.astype(int)
    camera.set("exposure", 0.6)
    assert np.abs(camera.read(5.0).truth - 0.75 * bright).max() <= 1
    camera.set("exposure", 8.0)
    assert camera.read(5.0).truth.max() == 255


def test_changed_scene_is_filmed_and_refused_in_words() -> None:
    changed, other = (
        simulated(scene=name, noise=False, snapshots=0, truth=True) for name in ("fast", "drops")
    )
    frames(changed, 1)
    frames(other, 1)
    changed.set("scene", "drops")
    np.testing.assert_array_equal(changed.read(5.0).truth, other.read(5.0).truth)
    with pytest.raises(InputError, match="one of fast, splash, fan, drops, balloon"):
        changed.set("scene", "rain")


def test_changed_rate_is_reported_and_kept() -> None:
    camera = simulated(snapshot_rate_hz=1000.0, snapshots=0)
    frames(camera, 2)
    assert camera.set("snapshot_rate_hz", 200.0).frame_period_ns == 5_000_000
    stamps = [frame.camera_time_ns for frame in frames(camera, 4)]
    assert set(np.diff(stamps)) == {5_000_000}
    assert {entry.name: entry.value for entry in camera.settings()}["snapshot_rate_hz"] == 200.0


def test_close_discards_settings() -> None:
    camera = simulated(snapshot_rate_hz=1000.0)
    camera.open()
    camera.set("exposure", 2.0)
    camera.set("snapshot_rate_hz", 1.0)
    camera.close()
    assert camera.open().frame_period_ns == 1_000_000
    assert camera.settings()[0].value == 0.9


def test_triggered_camera_has_no_rate() -> None:
    camera = simulated(trigger="software")
    camera.open()
    assert [entry.name for entry in camera.settings()] == ["exposure", "scene"]


def test_invalid_setting_error_names_the_range() -> None:
    camera = simulated()
    assert isinstance(camera, AdjustableCamera)
    camera.open()
    with pytest.raises(InputError, match=r"exposure.*from 0\.01 to 10; got 11"):
        camera.set("exposure", 11)
    with pytest.raises(InputError, match="no parameter 'gain'"):
        camera.set("gain", 1)
