"""The contract of every camera, for all drivers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from sci_stream.model import CameraCapabilities
from sci_stream.ports import Camera
from tests.drivers.camera_kit import SHOTS, MakeCamera, frames

pytestmark = pytest.mark.rig


@pytest.fixture
def camera(make_camera: MakeCamera) -> Iterator[Camera]:
    made = make_camera()
    yield made
    made.close()


@pytest.fixture
def finite(camera: Camera) -> Camera:
    """A camera that ends, and delivers the same frames after a restart."""
    if not camera.open().finite:
        pytest.skip("a live camera goes on, and does not repeat itself")
    camera.close()
    return camera


def test_camera_satisfies_the_protocol(camera: Camera) -> None:
    assert isinstance(camera, Camera)


def test_open_twice_returns_equal_capabilities(camera: Camera) -> None:
    first = camera.open()
    assert isinstance(first, CameraCapabilities)
    assert camera.open() == first


def test_frames_match_the_capabilities(camera: Camera) -> None:
    capabilities = camera.open()
    for frame in frames(camera):
        assert frame.counts.shape == (capabilities.height_px, capabilities.width_px)
        assert frame.counts.dtype in (np.uint8, np.uint16, np.float32)
        assert frame.counts.min() >= 0
        assert frame.counts.max() <= 2**capabilities.bit_depth - 1
        assert str(capabilities.bit_depth) in capabilities.pixel_format
        assert (capabilities.bayer is not None) == capabilities.pixel_format.startswith("Bayer")
        assert (frame.truth is not None) == capabilities.has_truth
        assert (frame.camera_time_ns is not None) == (capabilities.clock != "none")


def test_frame_ids_are_consecutive(camera: Camera) -> None:
    capabilities = camera.open()
    ids = capabilities.frame_ids
    received = [frame.frame_id for frame in frames(camera)]
    assert received[0] == ids.first or not capabilities.finite  # a live one may begin anywhere
    for previous, current in pairwise(received):
        assert previous is not None
        assert current is not None
        assert ids.missed(previous, current) == 0


def test_timestamps_increase(camera: Camera) -> None:
    received = frames(camera)
    assert len(received) == SHOTS
    for previous, current in pairwise(received):
        assert current.host_time_ns >= previous.host_time_ns
        if current.camera_time_ns is not None:
            assert previous.camera_time_ns is not None
            assert current.camera_time_ns > previous.camera_time_ns


def test_calibration_fits_the_frames(camera: Camera) -> None:
    capabilities = camera.open()
    calibration = camera.calibration()
    if calibration is None:
        pytest.skip("this camera does not know its masks")
    assert calibration.shape == (capabilities.height_px, capabilities.width_px)
    assert calibration.n_frames == capabilities.n_frames
    assert calibration.bayer == capabilities.bayer
    for frame in frames(camera):
        y = calibration.measurement(frame.counts)
        assert y.max() <= calibration.n_frames * 1.1


def test_truth_explains_the_counts(camera: Camera) -> None:
    capabilities = camera.open()
    calibration = camera.calibration()
    if not capabilities.has_truth:
        pytest.skip("this camera knows no truth")
    assert calibration is not None
    for frame in frames(camera):
        assert frame.truth is not None
        assert frame.truth.shape == calibration.phi.shape
        assert frame.truth.dtype == np.uint8
        model = np.einsum("bhw,bhw->hw", calibration.phi, frame.truth / 255)
        assert np.sqrt(np.mean((calibration.measurement(frame.counts) - model) ** 2)) < 0.02


def test_frame_is_unchanged_by_later_reads(camera: Camera) -> None:
    camera.open()
    camera.start()
    first = camera.read(5.0)
    assert first is not None
    before = first.counts.copy()
    assert len(frames(camera, SHOTS - 1)) == SHOTS - 1
    np.testing.assert_array_equal(first.counts, before)


def test_frame_is_owned_by_the_receiver(finite: Camera, make_camera: MakeCamera) -> None:
    untouched = [frame.counts for frame in frames(make_camera())]
    camera = make_camera()
    camera.open()
    camera.start()
    for expected in untouched:
        frame = camera.read(5.0)
        assert frame is not None
        np.testing.assert_array_equal(frame.counts, expected)
        frame.counts[:] = 0
        if frame.truth is not None:
            frame.truth[:] = 0


def test_equal_options_give_equal_frames(finite: Camera, make_camera: MakeCamera) -> None:
    received, hashes = [], []
    for camera in (make_camera(), make_camera()):
        received.append(frames(camera))
        calibration = camera.calibration()
        assert calibration is not None
        hashes.append(calibration.hash)
        camera.close()
    for a, b in zip(*received, strict=True):
        np.testing.assert_array_equal(a.counts, b.counts)
        assert a.frame_id == b.frame_id
    assert hashes[0] == hashes[1]


def test_finite_camera_is_exhausted_after_its_last_frame(finite: Camera) -> None:
    assert finite.open().finite
    finite.start()
    for _ in range(SHOTS):
        assert not finite.exhausted
        assert finite.read(5.0) is not None
    assert finite.exhausted
    assert finite.read(0.0) is None


def test_start_after_stop_restarts(camera: Camera) -> None:
    first = frames(camera, 2)
    camera.stop()
    again = frames(camera)
    assert len(again) == SHOTS
    assert again[0].frame_id == first[0].frame_id
    if camera.open().finite:
        np.testing.assert_array_equal(again[0].counts, first[0].counts)


def test_open_after_close_works(camera: Camera) -> None:
    first = frames(camera, 1)
    camera.close()
    again = frames(camera, 1)
    if camera.open().finite:
        np.testing.assert_array_equal(again[0].counts, first[0].counts)
    assert camera.counters()["delivered"] == 1


def test_start_twice_has_no_effect(camera: Camera) -> None:
    frames(camera, 1)
    camera.start()
    received = [camera.read(5.0) for _ in range(SHOTS - 1)]
    assert None not in received
    assert camera.exhausted == camera.open().finite


def test_stop_and_close_are_allowed_in_any_state(camera: Camera) -> None:
    camera.stop()
    camera.close()
    frames(camera, 1)
    for _ in range(2):
        camera.stop()
    for _ in range(2):
        camera.close()


def test_calls_out_of_order_raise_runtime_error(camera: Camera) -> None:
    with pytest.raises(RuntimeError, match="open"):
        camera.start()
    with pytest.raises(RuntimeError, match="open"):
        camera.calibration()
    camera.open()
    with pytest.raises(RuntimeError, match="start"):
        camera.read(0.0)


def test_counters_count_delivered_frames(camera: Camera) -> None:
    frames(camera, 3)
    assert camera.counters()["delivered"] == 3
