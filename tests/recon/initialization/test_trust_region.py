"""A solve is held to its start: σ and the frames go no further than the start is estimated to be wrong."""

from __future__ import annotations

import dataclasses
import itertools
import math

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sci_stream.bench.datasets import filmed
from sci_stream.model import Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Budget, Engine
from sci_stream.recon.initialization.trust_region import InitialErrorMap, TrustRegion, start_error
from sci_stream.recon.settings import SolverSettings, default_settings

P, B, H, W = 2, 4, 24, 32
CPU = torch.device("cpu")
DEFAULT = default_settings(CPU, "ffdnet-lite")
FREE = dataclasses.replace(DEFAULT, restrain=False)


def error_of(rms: float, of_motion: float = 1.0) -> InitialErrorMap:
    """Return the error of a start that is wrong by so much everywhere, so much of it where something moves."""
    mean = torch.tensor(rms**2)
    return InitialErrorMap(torch.full((P, H, W), rms**2), mean, mean, torch.ones(P, H, W), torch.tensor(of_motion))


def never() -> None:
    pytest.fail("ended early")


def started() -> torch.Tensor:
    return torch.rand(P, B, H, W, generator=torch.Generator().manual_seed(0))


@given(rms=st.floats(1e-3, 0.2), moved=st.floats(-0.5, 0.5))
@settings(max_examples=40, deadline=None)
def test_frames_are_taken_back_to_where_they_may_be_wrong(rms: float, moved: float) -> None:
    start = started()
    held = TrustRegion(start, error_of(rms), never).held(start + moved)
    expected = math.copysign(min(abs(moved), 1.35 * rms), moved)
    torch.testing.assert_close(held - start, torch.full_like(start, expected), atol=2e-6, rtol=1e-4)


def test_what_stands_still_is_held_closer() -> None:
    start, rms = torch.zeros(P, B, H, 8 * W), 0.02
    moves = torch.zeros(P, H, 8 * W)
    moves[..., 4 * W :] = 1.0
    error = error_of(rms)._replace(around=torch.full((P, H, 8 * W), rms**2), moves=moves)
    held = TrustRegion(start, error, never).held(start + 0.1)
    torch.testing.assert_close(held[..., 0], torch.full((P, B, H), 0.5 * rms))
    torch.testing.assert_close(held[..., -1], torch.full((P, B, H), 1.35 * rms))
    across = held[0, 0, 0].diff()
    assert float(across.min()) >= -1e-6, "it passes from the one to the other without a seam"
    assert float(across.max()) < 0.2 * rms


def test_motion_seen_at_half_of_the_pixels_is_motion() -> None:
    start, rms = torch.zeros(P, B, H, W), 0.02
    moves = torch.zeros(P, H, W)
    moves[..., ::2] = 1.0
    held = TrustRegion(start, error_of(rms)._replace(moves=moves), never).held(start + 0.1)
    torch.testing.assert_close(held, torch.full_like(held, 1.35 * rms))


@given(ratio=st.floats(0.0, 1.5), moved=st.floats(0.0, 0.02))
@settings(max_examples=40, deadline=None)
def test_of_each_change_a_warm_start_stands_with_what_it_is_better_by(ratio: float, moved: float) -> None:
    start, cold = started(), error_of(0.1)
    error = error_of(0.1 * ratio**0.5).of_warm(cold)
    held = TrustRegion(start, error._replace(around=cold.around), never).held(start + moved)
    share = 1 - 0.6 * (1 - min(ratio, 1.0))
    torch.testing.assert_close(held - start, torch.full_like(start, moved * share), atol=2e-6, rtol=1e-4)


def test_where_nothing_is_measured_warm_and_cold_are_the_same() -> None:
    unknown = error_of(0.1)._replace(around=torch.full((P, H, W), math.inf))
    beside = unknown.of_warm(unknown).beside_cold
    assert beside is not None
    assert torch.equal(beside, torch.ones(P, H, W))


def test_each_place_is_denoised_by_its_own_error_within_limits() -> None:
    around = torch.tensor([0.0, 0.01, 0.04, 0.16, 1e3, math.inf]).square().view(1, 1, -1)
    levels = error_of(0.04)._replace(around=around, where_wrong=torch.tensor(0.04**2)).levels()
    torch.testing.assert_close(levels.flatten(), torch.tensor([0.5, 0.5, 1.0, 2.0, 2.0, 1.0]))
    assert bool(error_of(0.0).levels().isfinite().all())


def test_each_place_is_held_by_its_own_error() -> None:
    start = torch.zeros(P, B, H, W)
    around = torch.full((P, H, W), 0.01**2)
    around[..., W // 2 :] = 0.1**2
    held = TrustRegion(start, error_of(0.05)._replace(around=around), never).held(start + 0.1)
    torch.testing.assert_close(held[..., 0], torch.full((P, B, H), 0.0135))
    torch.testing.assert_close(held[..., -1], torch.full((P, B, H), 0.1))


def test_where_nothing_is_measured_the_denoiser_alone_decides() -> None:
    exposure = torch.ones(P, H, 4 * W)
    exposure[..., W:] = 0.0
    error = start_error(torch.zeros_like(exposure), exposure, torch.ones_like(exposure))
    start = torch.zeros(P, B, H, 4 * W)
    held = TrustRegion(start, error, never).held(start + 0.3)
    assert float(held[..., 0].abs().max()) == 0.0
    torch.testing.assert_close(held[..., -1], torch.full((P, B, H), 0.3))


def test_prediction_errors_are_weighed_by_the_exposure() -> None:
    exposure = 1.0 + 3.0 * torch.rand(P, H, W, generator=torch.Generator().manual_seed(1))
    error = start_error(0.02**2 * exposure, exposure, torch.ones_like(exposure))
    torch.testing.assert_close(error.around.sqrt(), torch.full((P, H, W), 0.02))
    assert float(error.everywhere) == pytest.approx(0.02**2)
    assert float(error.where_wrong) == pytest.approx(0.02**2)


def test_errors_are_as_large_where_something_is_wrong_however_little_that_is() -> None:
    """A drop that falls before a still wall is not to be taken for a scene that is nearly right all over."""
    exposure = torch.ones(1, 96, 96)
    mispredicted = torch.zeros(1, 96, 96)
    mispredicted[:, 32:64, 32:64] = 0.1**2
    error = start_error(mispredicted, exposure, torch.ones_like(exposure))
    assert float(error.everywhere) == pytest.approx(0.1**2 / 9)
    assert 0.2 * 0.1**2 < float(error.where_wrong) < 0.1**2 / 3
    unmeasured = exposure.clone()
    unmeasured[:, :, 80:] = 0.0
    cut = start_error(mispredicted * unmeasured, unmeasured, torch.ones_like(exposure))
    assert float(cut.where_wrong) > float(error.where_wrong), "what is not measured is not taken for right"


def sigmas_after(first_moves: float, planned: list[float]) -> list[float]:
    """Return σ of a solve whose first denoising moves the frames by so many errors."""
    start = started()
    restraint = TrustRegion(start, error_of(0.02), never)
    result = [restraint.sigma(planned[0])]
    for _, sigma in zip(restraint.watched([start + 0.02 * first_moves, start + 0.5]), planned[1:], strict=False):
        result.append(restraint.sigma(sigma))
    return result


PLANNED = [0.16, 0.12, 0.08]


@pytest.mark.parametrize("first_moves", [0.0, 0.3, 0.59])
def test_a_first_denoising_that_takes_away_no_more_than_is_wrong_changes_nothing(first_moves: float) -> None:
    assert sigmas_after(first_moves, PLANNED) == PLANNED


def test_a_first_denoising_that_takes_away_more_lowers_sigma_from_then_on() -> None:
    assert sigmas_after(1.2, PLANNED) == pytest.approx([0.16, 0.03, 0.02])


def test_sigma_is_not_lowered_below_four_levels_nor_ever_raised() -> None:
    assert sigmas_after(50.0, PLANNED) == pytest.approx([0.16, 4 / 255, 4 / 255])
    assert sigmas_after(50.0, [0.16, 2 / 255, 2 / 255]) == pytest.approx([0.16, 2 / 255, 2 / 255])


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_diverged_estimate_is_left_for_the_engine_to_find(broken: float) -> None:
    assert sigmas_after(broken, PLANNED) == PLANNED


def test_a_start_without_any_error_stays() -> None:
    start = started()
    restraint = TrustRegion(start, error_of(0.0), never)
    for _ in restraint.watched([start]):
        pass
    torch.testing.assert_close(restraint.held(start + 0.1), start)


@pytest.mark.parametrize(
    ("first_moves", "of_motion", "ends"),
    [(0.7, 0.4, True), (0.7, 0.6, False), (0.5, 0.4, False), (math.nan, 0.4, False)],
)
def test_a_solve_that_has_little_to_mend_ends_early(first_moves: float, of_motion: float, ends: bool) -> None:
    ended: list[bool] = []
    start = started()
    restraint = TrustRegion(start, error_of(0.02, of_motion), lambda: ended.append(True))
    for _ in restraint.watched([start + 0.02 * first_moves, start, start]):
        pass
    assert (len(ended), restraint.ended_early) == (int(ends), ends)


def grass() -> np.ndarray:
    """Return frames of a fine texture that stands still, (B, H, W)."""
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
    """Return the PSNR after so many iterations behind random masks."""
    phi = (np.random.default_rng(7).random(video.shape) < 0.5).astype(np.float32)
    calibration = Calibration(phi, dark=0.0, full_scale_dn=1.0)
    counts = (phi * video).sum(0).astype(np.float32)
    truth = np.ascontiguousarray(video, np.float32)
    snapshot = Snapshot(SnapshotId("test", 0, 0), counts, calibration.hash, len(phi), 0, truth=truth)
    _, report = Engine(calibration, make_denoiser("ffdnet-lite", CPU), CPU, how).reconstruct(
        snapshot, Budget(iterations)
    )
    assert report.psnr_db is not None
    return report.psnr_db


def test_what_a_warm_start_knows_of_texture_is_not_denoised_away() -> None:
    rng = np.random.default_rng(3)
    photo = cv2.GaussianBlur(rng.standard_normal((96, 160)).astype(np.float32), (0, 0), 0.8)
    photo = (0.5 + 0.25 * photo / photo.std()).clip(0, 1)
    frames = np.stack([photo[16:80, 8 + t : 72 + t] for t in range(40)])  # panned by a pixel a frame
    phi = (rng.random((8, 64, 64)) < 0.5).astype(np.float32)
    calibration = Calibration(phi, dark=0.0, full_scale_dn=1.0)
    gains = {}
    for restrain in (True, False):
        engine = Engine(
            calibration,
            make_denoiser("ffdnet-lite", CPU),
            CPU,
            dataclasses.replace(DEFAULT, warm_start=True, restrain=restrain),
        )
        psnr_db = []
        for n in range(5):
            truth = np.ascontiguousarray(frames[8 * n : 8 * n + 8])
            counts = (phi * truth).sum(0)
            _, report = engine.reconstruct(
                Snapshot(SnapshotId("test", 0, n), counts, calibration.hash, 8, 0, truth=truth), Budget(8)
            )
            assert report.psnr_db is not None
            psnr_db.append(report.psnr_db)
        gains[restrain] = psnr_db[-1] - psnr_db[0]
    assert gains[True] > gains[False] + 0.5
    assert gains[True] > 1.0, "it gathers from snapshot to snapshot"


def test_fine_texture_is_kept() -> None:
    assert solved(grass(), DEFAULT, 12) > solved(grass(), FREE, 12) + 0.5


def test_motion_is_mended_as_without_restraint() -> None:
    assert solved(ball(), DEFAULT, 12) > solved(ball(), FREE, 12) - 0.1


@pytest.mark.parametrize("scene", ["slow", "static"])
def test_fine_detail_is_kept_behind_the_simulated_camera(scene: str) -> None:
    film = filmed(
        scene, "simulated", scene=scene, snapshots=1, width_px=64, height_px=64, bayer=None, n_frames=8, truth=True
    )
    by = {}
    for how in (DEFAULT, FREE):
        engine = Engine(film.calibration, make_denoiser("ffdnet-lite", CPU), CPU, how)
        by[how.restrain] = [engine.reconstruct(film.snapshots[0], Budget(n))[1].psnr_db for n in (6, 20)]
    assert min(by[True]) > min(by[False]) + 0.3


def test_a_warm_start_is_held_like_a_cold_one_and_never_worse_on_fine_texture() -> None:
    size = {"width_px": 64, "height_px": 64, "bayer": None, "n_frames": 8}
    film = filmed("static", "simulated", scene="static", snapshots=3, truth=True, full_well_e=1e9, **size)
    mean_db = {}
    for warm in (False, True):
        how = dataclasses.replace(DEFAULT, warm_start=warm)
        engine = Engine(film.calibration, make_denoiser("ffdnet-lite", CPU), CPU, how)
        reports = [engine.reconstruct(snapshot, Budget(12))[1] for snapshot in film.snapshots]
        mean_db[warm] = np.mean([report.psnr_db for report in reports[1:]])
    assert mean_db[True] > mean_db[False] - 0.1


def test_who_watches_sees_each_estimate_as_it_would_be_handed_out() -> None:
    film = filmed(
        "f", "simulated", scene="fast", snapshots=1, width_px=32, height_px=32, bayer=None, n_frames=4, truth=True
    )
    engine = Engine(film.calibration, make_denoiser("ffdnet-lite", CPU), CPU, DEFAULT)
    seen: list[torch.Tensor] = []
    video, _ = engine.reconstruct(film.snapshots[0], Budget(3), watch=seen.append)
    assert np.array_equal(seen[-1].numpy(), video)
    assert all(not torch.equal(one, other) for one, other in itertools.pairwise(seen))
