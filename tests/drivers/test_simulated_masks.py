from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from sci_stream.model import Array
from sci_stream_drivers.simulated import SimulatedCamera
from sci_stream_drivers.simulated.masks import MaskOptics, moving_patterns
from sci_stream_drivers.simulated.options import SimulatedOptions


def masks(**options: Any) -> Array:
    return MaskOptics(
        SimulatedOptions.model_validate({"width_px": 64, "height_px": 48, **options})
    ).stack()


@pytest.mark.parametrize("kind", ["shifting", "moving", "random"])
def test_masks_are_grey_transmissions(kind: str) -> None:
    phi = masks(mask=kind)
    assert phi.shape == (8, 48, 64)
    assert phi.dtype == np.float32
    assert phi.min() >= 0
    assert phi.max() <= 1
    assert len(np.unique(phi)) > 500
    assert 0.3 < phi.mean() < 0.6


def test_shifting_mask_moves_one_pixel_per_frame() -> None:
    phi = masks(mask="shifting", mask_unevenness=0.0)
    for b in range(len(phi) - 1):
        np.testing.assert_array_equal(phi[b + 1, 1:], phi[b, :-1])


def test_moving_masks_are_alike_as_measured_ones() -> None:
    phi = masks(mask="moving", mask_unevenness=0.0, mask_blur_px=0.6, mask_closed=0.0)
    correlation = np.corrcoef(phi.reshape(8, -1))
    assert correlation.diagonal(1).mean() == pytest.approx(0.64, abs=0.08)
    assert correlation.diagonal(4).max() < 0.15
    assert np.median(phi.std(0) / phi.mean(0)) == pytest.approx(0.63, abs=0.1)
    np.testing.assert_allclose(phi[1, 1:], phi[0, :-1], atol=1e-3)


def test_late_exposure_sees_the_next_positions() -> None:
    now, late = (
        moving_patterns(6, (24, 24), np.random.default_rng(0), late=late) for late in (0.0, 1.0)
    )
    np.testing.assert_allclose(now[1:], late[:-1])


def test_random_masks_are_independent() -> None:
    phi = masks(mask="random").reshape(8, -1)
    correlation = np.corrcoef(phi)
    assert np.abs(correlation - np.eye(8)).max() < 0.15


def test_without_blur_gain_or_leak_masks_are_binary() -> None:
    phi = masks(mask_blur_px=0.0, mask_unevenness=0.0, mask_closed=0.0)
    assert set(np.unique(phi)) == {0.0, 1.0}


def test_density_is_the_fraction_that_is_open() -> None:
    phi = masks(
        mask="random", mask_density=0.2, mask_blur_px=0.0, mask_unevenness=0.0, mask_closed=0.0
    )
    assert phi.mean() == pytest.approx(0.2, abs=0.01)


def test_transmission_falls_off_smoothly() -> None:
    even, uneven = masks(mask_unevenness=0.0), masks(mask_unevenness=0.4)
    seen = even[0] > 0.1
    gain = uneven[0][seen] / even[0][seen]
    assert gain.max() <= 1.001
    assert gain.min() == pytest.approx(0.6, abs=0.03)


def test_another_seed_gives_other_masks() -> None:
    assert not np.array_equal(masks(seed=1), masks(seed=2))


def test_calibration_hash_is_equal_in_another_process() -> None:
    program = (
        "from sci_stream_drivers.simulated import *;"
        "camera = SimulatedCamera(SimulatedOptions(width_px=32, height_px=32, seed=4));"
        "camera.open(); print(camera.calibration().hash)"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    ).stdout
    camera = SimulatedCamera(SimulatedOptions(width_px=32, height_px=32, seed=4))
    camera.open()
    assert camera.calibration().hash == other.strip()


def stacks(shift_px: tuple[float, float], **options: Any) -> tuple[Array, Array]:
    """Return the masks without and with displacement."""
    size = {"width_px": 64, "height_px": 48, "mask_unevenness": 0.0, "mask_shift_px": shift_px}
    optics = MaskOptics(SimulatedOptions.model_validate({**size, **options}))
    return optics.stack(), optics.stack(shift_px)


@pytest.mark.parametrize("kind", ["shifting", "moving", "random"])
def test_whole_pixel_displacement_moves_the_masks(kind: str) -> None:
    rest, moved = stacks((2.0, -1.0), mask=kind)
    np.testing.assert_array_equal(moved[:, :-1, 2:], rest[:, 1:, :-2])


def test_displacement_without_blur_weights_by_overlap() -> None:
    rest, moved = stacks((0.25, 0.0), mask="random", mask_blur_px=0.0)
    expected = 0.75 * rest[:, :, 1:] + 0.25 * rest[:, :, :-1]
    np.testing.assert_allclose(moved[:, :, 1:], expected, atol=1 / 4096)


def test_displacement_does_not_move_the_unevenness() -> None:
    rest, moved = stacks(
        (1.0, 0.0), mask="random", mask_blur_px=0.0, mask_unevenness=0.4, mask_closed=1e-6
    )
    at_rest, displaced = rest[0, :, :-1], moved[0, :, 1:]
    seen = at_rest > 0.1
    assert np.abs(displaced[seen] / at_rest[seen] - 1).max() > 0.005


def test_masks_at_rest_do_not_depend_on_mask_travel() -> None:
    rest, _ = stacks((3.0, 2.0), mask="random")
    np.testing.assert_array_equal(rest, masks(mask="random", mask_unevenness=0.0))


@pytest.mark.parametrize("kind", ["shifting", "moving", "random"])
def test_jitter_and_gain_are_errors_of_masks_in_snapshots(kind: str) -> None:
    size = {"width_px": 64, "height_px": 48, "mask_unevenness": 0.0, "mask": kind}
    options = SimulatedOptions.model_validate(
        {**size, "mask_jitter_px": 0.2, "frame_gain_error": 0.05}
    )
    optics, right = MaskOptics(options), MaskOptics(SimulatedOptions.model_validate(size)).stack()
    np.testing.assert_array_equal(optics.stack(), right)
    exposed = optics.exposed()
    np.testing.assert_array_equal(exposed, optics.exposed())
    errors = np.abs(exposed - right).mean((1, 2))
    assert errors.min() > 0.005
    assert len(np.unique(errors)) == len(errors), "each mask has its own error"
    gains = exposed.mean((1, 2)) / right.mean((1, 2))
    assert 0.02 < gains.std() < 0.1


def test_drift_stops_at_its_limit() -> None:
    options = SimulatedOptions(
        mask_shift_px=(0.5, 0.0), mask_drift_px_per_snapshot=(0.01, -0.02), mask_drift_limit_px=1.0
    )
    assert options.mask_position_px(0) == (0.5, 0.0)
    assert options.mask_position_px(10) == pytest.approx((0.6, -0.2))
    assert options.mask_position_px(10_000) == pytest.approx((1.5, -1.0))
