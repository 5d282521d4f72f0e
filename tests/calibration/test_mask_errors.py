"""Self-calibration: errors of single masks are found in snapshots, and nothing is where there is
none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sci_stream.calibration.mask_errors import (
    Brightness,
    MaskErrorEstimator,
    MaskInformation,
    trend_of,
)
from sci_stream.calibration.monitor import CalibrationMonitor
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import MaskCorrection, MaskError
from sci_stream.optics.mask_shift import corrected_masks
from tests.calibration.moved_masks import Rig

CPU = torch.device("cpu")
PHI = np.random.default_rng(0).random((4, 16, 16), np.float32)
pytestmark = pytest.mark.usefixtures("one_thread")


def wrong(calibration: Calibration, correction: MaskCorrection) -> Calibration:
    """Return a calibration with these errors; what corrects it has the opposite sign."""
    phi = corrected_masks(torch.from_numpy(calibration.phi.copy()), correction).numpy()
    dark = calibration.dark - np.float32(correction.black * calibration.full_scale_dn)
    return replace(calibration, phi=np.clip(phi, 0, 1), dark=dark)


def monitored(rig: Rig, calibration: Calibration, snapshots: int) -> CalibrationMonitor:
    monitor = CalibrationMonitor(calibration, CPU, every=1, correct=True)
    video = np.zeros((calibration.n_frames, *calibration.shape), np.float32)
    for _ in range(snapshots):
        monitor.check(replace(rig.snapshot(), calibration_hash=calibration.hash), video)
    return monitor


def rig() -> Rig:
    return Rig(width_px=128, height_px=128, mask="random")


def test_shift_and_gain_of_each_mask_are_found_in_few_snapshots() -> None:
    rng, camera = np.random.default_rng(0), rig()
    shifts, gains = 0.2 * rng.standard_normal((8, 2)), 0.05 * rng.standard_normal(8)
    errors = tuple(
        MaskError(x, y, 0.0, g) for (x, y), g in zip(shifts.tolist(), gains.tolist(), strict=True)
    )
    calibration = wrong(camera.calibration, MaskCorrection(masks=errors))
    found = monitored(camera, calibration, 4).correction
    corrected = corrected_masks(torch.from_numpy(calibration.phi.copy()), found).numpy()

    def error(phi: np.ndarray) -> float:
        true, inner = camera.calibration.phi, (..., slice(8, -8), slice(8, -8))
        scale = np.sum(phi * true) / np.sum(phi * phi)  # brightness of everything is not observable
        return float(np.std((scale * phi - true)[inner]) / np.std(true))

    assert error(calibration.phi) > 0.25
    assert error(corrected) < error(calibration.phi) / 2


def test_linear_gains_are_found_from_consecutive_snapshots() -> None:
    """Within a snapshot they are a scene that fades in."""
    camera = rig()
    gains = np.linspace(-0.05, 0.05, 8)
    errors = tuple(MaskError(0.0, 0.0, 0.0, gain) for gain in gains.tolist())
    found = monitored(camera, wrong(camera.calibration, MaskCorrection(masks=errors)), 5).correction
    assert trend_of(np.array([mask.gain for mask in found.masks])) == pytest.approx(
        -0.05, abs=0.005
    )


@pytest.mark.parametrize(("fade", "trend"), [(0.0, 0.04), (-0.03, 0.0)], ids=["still", "fading"])
def test_scene_that_fades_steadily_is_no_trend_of_gains(fade: float, trend: float) -> None:
    estimator, light = MaskErrorEstimator(PHI), np.linspace(0.3, 1.0, 50)
    information = np.diag(
        [1e6] * 12 + [0.0] * 4 + [1e6]
    )  # of gains, each snapshot by itself shows nothing
    for seq in range(5):
        # From the middle of a snapshot to that of the next are four frames; from its first to its
        # last one, three.
        level = light * (1 + 4 * fade * seq)
        slope = light * 1.5 * fade + trend * level
        estimator.add(
            MaskInformation(information, np.zeros(17), 0.0, Brightness(level, slope)),
            continues=seq > 0,
        )
    masks, _ = estimator.errors(estimator.theta)
    assert trend_of(np.array([mask.gain for mask in masks])) == pytest.approx(trend, abs=0.003)


def test_black_level_is_found() -> None:
    camera = rig()
    black = 0.1
    found = monitored(camera, wrong(camera.calibration, MaskCorrection(black=black)), 4).correction
    assert found.black == pytest.approx(black, rel=0.1)


def test_right_masks_are_left_alone() -> None:
    camera = rig()
    monitor = monitored(camera, camera.calibration, 4)
    assert monitor.correction.own.is_none
    assert monitor.errors is not None
    assert 0 <= monitor.errors.log_odds < 5


def test_change_of_light_corrects_nothing_in_the_long_run() -> None:
    """Each snapshot alone shows gains with certainty, but never the same ones."""
    estimator, rng = MaskErrorEstimator(PHI), np.random.default_rng(1)
    information = np.diag(np.full(17, 1e6))
    for _ in range(8):
        gains = np.concatenate([np.zeros(12), 0.1 * rng.standard_normal(4), [0.0]])
        estimator.add(MaskInformation(information, information @ gains))
    assert not estimator.theta.any()


def test_steady_gains_are_found_with_the_first_snapshot() -> None:
    estimator, information = MaskErrorEstimator(PHI), np.diag(np.full(17, 1e6))
    gains = np.concatenate([np.zeros(12), [1.0, -0.02, 0.03, -0.3], [0.0]])
    for count in range(1, 4):
        estimator.add(MaskInformation(information, information @ gains))
        masks, _ = estimator.errors(estimator.theta)
        assert [mask.gain for mask in masks] == pytest.approx(gains[12:16], abs=5e-3), count
    assert estimator.log_odds > 5
