"""The estimated error of the start at each pixel, and denoising by it."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from sci_stream.model import Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.initialization.error_map import InitialErrorMap, start_error
from sci_stream.recon.noise_estimation import MOVING_MISMATCH
from sci_stream.recon.settings import SolverSettings, default_settings
from tests.recon.films import film

P, H, W = 2, 24, 32
CPU = torch.device("cpu")
NO_FILLING = torch.zeros(())
# Texture that is white noise would be taken for noise.
DEFAULT = dataclasses.replace(default_settings(CPU, "ffdnet-lite"), weigh_noise=False)
UNIFORM = dataclasses.replace(DEFAULT, local_sigma=False)


def error_of(rms: float) -> InitialErrorMap:
    """Return the error of a start that is equally wrong everywhere."""
    return InitialErrorMap(torch.full((P, H, W), rms**2), torch.tensor(rms**2), torch.ones(P, H, W))


def test_level_follows_local_error_down_to_a_limit() -> None:
    around = torch.tensor([0.0, 0.01, 0.04, 0.16, 1e3, math.inf]).square().view(1, 1, -1)
    levels = error_of(0.04)._replace(around=around, where_wrong=torch.tensor(0.04**2)).levels()
    torch.testing.assert_close(levels.flatten(), torch.tensor([0.1, 0.25, 1.0, 4.0, 25e3, 1.0]))
    assert bool(error_of(0.0).levels().isfinite().all())


def test_unmeasured_pixels_have_infinite_error_and_level_one() -> None:
    contrast = torch.ones(P, H, 4 * W)
    contrast[..., W:] = 0.0
    error = start_error(
        torch.full_like(contrast, 0.01) * contrast, contrast, torch.ones_like(contrast), NO_FILLING
    )
    assert bool(error.around[..., -1].isinf().all())
    assert bool((error.levels()[..., -1] == 1.0).all())


def test_pixels_open_in_no_mask_have_the_error_of_filling() -> None:
    """Behind two random binary masks that is each fourth pixel, also of a still scene."""
    generator = np.random.default_rng(0)
    masks = generator.integers(0, 2, (2, 64, 64)).astype(np.float32)
    still = generator.random((32, 32)).astype(np.float32).repeat(2, 0).repeat(2, 1)
    engine = Engine(Calibration(phi=masks), make_denoiser("tv", CPU), CPU, DEFAULT)
    with torch.inference_mode():
        measurement = engine.prepare(torch.from_numpy(masks.sum(0) * still))
        start = engine.initialize(measurement)
    assert start.error is not None
    closed = masks.sum(0) == 0
    filled = np.square(start.v[0].mean(0).numpy() - still)[closed].mean()
    estimated = start.error.around[0].numpy()
    assert 0.3 * filled < estimated[closed].mean() < 3 * filled
    assert estimated[~closed].mean() < 0.1 * filled


def test_prediction_errors_are_divided_by_contrast() -> None:
    contrast = 1.0 + 3.0 * torch.rand(P, H, W, generator=torch.Generator().manual_seed(1))
    error = start_error(0.02**2 * contrast, contrast, torch.ones_like(contrast), NO_FILLING)
    torch.testing.assert_close(error.around.sqrt(), torch.full((P, H, W), 0.02))
    assert float(error.where_wrong) == pytest.approx(0.02**2)


def test_small_moving_object_sets_the_overall_error() -> None:
    """A drop that falls in front of a still wall must not count as a scene that is nearly right
    everywhere.
    """
    contrast = torch.ones(1, 96, 96)
    mispredicted = torch.zeros(1, 96, 96)
    mispredicted[:, 32:64, 32:64] = 0.1**2
    error = start_error(mispredicted, contrast, torch.ones_like(contrast), NO_FILLING)
    assert 0.2 * 0.1**2 < float(error.where_wrong) < 0.1**2 / 3
    unmeasured = contrast.clone()
    unmeasured[:, :, 80:] = 0.0
    cut = start_error(mispredicted * unmeasured, unmeasured, torch.ones_like(contrast), NO_FILLING)
    assert float(cut.where_wrong) > float(error.where_wrong), (
        "unmeasured pixels do not count as right"
    )


def test_mask_errors_count_more_where_something_moves() -> None:
    noise, mismatch, r_inv = (
        torch.full((P, H, W), 3e-4),
        torch.full((P, H, W), 1e-4),
        torch.full((P, H, W), 0.25),
    )
    still, moving = (
        error_of(0.04)._replace(moves=torch.full((P, H, W), share)) for share in (0.0, 1.0)
    )
    assert still.with_noise(noise, mismatch, r_inv)[0].allclose(noise)
    found, error = moving.with_noise(noise, mismatch, r_inv)
    torch.testing.assert_close(found, noise + (MOVING_MISMATCH - 1) * mismatch)
    torch.testing.assert_close(error.around, moving.around + 0.125 * found)
    torch.testing.assert_close(still.with_noise(noise, mismatch, r_inv)[1].around, still.around)


def grass() -> np.ndarray:
    """Return frames of a static fine texture, (B, H, W)."""
    fine = np.random.default_rng(5).standard_normal((64, 64))
    spread = sum(np.roll(fine, (i, j), (0, 1)) for i in (0, 1) for j in (0, 1)) / 2
    return np.broadcast_to(np.float32(0.5 + 0.12 * spread.clip(-3, 3)), (8, 64, 64)).clip(0, 1)


def ball() -> np.ndarray:
    """Return frames of a smooth scene in which a disc falls fast, (B, H, W)."""
    rows, columns = np.mgrid[:64, :64].astype(np.float32)
    frames = []
    for t in 3.0 * np.arange(8, dtype=np.float32):
        disc = 0.5 - 0.5 * np.tanh(np.hypot(rows - 12 - t, columns - 32) - 8)
        frames.append((0.4 + 0.3 * rows / 64) * (1 - disc) + 0.2 * disc)
    return np.stack(frames)


def solved(video: np.ndarray, how: SolverSettings, iterations: int) -> float:
    """Return the PSNR after a number of iterations behind random masks."""
    phi = (np.random.default_rng(7).random(video.shape) < 0.5).astype(np.float32)
    calibration = Calibration(phi, dark=0.0, full_scale_dn=1.0)
    counts = (phi * video).sum(0).astype(np.float32)
    truth = np.ascontiguousarray(video, np.float32)
    snapshot = Snapshot(
        SnapshotId("test", 0, 0), counts, calibration.hash, len(phi), 0, truth=truth
    )
    _, report = Engine(calibration, make_denoiser("ffdnet-lite", CPU), CPU, how).reconstruct(
        snapshot, iterations
    )
    assert report.psnr_db is not None
    return report.psnr_db


def test_still_texture_next_to_motion_is_kept() -> None:
    both = np.concatenate([grass(), ball()], axis=2)
    assert solved(both, DEFAULT, 12) > solved(both, UNIFORM, 12) + 0.5


def test_warm_start_keeps_fine_texture() -> None:
    calibration, snapshots = film("static", snapshots=3)
    mean_db = {}
    for warm in (False, True):
        how = dataclasses.replace(DEFAULT, warm_start=warm)
        engine = Engine(calibration, make_denoiser("ffdnet-lite", CPU), CPU, how)
        reports = [engine.reconstruct(snapshot, 12)[1] for snapshot in snapshots]
        mean_db[warm] = np.mean([report.psnr_db for report in reports[1:]])
    assert mean_db[True] > mean_db[False] - 0.1


def test_watch_sees_each_estimate() -> None:
    calibration, (snapshot,) = film("fast", width_px=32, height_px=32, n_frames=4)
    engine = Engine(calibration, make_denoiser("ffdnet-lite", CPU), CPU, DEFAULT)
    seen: list[torch.Tensor] = []
    video, _ = engine.reconstruct(snapshot, 3, watch=seen.append)
    assert np.array_equal(seen[-1].numpy(), video)
    assert all(not torch.equal(one, other) for one, other in itertools.pairwise(seen))
