from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from pydantic import ValidationError

from sci_stream.errors import FileFormatError
from sci_stream.model import BayerPhase
from sci_stream_drivers.replay import ReplayCamera, ReplayOptions
from tests.drivers.camera_kit import SHOTS, B, Clock, H, Published, W, frames, record


def replay(path: Path, **options: Any) -> ReplayCamera:
    return ReplayCamera(ReplayOptions.model_validate({"path": path, **options}))


@pytest.fixture
def mat(tmp_path: Path, published: Published) -> Path:
    return published.save_v5(tmp_path / "scene.mat")


def test_published_simulation_plays_with_truth_and_scale(mat: Path, published: Published) -> None:
    camera = replay(mat)
    capabilities = camera.open()
    assert capabilities.has_truth
    assert (capabilities.pixel_format, capabilities.bit_depth) == ("Mono16", 16)
    calibration = camera.calibration()
    assert calibration.full_scale_dn == 255.0
    for n, frame in enumerate(frames(camera)):
        np.testing.assert_array_equal(frame.counts, published.meas[:, :, n])
        np.testing.assert_array_equal(
            frame.truth, np.moveaxis(published.orig, -1, 0)[n * B : (n + 1) * B]
        )


def test_truth_of_any_shape_plays_as_far_as_it_goes(tmp_path: Path, published: Published) -> None:
    split = np.moveaxis(published.orig.reshape(H, W, SHOTS, B), 2, 3)  # (H, W, B, N)
    for name, orig in (("split", split), ("first", published.orig[:, :, : 2 * B])):
        truth = [
            frame.truth
            for frame in frames(replay(published.save_v5(tmp_path / f"{name}.mat", orig=orig)))
        ]
        for n in range(SHOTS if name == "split" else 2):
            np.testing.assert_array_equal(
                truth[n], np.moveaxis(published.orig, -1, 0)[n * B : (n + 1) * B]
            )
    assert truth[2:] == [None, None]


@pytest.mark.parametrize("scale", [1 / 255, 0.37, 1.0, 10.0])
def test_scale_is_estimated_from_the_truth(
    tmp_path: Path, published: Published, scale: float
) -> None:
    camera = replay(published.save_v73(tmp_path / "scene.mat", meas=published.meas * scale))
    camera.open()
    assert camera.calibration().full_scale_dn == pytest.approx(255 * scale, rel=1e-6)


def test_grey_masks_are_divided_by_their_maximum(tmp_path: Path, published: Published) -> None:
    mask = np.random.default_rng(1).integers(0, 114, (H, W, B)).astype(np.uint8)
    mask[0, 0, 0] = 113
    meas = (published.orig.reshape(H, W, SHOTS, B).astype(float) * mask[:, :, None, :]).sum(axis=-1)
    camera = replay(published.save_v5(tmp_path / "grey.mat", mask=mask, meas=meas))
    camera.open()
    np.testing.assert_allclose(camera.calibration().phi, np.moveaxis(mask, -1, 0) / 113, rtol=1e-6)
    assert camera.calibration().full_scale_dn == pytest.approx(255 * 113)


def test_truth_on_the_unit_scale_stays_float(tmp_path: Path, published: Published) -> None:
    camera = replay(
        published.save_v5(
            tmp_path / "unit.mat", orig=published.orig / 255, meas=published.meas / 255
        )
    )
    assert camera.open().pixel_format == "Mono32f"
    frame = frames(camera, 1)[0]
    assert frame.counts.dtype == np.float32
    assert frame.truth is not None
    assert frame.truth.dtype == np.float32
    assert camera.calibration().full_scale_dn == 1.0


def test_masks_that_do_not_explain_the_measurement_are_refused(
    tmp_path: Path, published: Published
) -> None:
    path = published.save_v5(tmp_path / "odd.mat", mask=published.mask[:, :, ::-1])
    with pytest.raises(FileFormatError, match="do not explain"):
        replay(path).open()
    assert not replay(path, truth=False, full_scale_dn=255.0).open().has_truth


def test_measurement_without_truth_fills_the_range(tmp_path: Path, published: Published) -> None:
    path = tmp_path / "capture.mat"
    scipy.io.savemat(path, {"meas": published.meas[:, :, 0] * 0.123, "mask": published.mask})
    camera = replay(path)
    assert not camera.open().has_truth
    calibration = camera.calibration()
    frame = frames(camera, 1)[0]
    light = calibration.phi.sum(axis=0)
    brightness = (calibration.measurement(frame.counts) / np.maximum(light, 1))[light > 0.5]
    assert np.percentile(brightness, 99.5) == pytest.approx(1.0, rel=1e-3)
    assert camera.exhausted


def test_dark_measurement_is_refused(tmp_path: Path, published: Published) -> None:
    path = tmp_path / "dark.mat"
    scipy.io.savemat(path, {"meas": np.zeros((H, W)), "mask": published.mask})
    with pytest.raises(FileFormatError, match="dark"):
        replay(path).open()


def test_bayer_phase_comes_from_the_options(mat: Path) -> None:
    camera = replay(mat, bayer="GBRG")
    assert camera.open().pixel_format == "BayerGB16"
    assert camera.calibration().bayer is BayerPhase.GBRG


def test_loop_continues_ids_endlessly(mat: Path) -> None:
    camera = replay(mat, loop=True)
    assert not camera.open().finite
    received = frames(camera, 8)
    assert [frame.frame_id for frame in received] == list(range(8))
    np.testing.assert_array_equal(received[0].counts, received[SHOTS].counts)
    assert not camera.exhausted


def test_rate_is_kept(mat: Path, clock: Clock) -> None:
    camera = replay(mat, snapshot_rate_hz=100.0)
    assert camera.open().frame_period_ns == 10_000_000
    camera.start()
    began_s = clock.now_s
    assert camera.read(0.0) is None
    assert camera.read(0.004) is None
    for number in range(1, SHOTS + 1):
        assert camera.read(1.0) is not None
        assert clock.now_s - began_s == pytest.approx(0.01 * number, abs=0.001)


def test_recording_plays_with_timestamps_and_calibration(recording: Callable[..., Path]) -> None:
    camera = replay(recording())
    capabilities = camera.open()
    assert (capabilities.serial, capabilities.bit_depth, capabilities.bayer) == (
        "7",
        12,
        BayerPhase.GRBG,
    )
    assert (capabilities.pixel_format, capabilities.clock) == ("BayerGR12", "recorded")
    received = frames(camera)
    assert [frame.camera_time_ns for frame in received] == [0, 1_000_000, 2_000_000, 3_000_000]
    assert [int(frame.counts[0, 0]) for frame in received] == [100, 101, 102, 103]
    assert camera.calibration().full_scale_dn == 100.0


def test_gaps_of_the_recorded_run_are_replayed(recording: Callable[..., Path]) -> None:
    camera = replay(recording(seqs=(0, 1, 4, 5), dropped_before={1: 2, 5: 1}))
    assert [frame.frame_id for frame in frames(camera)] == [0, 3, 6, 8]


def test_looped_recording_omits_timestamps(recording: Callable[..., Path]) -> None:
    camera = replay(recording(seqs=(0, 2)), loop=True)
    assert camera.open().clock == "none"
    received = frames(camera)
    assert [frame.frame_id for frame in received] == [0, 2, 3, 5]
    assert {frame.camera_time_ns for frame in received} == {None}


def test_recording_without_raw_snapshots_is_refused(recording: Callable[..., Path]) -> None:
    with pytest.raises(FileFormatError, match="no raw snapshots"):
        replay(recording(seqs=())).open()


def test_all_segments_are_played(tmp_path: Path) -> None:
    path = record(tmp_path / "run.h5", [(0, 1), (2, 3, 6), (7,)], {6: 1})
    camera = replay(path)
    received = frames(camera, 6)
    assert [frame.frame_id for frame in received] == [0, 1, 2, 3, 7, 8]
    assert [int(frame.counts[0, 0]) for frame in received] == [100, 101, 102, 103, 106, 107]
    assert [frame.camera_time_ns for frame in received] == [
        seq * 1_000_000 for seq in (0, 1, 2, 3, 6, 7)
    ]
    assert camera.exhausted
    later = replay(tmp_path / "run_002.h5")
    assert [int(frame.counts[0, 0]) for frame in frames(later, 1)] == [107]
    assert later.exhausted


def test_timestamps_of_a_restarted_clock_are_omitted(tmp_path: Path) -> None:
    camera = replay(
        record(tmp_path / "run.h5", [(0, 1), (2, 3)], {}, epoch_of=lambda seq: seq // 2)
    )
    assert camera.open().clock == "none"
    received = frames(camera, 4)
    assert [frame.frame_id for frame in received] == [0, 1, 2, 3]
    assert {frame.camera_time_ns for frame in received} == {None}


def test_recorded_chunk_data_is_replayed(tmp_path: Path) -> None:
    camera = replay(record(tmp_path / "run.h5", [(0, 1), (2, 3)], {}, chunks=True))
    assert camera.open().chunks == {"ExposureTime": "us"}
    received = frames(camera, 4)
    assert [frame.chunks for frame in received] == [
        {"ExposureTime": 100.0},
        {},
        {"ExposureTime": 102.0},
        {},
    ]


@pytest.mark.parametrize("name", ["absent.mat", "absent.h5", "broken.mat", "broken.h5"])
def test_invalid_file_is_one_clear_error(tmp_path: Path, name: str) -> None:
    if name.startswith("broken"):
        (tmp_path / name).write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(FileFormatError, match=name):
        replay(tmp_path / name).open()


def test_unknown_options_are_refused(mat: Path) -> None:
    with pytest.raises(ValidationError, match="speed"):
        replay(mat, speed=3)


def test_published_real_capture_fills_the_range(data_dir: Path) -> None:
    camera = replay(data_dir / "real" / "4fan14_cacti.mat")
    capabilities = camera.open()
    assert (capabilities.n_frames, capabilities.has_truth) == (14, False)
    calibration = camera.calibration()
    y = calibration.measurement(frames(camera, 1)[0].counts)
    brightness = y / np.maximum(calibration.phi.sum(axis=0), 1)
    assert 0.1 < np.median(brightness) < 0.5
    assert 0.7 < np.percentile(brightness, 99) <= 1.0


def test_published_traffic_set_plays_its_six_shots(data_dir: Path) -> None:
    camera = replay(data_dir / "benchmark" / "traffic48_cacti.mat")
    received = frames(camera, 6)
    assert len(received) == 6
    assert camera.exhausted
    calibration = camera.calibration()
    assert calibration.full_scale_dn == 255.0
    for frame in received:
        assert frame.truth is not None
        model = np.einsum("bhw,bhw->hw", calibration.phi, frame.truth / 255)
        np.testing.assert_allclose(calibration.measurement(frame.counts), model, atol=1e-5)
