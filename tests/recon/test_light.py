"""The light of each snapshot: measured, removed from the video, and kept out of the masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage

import sci_stream
from sci_stream.config.sections import ModulatorSection
from sci_stream.errors import InputError
from sci_stream.model import F32, BayerPhase
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import Guard, GuardedSolver
from sci_stream.recon.light import LightWatch
from sci_stream.recon.settings import default_settings
from sci_stream_drivers.simulated.textures import spectral_noise
from tests.calibration.moved_masks import Rig
from tests.recon.films import film

CPU = torch.device("cpu")
SIZE, B = 96, 8
LAMPS = Guard(lamps_hz=100, frame_s=1 / 240)
pytestmark = pytest.mark.usefixtures("one_thread")


def masks(n_frames: int = B) -> F32:
    """Return masks that are half open."""
    return (np.random.default_rng(1).random((n_frames, SIZE, SIZE)) < 0.5).astype(np.float32)


def scene(n_frames: int = B, speed_px: int = 0) -> F32:
    """Return frames of a landscape, whose middle moves by some pixels a frame."""
    texture = 0.2 + 0.6 * spectral_noise(4 * SIZE, 2.0, np.random.default_rng(2))
    still = texture[:SIZE, :SIZE]
    frames = []
    for b in range(n_frames):
        frame = still.copy()
        left = SIZE + speed_px * b
        frame[SIZE // 3 : 2 * SIZE // 3] = texture[SIZE : SIZE + SIZE // 3, left : left + SIZE]
        frames.append(frame)
    return np.stack(frames)


def mains(depth: float, phase: float = 0.7, n_frames: int = B) -> F32:
    """Return the light of frames at 240 Hz under 100 Hz."""
    light = 1 + depth * np.cos(2 * np.pi * 100 / 240 * np.arange(n_frames) + phase)
    return np.asarray(light / light.mean(), np.float32)


def coded(phi: F32, x: F32, light: F32) -> F32:
    """Return y = Σ_b g_b φ_b x_b."""
    return np.asarray((phi * x * light[:, None, None]).sum(0), np.float32)


def measured(phi: F32, snapshots: Sequence[F32], guard: Guard = Guard()) -> list[MaskCorrection]:
    """Return the corrections with which a guarded solver takes each of some snapshots."""
    calibration = Calibration(phi=phi)
    engine = Engine(calibration, make_denoiser("tv", CPU), CPU, default_settings(CPU, "tv"))
    solver = GuardedSolver(engine, guard)
    corrections = []
    for seq, y in enumerate(snapshots):
        solver.measure(calibration.snapshot("s", seq, y))
        corrections.append(engine.masks.correction)
    return corrections


@pytest.mark.parametrize("light", [mains(0.1), mains(0.6), np.tile(np.float32([1.8, 0.2]), 4)])
def test_light_of_one_snapshot_is_measured(light: F32) -> None:
    phi = masks()
    (correction,) = measured(phi, [coded(phi, scene(speed_px=2), light)])
    np.testing.assert_allclose(correction.light, light, atol=0.02)
    assert correction.masks == ()


@pytest.mark.parametrize("seed", range(4))
def test_displaced_masks_that_are_alike_show_no_light(seed: int) -> None:
    """It alternated from frame to frame, which such masks hardly show."""
    options = {"n_frames": 6, "mask": "moving", "bayer": "RGGB", "scene": "belt", "seed": seed}
    rig = Rig(width_px=SIZE, height_px=SIZE, **options)
    calibration = rig.calibration
    truth = rig.snapshot().truth
    assert truth is not None
    displaced = ndimage.shift(calibration.phi, (0, 0.4, 0.7), order=3, mode="reflect").clip(0, 1)
    y = (displaced * truth / 255).sum(0)
    counts = np.rint(calibration.dark + calibration.full_scale_dn * y).astype(np.uint16)
    engine = Engine(calibration, make_denoiser("tv", CPU), CPU, default_settings(CPU, "tv"))
    GuardedSolver(engine, Guard(correct=False)).measure(calibration.snapshot("s", 0, counts))
    assert engine.masks.correction.light == ()


def test_masks_that_shake_show_no_light(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(8)
    options = {"n_frames": 6, "mask": "moving", "bayer": "RGGB", "scene": "belt", "speed": 0.5}
    rig = Rig(width_px=SIZE, height_px=SIZE, **options)
    calibration = rig.calibration
    engine = Engine(calibration, make_denoiser("tv", CPU), CPU, default_settings(CPU, "tv"))
    solver = GuardedSolver(engine, Guard(every=3, live=True))
    for snapshot in [rig.snapshot() for _ in range(16)]:
        monkeypatch.setattr("time.monotonic", lambda now_s=snapshot.id.seq / 4: now_s)
        assert snapshot.truth is not None
        y_px, x_px = random.normal(0, 0.5, 2)
        phi = ndimage.shift(calibration.phi, (0, y_px, x_px), order=3, mode="reflect").clip(0, 1)
        y = (phi * snapshot.truth / 255).sum(0)
        counts = np.rint(calibration.dark + calibration.full_scale_dn * y).astype(np.uint16)
        delivered = solver.solve(replace(snapshot, counts=counts), 1)
        assert engine.masks.correction.light == (), snapshot.id.seq
    assert "mask_shift" in {defect.name for defect in delivered.defects}


@pytest.mark.parametrize("depth", [0.1, 0.6])
def test_light_of_known_lamps_is_measured_more_exactly(depth: float) -> None:
    phi, light = masks(), mains(depth)
    y = coded(phi, scene(speed_px=5), light)
    (blind,) = measured(phi, [y])
    (known,) = measured(phi, [y], LAMPS)
    error = np.abs(np.array(known.light) - light).max()
    assert error < 0.01
    assert error < np.abs(np.array(blind.light) - light).max() + 1e-3


@pytest.mark.parametrize("speed_px", [0, 2, 5])
def test_even_light_of_known_lamps_is_left_alone(speed_px: int) -> None:
    phi = masks()
    y = coded(phi, scene(speed_px=speed_px), np.ones(B, np.float32))
    (correction,) = measured(phi, [y], LAMPS)
    assert correction.is_none


def test_cut_is_no_light_of_known_lamps() -> None:
    phi, x = masks(), scene()
    x[5:] = 0.3 * x[5:, ::-1]
    (correction,) = measured(phi, [coded(phi, x, np.ones(B, np.float32))], LAMPS)
    assert not correction.light


def test_rig_file_sets_the_time_from_mask_to_mask() -> None:
    section = ModulatorSection(driver="simulated", pattern_us=4000, dark_us=200)
    assert section.frame_s == pytest.approx(4.2e-3)
    assert ModulatorSection(driver="simulated").frame_s is None
    assert ModulatorSection(pattern_us=4000).frame_s is None


def test_lamps_of_arrays_need_the_exposure() -> None:
    phi, light = masks(), mains(0.3)
    y = coded(phi, scene(speed_px=2), light)
    options = {"solver": "tv", "iterations": 2, "device": "cpu", "lamps_hz": 100}
    with pytest.raises(InputError, match="lamps_hz needs the duration"):
        sci_stream.reconstruct(y, phi, **options)
    calibration = Calibration(phi=phi, exposure_ns=round(1e9 * B / 240))
    with pytest.warns(sci_stream.DataWarning, match="100 Hz"):
        result = sci_stream.reconstruct(y, calibration, **options)
    np.testing.assert_allclose(result.correction.light, light, atol=0.01)
    with pytest.raises(InputError, match="lamps_hz is invalid"):
        sci_stream.reconstruct(y, calibration, lamps_hz=-100)


@pytest.mark.parametrize("speed_px", [0, 2, 5])
def test_even_light_is_left_alone(speed_px: int) -> None:
    phi = masks()
    (correction,) = measured(phi, [coded(phi, scene(speed_px=speed_px), np.ones(B, np.float32))])
    assert correction.is_none


def test_scene_that_is_cut_is_no_light() -> None:
    phi, x = masks(), scene()
    x[5:] = 0.3 * x[5:, ::-1]
    (correction,) = measured(phi, [coded(phi, x, np.ones(B, np.float32))])
    assert not correction.light


def test_light_of_a_scene_in_a_corner_is_measured() -> None:
    phi, x, light = masks(), np.zeros((B, SIZE, SIZE), np.float32), mains(0.3)
    x[:, :40, :40] = scene()[:, :40, :40]
    (correction,) = measured(phi, [coded(phi, x, light)])
    np.testing.assert_allclose(correction.light, light, atol=0.02)


def test_changing_light_is_kept_out_of_the_masks() -> None:
    phi, x = masks(), scene(speed_px=1)
    lights = [mains(0.3, 1.9 * seq) for seq in range(4)]
    corrections = measured(phi, [coded(phi, x, light) for light in lights])
    for correction, light in zip(corrections, lights, strict=True):
        assert correction.masks == ()
        np.testing.assert_allclose(correction.light, light, atol=0.02)


def test_gains_of_the_ends_are_those_of_the_masks() -> None:
    phi, x = masks(), scene(speed_px=1)
    gains = np.float32([1.4, *[1.0] * 6, 0.6])
    last = measured(phi, [coded(phi, x, gains)] * 3)[-1]
    assert [mask.gain for mask in last.masks] == pytest.approx(gains - 1, abs=0.05)
    assert last.light_depth < 0.02


@pytest.mark.parametrize(
    ("shown", "of_exposure"),
    [
        ([2.0, 1.5, 1.0, 1.0, 1.0, 1.0], True),
        ([1.0, 1.0, 1.0, 1.0, 0.8, 0.02], True),
        ([1.0, 1.0, 2.0, 0.02, 1.0, 1.0], True),
        ([1.0, 1.0, 1.0, 1.0, 0.02, 1.0], True),
        ([1.3, 1.3, 1.0, 0.7, 0.7, 1.0], False),
    ],
)
def test_exposure_of_another_length_is_one_of_the_masks(
    shown: list[float], of_exposure: bool
) -> None:
    pan = film("pan", 3, n_frames=6, height_px=SIZE, width_px=SIZE, mask="random")
    engine = Engine(pan.calibration, make_denoiser("tv", CPU), CPU, default_settings(CPU, "tv"))
    watch = LightWatch(engine.masks)
    for snapshot in pan.snapshots:
        assert snapshot.truth is not None
        frames = snapshot.truth / np.float32(255)
        y = coded(pan.calibration.phi, frames, np.array(shown, np.float32))
        light = watch.measure(snapshot.id, y, np.ones(y.shape, np.bool_), None)
    assert watch.of_exposure == of_exposure
    usual = float(np.median(shown)) if of_exposure else float(np.mean(shown))
    np.testing.assert_allclose(light, np.array(shown) / usual, atol=0.03)


@pytest.mark.parametrize("stray", [0.0, 0.3])
def test_stray_light_is_no_light_that_changes(stray: float) -> None:
    belt = film("belt", 2, height_px=SIZE, width_px=SIZE, mask="moving", speed=2.0)
    engine = Engine(belt.calibration, make_denoiser("tv", CPU), CPU, default_settings(CPU, "tv"))
    watch = LightWatch(engine.masks)
    for snapshot in belt.snapshots:
        y = belt.calibration.measurement(snapshot.counts)
        y = np.asarray(y + stray * y.mean(), np.float32)
        assert watch.measure(snapshot.id, y, np.ones(y.shape, np.bool_), None) == ()


def test_light_in_step_with_exposures_is_none_of_the_masks() -> None:
    phi, x, light = masks(), scene(speed_px=1), mains(0.3)
    last = measured(phi, [coded(phi, x, light)] * 3)[-1]
    assert last.masks == ()
    np.testing.assert_allclose(last.light, light, atol=0.02)


def test_live_rig_names_light_that_several_snapshots_show() -> None:
    phi, x = masks(), scene(speed_px=1)
    calibration = Calibration(phi=phi)
    engine = Engine(calibration, make_denoiser("tv", CPU), CPU, default_settings(CPU, "tv"))
    solver = GuardedSolver(engine, Guard(live=True))
    names = []
    for seq in range(4):
        y = coded(phi, x, mains(0.3, 1.9 * seq))
        delivered = solver.solve(calibration.snapshot("s", seq, y), 1)
        names.append([defect.name for defect in delivered.defects])
    assert names == [[], [], [], ["light"]]


def test_mains_frequency_is_named_where_the_exposure_is_known() -> None:
    phi = masks()
    calibration = Calibration(phi=phi, exposure_ns=round(1e9 * B / 240))
    y = coded(phi, scene(speed_px=2), mains(0.3))
    with pytest.warns(sci_stream.DataWarning, match="light changes by .* 100 Hz"):
        result = sci_stream.reconstruct(y, calibration, solver="tv", iterations=2, device="cpu")
    assert result.report.light_depth == pytest.approx(0.3, abs=0.02)
    assert result.report.health is not None
    assert result.report.health.light_hz == 100


def test_video_has_even_light_or_that_of_the_recording() -> None:
    phi, x, light = masks(), scene(speed_px=1), mains(0.3)
    options = {"solver": "tv", "iterations": 6, "device": "cpu", "white": 1.0}
    y = coded(phi, x, light)
    with pytest.warns(sci_stream.DataWarning, match="light changes"):
        even = sci_stream.reconstruct(y, phi, **options)
    with pytest.warns(sci_stream.DataWarning, match="light changes"):
        as_recorded = sci_stream.reconstruct(y, phi, **options, light="as_recorded")
    brightness = even.video.mean((1, 2)) / x.mean((1, 2))
    assert np.ptp(brightness) < 0.02
    np.testing.assert_allclose(
        as_recorded.video, even.video * np.float32(even.correction.light)[:, None, None], rtol=1e-5
    )
    with pytest.raises(InputError, match="light is invalid"):
        sci_stream.reconstruct(y, phi, light="flicker")


def test_colour_mosaic_under_mains_light_is_measured() -> None:
    phi, light = masks(), mains(0.3)
    y = coded(phi, scene(), light)
    calibration = Calibration(phi=phi, bayer=BayerPhase.RGGB)
    engine = Engine(calibration, make_denoiser("tv", CPU), CPU, default_settings(CPU, "tv"))
    GuardedSolver(engine).measure(calibration.snapshot("s", 0, y))
    np.testing.assert_allclose(engine.masks.correction.light, light, atol=0.02)
