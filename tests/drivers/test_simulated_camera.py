from __future__ import annotations

import time
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from sci_stream.errors import CameraError, CameraLost, FileFormatError
from sci_stream_drivers.simulated import SimulatedCamera, SimulatedOptions
from sci_stream_drivers.simulated.exposure import Exposure
from sci_stream_drivers.simulated.scenes import make_scene
from tests.drivers.camera_kit import SHOTS, frames, simulated


def test_counts_equal_the_forward_model() -> None:
    camera = simulated(noise=False)
    options = camera._options
    received = frames(camera)
    calibration = camera.calibration()
    exposure = Exposure(make_scene(options), calibration.phi, options.bayer)
    for n, frame in enumerate(received):
        y = (calibration.phi.astype(np.float64) * exposure.frames(n)).sum(axis=0)
        expected = calibration.dark + calibration.full_scale_dn * y
        assert np.abs(frame.counts - expected).max() <= 0.5 + 1e-3


def test_truth_explains_noiseless_counts_up_to_rounding() -> None:
    camera = simulated(noise=False, truth=True)
    received = frames(camera)
    calibration = camera.calibration()
    for frame in received:
        assert frame.truth is not None
        model = (calibration.phi * (frame.truth / 255)).sum(axis=0)
        bound = 0.5 / 255 * calibration.phi.sum(axis=0) + 0.51 / calibration.full_scale_dn
        assert (np.abs(calibration.measurement(frame.counts) - model) <= bound).all()


def test_truth_option_does_not_change_counts() -> None:
    for a, b in zip(frames(simulated()), frames(simulated(truth=True)), strict=True):
        np.testing.assert_array_equal(a.counts, b.counts)


def test_calibration_describes_the_sensor() -> None:
    camera = simulated(seed=3, bit_depth=10, bayer="GBRG")
    camera.open()
    calibration = camera.calibration()
    assert calibration.camera_serial == "SIM-3"
    assert calibration.bit_depth == 10
    assert calibration.saturation_dn == 1023
    assert calibration.bayer == "GBRG"
    np.testing.assert_array_equal(calibration.dark, 16)


def test_overexposed_pixels_are_saturated() -> None:
    camera = simulated(exposure=5.0)
    frame = frames(camera, 1)[0]
    saturated = frame.counts >= camera.calibration().saturation_dn
    assert 0.01 < saturated.mean() < 1


def test_loop_snapshots_are_delivered_as_copies() -> None:
    camera = simulated(loop_snapshots=2, truth=True)
    a, b, again, _ = frames(camera)
    assert not np.array_equal(a.counts, b.counts)
    np.testing.assert_array_equal(a.counts, again.counts)
    assert not np.shares_memory(a.counts, again.counts)


def test_camera_without_limit_is_never_exhausted() -> None:
    camera = simulated(snapshots=0)
    assert not camera.open().finite
    frames(camera, 10)
    assert not camera.exhausted


def test_frames_arrive_at_the_rate_with_exact_timestamps() -> None:
    camera = simulated(snapshot_rate_hz=200.0)
    assert camera.open().frame_period_ns == 5_000_000
    begin = time.monotonic()
    received = frames(camera)
    assert time.monotonic() - begin >= SHOTS / 200
    assert [frame.camera_time_ns for frame in received] == [
        5_000_000 * (k + 1) for k in range(SHOTS)
    ]


def test_frame_not_due_is_none_and_delivered_later() -> None:
    camera = simulated(snapshot_rate_hz=1.0)
    camera.open()
    camera.start()
    assert camera.read(0.0) is None
    assert camera.read(0.01) is None
    late = camera.read(60.0)
    assert late is not None
    np.testing.assert_array_equal(late.counts, frames(simulated(), 1)[0].counts)


def test_late_reader_gets_every_frame() -> None:
    camera = simulated(snapshot_rate_hz=1000.0)
    camera.open()
    camera.start()
    time.sleep(0.05)
    received = [camera.read(1.0) for _ in range(SHOTS)]
    assert [frame.frame_id for frame in received if frame] == [0, 1, 2, 3]
    assert camera.counters()["late"] == SHOTS


def test_late_reader_with_few_buffers_loses_the_oldest() -> None:
    camera = simulated(snapshot_rate_hz=100.0, snapshots=0, faults={"buffers": 3})
    camera.open()
    camera.start()
    time.sleep(0.2)
    frame = camera.read(1.0)
    assert frame is not None
    assert frame.frame_id is not None
    assert frame.frame_id >= 16
    assert camera.counters()["overwritten"] == frame.frame_id


def test_software_trigger_gives_one_snapshot_each() -> None:
    camera = simulated(trigger="software")
    assert camera.open().frame_period_ns is None
    camera.start()
    assert camera.read(0.01) is None
    camera.trigger()
    camera.trigger()
    assert camera.read(0.0) is not None
    assert camera.read(0.0) is not None
    assert camera.read(0.0) is None


def test_trigger_of_a_free_running_camera_is_refused() -> None:
    with pytest.raises(CameraError, match="has no trigger"):
        simulated().trigger()


def test_missing_scene_is_reported_on_open() -> None:
    with pytest.raises(FileFormatError, match=r"absent\.mp4"):
        simulated(scene="absent.mp4").open()


def test_dropped_frames_leave_gaps_and_the_others_unchanged() -> None:
    whole = {frame.frame_id: frame for frame in frames(simulated(snapshots=60), 60)}
    camera = simulated(snapshots=60, faults={"drop_probability": 0.3})
    received = frames(camera, 60)
    assert 30 < len(received) < 55
    assert camera.exhausted
    assert camera.counters()["dropped"] + len(received) == 60
    for frame in received:
        np.testing.assert_array_equal(frame.counts, whole[frame.frame_id].counts)


def test_duplicated_frames_repeat_the_id() -> None:
    camera = simulated(snapshots=20, faults={"duplicate_probability": 0.4})
    received = frames(camera, 40)
    ids = [frame.frame_id for frame in received]
    assert sorted(set(ids)) == list(range(20))
    repeated = [(a, b) for a, b in pairwise(received) if a.frame_id == b.frame_id]
    assert len(repeated) == camera.counters()["duplicated"] == len(received) - 20 > 3
    for a, b in repeated:
        np.testing.assert_array_equal(a.counts, b.counts)
        assert not np.shares_memory(a.counts, b.counts)


def test_ids_wrap_around() -> None:
    camera = simulated(snapshots=7, faults={"id_first": 1, "id_last": 3})
    assert [frame.frame_id for frame in frames(camera, 7)] == [1, 2, 3, 1, 2, 3, 1]


def test_faults_depend_on_the_seed() -> None:
    def ids(seed: int) -> list[int | None]:
        camera = simulated(seed=seed, snapshots=40, faults={"drop_probability": 0.5})
        return [frame.frame_id for frame in frames(camera, 40)]

    assert ids(1) == ids(1) != ids(2)


def test_stall_delays_frames() -> None:
    camera = simulated(faults={"stall_every": 2, "stall_s": 0.1})
    frames(camera, 2)
    assert camera.read(0.01) is None
    assert camera.read(1.0) is not None
    assert camera.counters()["stalls"] == 1


def test_disconnected_camera_is_lost_until_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(
        "sci_stream_drivers.simulated.faults.time", SimpleNamespace(monotonic=lambda: now_s)
    )
    whole = frames(simulated())
    camera = simulated(faults={"disconnect_after": 2, "return_after_s": 2.0})
    frames(camera, 2)
    for _ in range(2):
        with pytest.raises(CameraLost, match="disconnected"):
            camera.read(0.0)
    with pytest.raises(CameraLost):
        camera.start()
    camera.stop()
    camera.close()
    with pytest.raises(CameraError, match="returns in"):
        camera.open()
    now_s += 2.0
    rest = frames(camera, 2)
    assert [frame.frame_id for frame in rest] == [0, 1]
    np.testing.assert_array_equal(rest[0].counts, whole[2].counts)
    assert camera.exhausted


def test_number_of_disconnects_is_limited() -> None:
    camera = simulated(snapshots=6, faults={"disconnect_after": 2, "disconnects": 2})
    for _ in range(2):
        frames(camera, 2)
        with pytest.raises(CameraLost):
            camera.read(0.0)
    assert len(frames(camera, 2)) == 2
    assert camera.exhausted


@pytest.mark.parametrize("wave", ["sine", "flash"])
def test_lamp_changes_the_light_of_frames_and_no_truth(wave: str) -> None:
    size = {"width_px": 32, "height_px": 32, "bayer": "none", "noise": False, "truth": True}
    camera = SimulatedCamera(
        SimulatedOptions(
            scene="static", lamp_depth=0.5, lamp_wave=wave, snapshot_rate_hz=30, **size
        )
    )
    camera.open()
    camera.start()
    frame = camera.read(10.0)
    assert frame is not None
    assert frame.truth is not None
    assert np.ptp(frame.truth.mean((1, 2))) < 0.5
    light = camera._options.light(0)
    assert (light.max() - light.min()) / 2 == pytest.approx(0.5, abs=0.03)
    calibration = camera.calibration()
    lit = frame.truth / 255 * (light / light.mean())[:, None, None]
    y = (calibration.phi * lit).sum(0)
    np.testing.assert_allclose(calibration.measurement(frame.counts), y, atol=0.03)
    assert calibration.exposure_ns == round(1e9 / 30)


@pytest.mark.parametrize("name", ["pan", "belt"])
def test_carried_image_moves_as_a_whole(name: str) -> None:
    options = SimulatedOptions(scene=name, width_px=64, height_px=64, speed=4)
    scene = make_scene(options)
    before, after = scene.render(0).copy(), scene.render(10)  # 6 pixels later
    x_px, y_px = (5, 4) if name == "pan" else (6, 0)
    moved = before[y_px:, x_px:][4:-4, 4:-4]
    assert (
        np.corrcoef(moved.ravel(), after[: 64 - y_px, : 64 - x_px][4:-4, 4:-4].ravel())[0, 1] > 0.97
    )
