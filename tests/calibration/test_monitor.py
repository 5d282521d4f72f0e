from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from sci_stream.calibration.diagnosis import findings, is_withheld, withhold
from sci_stream.calibration.monitor import (
    LEARNING_SNAPSHOTS,
    CalibrationMonitor,
    relative_gain,
)
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings
from sci_stream.reports import CalibrationHealth, SolveReport, Start
from tests.calibration.moved_masks import Rig

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


def run(
    rig: Rig,
    snapshots: int,
    *,
    correct: bool,
    every: int = 4,
    calibration: Calibration | None = None,
    iterations: int = 4,
) -> tuple[list[float], dict[int, CalibrationHealth]]:
    """Reconstruct snapshots one by one as a node does; return the PSNR of each, and assessments by
    snapshot.
    """
    calibration = calibration or rig.calibration
    settings = replace(default_settings(CPU, "tv"), iterations=iterations)
    engine = Engine(calibration, make_denoiser("tv", CPU), CPU, settings)
    monitor = CalibrationMonitor(calibration, CPU, every=every, correct=correct)
    psnr_db, assessed = [], {}
    for seq in range(snapshots):
        snapshot = replace(rig.snapshot(), calibration_hash=calibration.hash)
        video, report = engine.reconstruct(snapshot)
        before = monitor.correction
        health = monitor.check(snapshot, video)
        if monitor.correction != before:
            engine.correct_masks(monitor.correction)
        if health is not None:
            assessed[seq] = health
        assert report.psnr_db is not None
        psnr_db.append(report.psnr_db)
    return psnr_db, assessed


def small(**options: Any) -> Rig:
    return Rig(width_px=128, height_px=128, mask="random", **options)


def test_correction_recovers_the_loss_of_masks_half_a_pixel_off() -> None:
    right, _ = run(small(), 4, correct=False)
    wrong, uncorrected = run(small(mask_shift_px=(0.5, 0.0)), 4, correct=False)
    repaired, corrected = run(small(mask_shift_px=(0.5, 0.0)), 4, correct=True)
    assert np.mean(right) - np.mean(wrong) > 3
    assert (
        np.mean(right[1:]) - np.mean(repaired[1:]) < (np.mean(right[1:]) - np.mean(wrong[1:])) / 4
    )
    assert corrected[max(corrected)].corrected
    assert not uncorrected[max(uncorrected)].corrected


def test_masks_in_place_are_not_corrected() -> None:
    plain, _ = run(small(), 4, correct=False)
    watched, assessed = run(small(), 4, correct=True, every=1)
    assert np.mean(watched) == pytest.approx(np.mean(plain), abs=0.05)
    assert max(health.shift_px or 0 for health in assessed.values()) < 0.03
    assert len(assessed) == 4


def test_fading_scene_behind_a_moving_pattern_shows_no_geometry() -> None:
    """One half fades in and the other out: each draws the sum of the masks to another side."""
    size, frames = 128, 8
    pattern = np.random.default_rng(0).random((size, size + frames)) < 0.5
    phi = np.stack([pattern[:, b : b + size] for b in range(frames)]).astype(np.float32)
    fade = np.linspace(-1, 1, frames)[:, None, None] * np.linspace(-1, 1, size)
    counts = (phi * (0.5 + 0.15 * fade)).sum(0).astype(np.float32)
    calibration = Calibration(phi=phi)
    monitor = CalibrationMonitor(calibration, CPU, every=1, correct=True)
    monitor.measure(calibration.snapshot("fading", 0, counts))
    assert monitor.correction.is_none


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 400 reconstructions
@pytest.mark.parametrize("scene", ["fast", "slow"])
def test_slow_drift_costs_less_than_half_a_decibel(scene: str) -> None:
    drift_px = 0.0025
    still, _ = run(small(scene=scene), 200, correct=False, every=20, iterations=8)
    drifting, assessed = run(
        small(scene=scene, mask_drift_px_per_snapshot=(drift_px, 0.0)),
        200,
        correct=True,
        every=20,
        iterations=8,
    )
    assert np.mean(still) - np.mean(drifting) < 0.5
    last = max(assessed)
    assert last > 180
    assert assessed[last].shift_x_px == pytest.approx(last * drift_px, abs=0.06)


def test_reversed_mask_order_is_recognised() -> None:
    rig = small()
    backward = replace(rig.calibration, phi=rig.calibration.phi[::-1])
    _, assessed = run(rig, 6, correct=False, every=1, calibration=backward)
    last = assessed[5]
    assert (last.order, last.first_mask) == ("reversed", 7)
    # A single snapshot shows no fault: the masks themselves are right.
    assert last.match is not None
    assert last.match > 0.8


def test_monitor_assesses_often_at_first_then_every_n() -> None:
    rig = small(scene="static", n_frames=2)
    monitor = CalibrationMonitor(rig.calibration, CPU, every=8, correct=False)
    snapshot = rig.snapshot()
    video = np.zeros((2, 128, 128), np.float32)
    looked = [monitor.check(snapshot, video) is not None for _ in range(40)]
    times = np.flatnonzero(looked)
    assert times[:LEARNING_SNAPSHOTS].tolist() == list(range(LEARNING_SNAPSHOTS))
    assert set(np.diff(times[-3:])) == {8}


def test_paced_monitor_looks_once_a_second_at_any_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred snapshots a second, all of which it assessed otherwise."""
    rig = small(scene="static", n_frames=2)
    now_s = 0.0
    monkeypatch.setattr(
        "sci_stream.calibration.monitor.time", SimpleNamespace(monotonic=lambda: now_s)
    )
    monitor = CalibrationMonitor(rig.calibration, CPU, every=1, paced=True)
    snapshot = rig.snapshot()
    video = np.zeros((2, 128, 128), np.float32)
    looked = []
    for seq in range(300):
        now_s = seq / 100
        identified = replace(snapshot, id=replace(snapshot.id, seq=seq))
        looked.append(monitor.check(identified, video) is not None)
    assert all(looked[:LEARNING_SNAPSHOTS])
    assert sum(looked[LEARNING_SNAPSHOTS:]) == 2


def test_monitor_searches_again_after_losing_the_masks() -> None:
    near, far = small(), small(mask_shift_px=(3.0, -2.0))
    monitor = CalibrationMonitor(near.calibration, CPU, every=1, correct=False)
    video = np.zeros((8, 128, 128), np.float32)
    first = monitor.check(near.snapshot(), video)
    second = monitor.check(far.snapshot(), video)
    assert first is not None
    assert second is not None
    assert first.shift_px == pytest.approx(0.0, abs=0.05)
    assert (second.shift_x_px, second.shift_y_px) == (
        pytest.approx(3.0, abs=0.1),
        pytest.approx(-2.0, abs=0.1),
    )


def test_darkness_does_not_move_the_masks() -> None:
    rig = small(mask_shift_px=(0.5, 0.0))
    monitor = CalibrationMonitor(rig.calibration, CPU, every=1, correct=True)
    video = np.zeros((8, 128, 128), np.float32)
    monitor.check(rig.snapshot(), video)
    corrected = monitor.correction
    dark = replace(rig.snapshot(), counts=np.full((128, 128), 64, np.uint16))
    health = monitor.check(dark, video)
    assert health is not None
    assert health.shift_px is None
    assert monitor.correction == corrected


def test_pixels_below_black_are_counted() -> None:
    rig = small()
    monitor = CalibrationMonitor(rig.calibration, CPU, every=1, correct=False)
    snapshot = rig.snapshot()
    counts = snapshot.counts.copy()
    counts[:16] = 40  # 24 DN below the black level
    video = np.zeros((8, 128, 128), np.float32)
    healthy, ill = (
        monitor.check(replace(snapshot, counts=c), video) for c in (snapshot.counts, counts)
    )
    assert healthy is not None
    assert ill is not None
    assert healthy.below_black_fraction < 0.001
    assert ill.below_black_fraction == pytest.approx(16 / 128, abs=0.001)


def test_noise_cut_off_where_no_mask_opens_is_no_black_level() -> None:
    rig = Rig(width_px=128, height_px=128, n_frames=2, mask="random", bayer="none", scene="fast")
    frames = rig.snapshot().truth.reshape(2, 128, 128) / 255
    masks = (np.random.default_rng(1).random(frames.shape) < 0.3).astype(np.float32)
    calibration = Calibration(masks)
    noise = 0.02 * np.random.default_rng(2).standard_normal((128, 128))
    y = ((masks * frames).sum(0) + noise).clip(0).astype(np.float32)
    monitor = CalibrationMonitor(calibration, CPU, every=1, correct=True)
    monitor.measure(calibration.snapshot("arrays", 0, y))
    assert monitor.correction.black == 0


@pytest.mark.parametrize(
    ("blur_px", "missing_light", "expected"), [(3, 0.0, 1.0), (1, 0.0, 1.0), (1, 0.2, 1.25)]
)
def test_texture_is_not_reported_as_contrast(
    blur_px: int, missing_light: float, expected: float
) -> None:
    """The fit of the scene leaves more texture behind blurred masks: a contrast of 1.13."""
    rig = Rig(width_px=128, height_px=128, n_frames=16, mask="random", bayer="none", scene="fast")
    frames = rig.snapshot().truth.reshape(16, 128, 128) / 255
    half = np.random.default_rng(1).integers(0, 2, frames.shape).astype(np.float32)
    masks = np.stack([cv2.blur(mask, (blur_px, blur_px)) for mask in half])
    calibration = Calibration(masks)
    y = (masks * frames).sum(0)
    y = y - missing_light * y.mean() + 0.02 * np.random.default_rng(2).standard_normal(y.shape)
    monitor = CalibrationMonitor(calibration, CPU, every=1)
    health = monitor.measure(calibration.snapshot("arrays", 0, y.astype(np.float32)))
    assert health is not None
    assert health.contrast == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("bayer", ["none", "RGGB"])
def test_fading_light_is_not_reported_as_lower_contrast(bayer: str) -> None:
    """Gain drift as far as one snapshot can tell it: of the whole in brightness, of the masks alone
    in contrast.
    """
    options = {
        "width_px": 128,
        "height_px": 128,
        "mask": "random",
        "bayer": bayer,
        "scene": "static",
    }
    video = np.zeros((8, 128, 128), np.float32)
    full, faded = (Rig(**options, exposure=exposure) for exposure in (1.0, 0.8))
    looks = []
    for rig in (full, faded):
        monitor = CalibrationMonitor(full.calibration, CPU, every=1, correct=False)
        snapshot = replace(rig.snapshot(), calibration_hash=full.calibration.hash)
        look = monitor.check(snapshot, video)
        assert look is not None
        assert snapshot.truth is not None
        looks.append(look)
    bright, dim = (look.brightness for look in looks)
    assert bright is not None
    assert dim is not None
    assert dim / bright == pytest.approx(0.8, abs=0.01)
    for look in looks:
        assert look.contrast == pytest.approx(looks[0].contrast, abs=0.05)
        assert look.gain is None, "this camera adds nothing to its frames"


def test_brightness_is_the_mean_of_the_video_without_bad_pixels() -> None:
    rig = Rig(width_px=128, height_px=128, mask="random", scene="static")
    snapshot = rig.snapshot()
    assert snapshot.truth is not None
    truth = float(np.mean(snapshot.truth / (255.0 if snapshot.truth.dtype == np.uint8 else 1.0)))
    lost = np.random.default_rng(3).random(snapshot.counts.shape) < 0.3
    saturation_dn = int(snapshot.counts.max()) + 1
    torn = np.where(lost, np.uint16(saturation_dn), snapshot.counts)
    for bad_pixels, saturated in ((lost, None), (None, saturation_dn)):
        calibration = replace(rig.calibration, bad_pixels=bad_pixels, saturation_dn=saturated)
        monitor = CalibrationMonitor(calibration, CPU, every=1, correct=False)
        look = monitor.check(replace(snapshot, counts=torn), np.zeros((8, 128, 128), np.float32))
        assert look is not None
        assert look.brightness == pytest.approx(truth, rel=0.03)


@pytest.mark.parametrize(
    ("chunks", "gain"),
    [
        ({"ExposureTime": 100.0, "Gain": 0.0}, 1.0),
        ({"ExposureTime": 200.0, "Gain": 6.0}, 2 * 10**0.3),
        ({"ExposureTime": 50}, 0.5),
        ({"Gain": -6.0}, 10**-0.3),
        ({"ExposureTime": "Timed", "FrameID": 7}, None),
        ({}, None),
    ],
)
def test_relative_gain_compares_chunk_data_with_the_calibration(
    chunks: dict[str, object], gain: float | None
) -> None:
    calibration = Calibration(np.full((2, 8, 8), 0.5, np.float32), exposure_ns=100_000, gain_db=0.0)
    assert relative_gain(chunks, calibration) == pytest.approx(gain)
    assert relative_gain(chunks, replace(calibration, exposure_ns=None, gain_db=None)) is None


def test_small_sensors_get_a_reduced_report() -> None:
    calibration = Calibration(np.random.default_rng(0).random((4, 16, 16), dtype=np.float32))
    monitor = CalibrationMonitor(calibration, CPU, every=1, correct=True)
    rig = Rig(width_px=16, height_px=16, n_frames=4)
    health = monitor.check(replace(rig.snapshot(), truth=None), np.zeros((4, 16, 16), np.float32))
    assert health is not None
    assert health.match is None
    assert health.shift_px is None


def assessed(calibration: Calibration, snapshot: Snapshot) -> CalibrationHealth:
    monitor = CalibrationMonitor(calibration, CPU, every=1, correct=True)
    health = monitor.check(
        snapshot, np.zeros((calibration.n_frames, *calibration.shape), np.float32)
    )
    assert health is not None
    return health


@pytest.mark.parametrize("bayer", ["none", "RGGB"])
def test_masks_of_another_camera_match_nothing(bayer: str) -> None:
    rig = small(bayer=bayer)
    snapshot, phi = rig.snapshot(), rig.calibration.phi
    right = assessed(rig.calibration, snapshot)
    assert right.match is not None
    assert right.match > 0.3
    assert not is_withheld(right)
    others = (
        phi[:, ::-1].copy(),
        phi[:, :, ::-1].copy(),
        np.random.default_rng(9).random(phi.shape, np.float32),
    )
    for other in others:
        health = assessed(replace(rig.calibration, phi=other), snapshot)
        assert health.match == 0.0
        assert is_withheld(health)


@pytest.mark.parametrize("n_frames", [2, 8, 16])
def test_other_masks_of_a_small_sensor_are_withheld_steadily(n_frames: int) -> None:
    """A snapshot of 64×64 px fits some wrong masks a little, by chance."""
    size = {"width_px": 64, "height_px": 64, "n_frames": n_frames, "mask": "random"}
    rig = Rig(**size, seed=3)
    other = replace(Rig(**size, seed=103).calibration, camera_serial="")
    monitor = CalibrationMonitor(other, CPU, every=1, correct=True)
    snapshots = [replace(rig.snapshot(), calibration_hash=other.hash) for _ in range(20)]
    looks = [monitor.measure(snapshot) for snapshot in snapshots]
    withheld = [look is not None and is_withheld(look) for look in looks]
    assert sum(withheld) >= 19
    assert sorted(withheld) == withheld, "once they are known as others, they stay so"


def test_right_masks_that_come_back_are_shown_again() -> None:
    rig = small()
    snapshot = rig.snapshot()
    monitor = CalibrationMonitor(rig.calibration, CPU, every=1)
    mirrored = replace(rig.snapshot(), counts=snapshot.counts[:, ::-1].copy())
    withheld = []
    for shown in (snapshot, mirrored, mirrored, rig.snapshot()):
        look = monitor.measure(shown)
        assert look is not None
        withheld.append(is_withheld(look))
    assert withheld == [False, True, True, False]


def test_right_masks_behind_much_noise_are_not_called_others() -> None:
    rig = small()
    snapshot = rig.snapshot()
    noise_dn = 3 * float(snapshot.counts.std())
    noise = noise_dn * np.random.default_rng(1).standard_normal(snapshot.counts.shape)
    counts = (snapshot.counts + noise).astype(np.float32)
    health = assessed(rig.calibration, replace(snapshot, counts=counts))
    assert health.match is not None
    assert health.match < 0.15, "they explain as little as others"
    assert not is_withheld(health)


@pytest.mark.parametrize("level", ["black", "saturated"])
def test_no_light_and_too_much_of_it_match_nothing(level: str) -> None:
    rig = small()
    counts = np.full((128, 128), 64 if level == "black" else 4095, np.uint16)
    health = assessed(rig.calibration, replace(rig.snapshot(), counts=counts))
    assert health.match == 0.0
    words = "hardly any light" if level == "black" else "all are saturated"
    assert words in findings(health, 0.1)["mask_match"]


def test_few_bright_places_in_the_dark_match_the_right_masks() -> None:
    """As in fluorescence: most blocks show noise alone, and masks explain none of it."""
    rig = small()
    phi, dark = rig.calibration.phi, rig.calibration.dark
    scene = np.zeros((8, 128, 128), np.float32)
    scene[:, 50:85, 50:85] = 0.6
    noise = 3 * np.random.default_rng(0).standard_normal((128, 128))
    counts = np.asarray(
        dark + rig.calibration.full_scale_dn * (phi * scene).sum(0) + noise, np.float32
    )
    health = assessed(rig.calibration, replace(rig.snapshot(), counts=counts))
    assert health.match is not None
    assert health.match > 0.3


def test_withheld_video_is_the_snapshot_in_every_frame() -> None:
    rig = small()
    snapshot = rig.snapshot()
    video = np.zeros((8, 128, 128), np.float16)
    report = SolveReport(
        iterations=12,
        start=Start.COLD,
        start_reason="first",
        budget_limited=False,
        solve_ns=1,
        residual=0.0,
        psnr_db=30.0,
    )
    shown, said = withhold(video, report, snapshot, rig.calibration)
    y = rig.calibration.measurement(snapshot.counts)
    assert shown.dtype == np.float16
    assert shown[0] == pytest.approx(y / rig.calibration.phi.sum(0).mean(), abs=2e-3)
    assert (shown == shown[0]).all()
    assert (said.start_reason, said.psnr_db) == ("mismatch", None)
