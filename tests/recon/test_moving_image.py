"""A scene that moves as one is recovered as one image; every other solve stays as it is."""

from __future__ import annotations

import dataclasses

import cv2
import numpy as np
import pytest
import torch

import sci_stream
from sci_stream.model import F32, BayerPhase, Snapshot
from sci_stream.optics.bayer import sample_colours
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import make_denoiser, named_prior
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import Guard, GuardedSolver
from sci_stream.recon.moving_canvas import Canvas, CodedImage
from sci_stream.recon.moving_image import with_moving_image
from sci_stream.recon.settings import SolverSettings, default_settings

RGGB = BayerPhase.RGGB
CPU = torch.device("cpu")
N_FRAMES = 8
SIZE = 96
TIMES = np.arange(N_FRAMES) - (N_FRAMES - 1) / 2


def texture(seed: int, size: int) -> F32:
    """Return dark spots of all shapes on a bright ground, as sharp as a lens draws them."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(size), np.fft.fftfreq(size)))
    spectrum = np.fft.fft2(rng.standard_normal((size, size)))
    spots = np.fft.ifft2(spectrum * np.exp(-((frequency / 0.08) ** 2))).real > 0
    lens = np.exp(-((frequency / 0.25) ** 2))
    image = np.fft.ifft2(np.fft.fft2(spots) * lens).real
    return (0.2 + 0.6 * image).astype(np.float32)


def displaced(image: F32, down: float, right: float) -> F32:
    """Return image(p − d), exactly, for a periodic image."""
    rows = np.fft.fftfreq(len(image))[:, None]
    columns = np.fft.fftfreq(len(image))
    ramp = np.exp(-2j * np.pi * (rows * down + columns * right))
    return np.fft.ifft2(np.fft.fft2(image) * ramp).real.astype(np.float32)


def carried(image: F32, displacements: np.ndarray, size: int = SIZE) -> F32:
    """Return the frames, (B, size, size), of an image at these places, (B, 2)."""
    return np.stack([displaced(image, *by)[20 : 20 + size, 20 : 20 + size] for by in displacements])


def pan(down: float, right: float, seed: int = 0) -> F32:
    return carried(texture(seed, 160), np.outer(TIMES, (down, right)))


def shaking(seed: int = 0) -> F32:
    steps = np.random.default_rng(seed).uniform(-1.5, 1.5, (N_FRAMES, 2))
    places = steps.cumsum(0)
    return carried(texture(seed, 160), places - places.mean(0))


def swarm() -> F32:
    """Return frames of which each row of blocks moves in another direction."""
    bands = [
        pan(down, right, seed)[:, :24]
        for seed, (down, right) in enumerate([(0, 1.5), (0, -1.5), (1.2, 0.7), (-1.2, 0.9)])
    ]
    return np.concatenate(bands, axis=1)


def belt(background: F32, right: float) -> F32:
    """Return frames whose lower two thirds are a belt."""
    frames = background.copy()
    frames[:, SIZE // 3 :] = pan(0, right, 3)[:, SIZE // 3 :]
    return frames


def coloured(scene: F32, hue: F32) -> F32:
    """Return mosaics of a scene, as a softer lens draws it, with a hue of the same shape."""
    soft = np.stack([cv2.GaussianBlur(frame, (0, 0), 1.2) for frame in scene])
    colours = np.stack([soft * (0.5 + 0.5 * hue), soft, soft * (1.0 - 0.5 * hue)], axis=-1)
    return sample_colours(colours.astype(np.float32), RGGB)


def smooth_hue(down: float, right: float) -> F32:
    hue = cv2.GaussianBlur(texture(7, 160), (0, 0), 6.0)
    return carried((hue - hue.min()) / np.ptp(hue), np.outer(TIMES, (down, right)))


def random_masks(shape: tuple[int, ...]) -> F32:
    return (np.random.default_rng(9).random(shape) < 0.5).astype(np.float32)


def solved(
    scene: F32, phi: F32, bayer: BayerPhase | None = None, *, moving_image: bool = True
) -> F32:
    calibration = Calibration(phi, bayer=bayer)
    name = "tv" if bayer is None else "unrolled"  # the former blurs mosaics
    settings = dataclasses.replace(
        default_settings(CPU, name), iterations=8, moving_image=moving_image
    )
    noise = np.random.default_rng(1).normal(0, 0.01, scene.shape[1:])
    counts = ((phi * scene).sum(0) + noise).astype(np.float32)
    solver = named_prior(name, CPU, None, Precision.FLOAT32)
    engine = Engine(calibration, solver, CPU, settings)
    video, _report, _defects, _tail = GuardedSolver(engine, Guard(every=0)).solve(
        calibration.snapshot("s", 0, counts)
    )
    return video


def psnr(video: F32, scene: F32) -> float:
    return float(-10 * np.log10(((video - scene) ** 2).mean()))


def gain_db(scene: F32, phi: F32, bayer: BayerPhase | None = None) -> float:
    """Return by how much a solve is better than without a moving image."""
    before = solved(scene, phi, bayer, moving_image=False)
    return psnr(solved(scene, phi, bayer), scene) - psnr(before, scene)


@pytest.mark.parametrize("scene", [pan(0.4, -1.3), pan(-1.0, 0.8, 2), shaking()])
def test_scene_that_moves_as_one_gains_2_db(scene: F32) -> None:
    assert gain_db(scene, random_masks(scene.shape)) > 2


@pytest.mark.parametrize("background", [pan(0, 0), pan(0.3, 1.2)], ids=["still", "a pan"])
def test_belt_gains_2_db_before_any_background(background: F32) -> None:
    scene = belt(background, -1.4)
    assert gain_db(scene, random_masks(scene.shape)) > 2


@pytest.mark.parametrize("velocity", [(0.4, -1.3), (1.2, 0.3)])
def test_mosaic_that_moves_as_one_gains_2_db(velocity: tuple[float, float]) -> None:
    scene = coloured(pan(*velocity), smooth_hue(*velocity))
    assert gain_db(scene, random_masks(scene.shape), RGGB) > 2


def test_masks_with_large_elements_show_no_false_image() -> None:
    fine = random_masks((N_FRAMES, SIZE // 2, SIZE // 2))
    masks = np.kron(fine, np.ones((1, 2, 2), np.float32))
    assert gain_db(pan(0.4, -1.3), masks) > 2
    assert gain_db(swarm(), masks) > -0.05


def test_mosaic_that_does_not_move_as_one_stays_as_solved() -> None:
    scene = coloured(swarm(), smooth_hue(0, 0))
    assert gain_db(scene, random_masks(scene.shape), RGGB) > -0.05


@pytest.mark.parametrize("bayer", [None, RGGB])
def test_canvas_is_linear_and_has_a_transpose(bayer: BayerPhase | None) -> None:
    rng = np.random.default_rng(0)
    displacements = np.outer(TIMES, (0.37, -1.2))
    canvas = Canvas(displacements, (48, 52), rounds=1, bayer=bayer)
    frames = rng.standard_normal((N_FRAMES, 48, 52)).astype(np.float32)
    image = rng.standard_normal(canvas.transposed(frames).shape).astype(np.float32)
    shown = np.vdot(canvas.frames(image), frames)
    assert shown == pytest.approx(np.vdot(image, canvas.transposed(frames)), rel=1e-3)


@pytest.mark.parametrize("bayer", [None, RGGB])
def test_slopes_are_those_of_frames_that_move_on(bayer: BayerPhase | None) -> None:
    canvas = Canvas(np.outer(TIMES, (0.37, -1.2)), (48, 52), rounds=1, bayer=bayer)
    size = canvas.transposed(np.zeros((N_FRAMES, 48, 52), np.float32)).shape
    image = cv2.GaussianBlur(texture(1, 160), (0, 0), 3.0)[: size[0], : size[1]]
    down, _ = canvas.slopes(image)
    before = canvas.frames(image)
    step = np.zeros((N_FRAMES, 2))
    step[0, 0] = 0.1
    canvas.move(step)
    moved = canvas.frames(image)
    by = np.diff(canvas.displacements[:2, 0])[0] - np.diff(np.outer(TIMES, (0.37, -1.2))[:2, 0])[0]
    assert by == pytest.approx(-0.1)
    shift = 0.1 * (1 - 1 / N_FRAMES)
    np.testing.assert_allclose((before - moved)[0] / shift, down[0], atol=0.01)


def test_scene_that_does_not_move_as_one_stays_as_solved() -> None:
    scene = swarm()
    assert gain_db(scene, random_masks(scene.shape)) > -0.05


def coded(scene: F32, phi: F32) -> CodedImage:
    y = (phi * scene).sum(0)
    return CodedImage(y, phi, np.ones_like(y))


def undenoised(image: F32, sigma: float) -> F32:
    return image


def rough(scene: F32) -> F32:
    """Return frames as a solve has them: blurred a little, each with errors of its own."""
    errors = np.random.default_rng(3).normal(0, 0.08, scene.shape)
    return (scene + errors).astype(np.float32)


def test_frames_are_those_of_the_image() -> None:
    scene = pan(0.4, -1.3)
    phi = random_masks(scene.shape)
    moving = with_moving_image(coded(scene, phi), rough(scene), undenoised)
    assert moving is not None
    assert psnr(moving.video, scene) > 30
    assert moving.share > 0.9
    assert moving.velocity == pytest.approx((0.4, -1.3), abs=0.02)


def reported(scene: F32) -> sci_stream.Reconstructed:
    phi = random_masks(scene.shape)
    return sci_stream.reconstruct((phi * scene).sum(0), phi, white=1.0, device="cpu")


def test_report_tells_of_the_image() -> None:
    result = reported(pan(0.4, -1.3))
    report = result.report
    assert report.moving_share is not None
    assert report.moving_share > 0.5
    assert (report.moving_x_px, report.moving_y_px) == pytest.approx((-1.3, 0.4), abs=0.1)
    assert report.moving_image in repr(result)


def test_report_tells_that_nothing_moves_as_one() -> None:
    report = reported(swarm()).report
    assert (report.moving_share, report.moving_x_px, report.moving_image) == (0.0, None, "")


def test_masks_that_move_with_the_scene_prove_nothing() -> None:
    """y is then a blurred image, which any scene of this displacement predicts."""
    displacements = np.outer(TIMES, (1.0, 0.0))
    pattern = (texture(5, 160) > np.median(texture(5, 160))).astype(np.float32)
    phi = carried(pattern, displacements)
    scene = pan(1.0, 0.0)
    assert with_moving_image(coded(scene, phi), rough(scene), undenoised) is None


def test_pixels_without_a_measurement_stay_as_solved() -> None:
    scene = pan(0.4, -1.3)
    phi = random_masks(scene.shape)
    snapshot = coded(scene, phi)
    snapshot.weights[:] = 0
    assert with_moving_image(snapshot, rough(scene), undenoised) is None


@pytest.mark.parametrize("shape", [(1, 64, 64), (8, 16, 64)], ids=["one frame", "small"])
def test_nothing_is_done_where_nothing_can_be_told(shape: tuple[int, ...]) -> None:
    scene = np.full(shape, 0.5, np.float32)
    snapshot = coded(scene, random_masks(shape))
    assert with_moving_image(snapshot, scene, undenoised) is None


def pan_of_snapshots(count: int) -> tuple[Calibration, list[Snapshot]]:
    """Return consecutive snapshots of a pan."""
    phi = random_masks((N_FRAMES, SIZE, SIZE))
    calibration = Calibration(phi)
    times = np.arange(count * N_FRAMES) - (count * N_FRAMES - 1) / 2
    scene = carried(texture(0, 160), np.outer(times, (0.2, -0.7)))
    counts = [(phi * frames).sum(0) for frames in np.split(scene, count)]
    return calibration, [calibration.snapshot("pan", seq, y) for seq, y in enumerate(counts)]


def live_engine(calibration: Calibration) -> Engine:
    settings = dataclasses.replace(default_settings(CPU, "tv"), iterations=4, warm_start=True)
    return Engine(calibration, make_denoiser("tv", CPU), CPU, settings)


def test_image_changes_neither_the_next_start_nor_the_checks() -> None:
    calibration, snapshots = pan_of_snapshots(3)
    plain = live_engine(calibration)
    looking = live_engine(calibration)
    looking.seeks_moving_image = True
    for snapshot in snapshots:
        before, usual = plain.reconstruct(snapshot)
        pending = looking.begin(snapshot)
        video, report = pending.finish()
        assert report.moving_share
        assert not np.array_equal(video, before)
        checked, without = pending.without_image(video, report)
        np.testing.assert_array_equal(checked, before)
        assert (without.residual, without.start) == (usual.residual, usual.start)
    assert usual.start_reason == "warm"


def test_look_counts_as_time_of_its_own() -> None:
    calibration, (snapshot,) = pan_of_snapshots(1)
    engine = live_engine(calibration)
    engine.seeks_moving_image = True
    _, report = engine.reconstruct(snapshot)
    looks = engine.costs.looks
    assert looks.moves
    assert looks.seconds is not None
    assert looks.seconds + engine.costs.seconds(4) == pytest.approx(report.solve_ns / 1e9, rel=0.05)


def test_guard_of_a_live_rig_leaves_the_look_to_the_budget() -> None:
    calibration, _ = pan_of_snapshots(1)
    engine = live_engine(calibration)
    GuardedSolver(engine, Guard(live=True))
    assert not engine.seeks_moving_image
    GuardedSolver(engine, Guard())
    assert engine.seeks_moving_image


def test_settings_of_the_paper_do_not_have_it() -> None:
    assert not SolverSettings().moving_image
    assert not default_settings(CPU, "identity").moving_image
    assert default_settings(CPU, "tv").moving_image
