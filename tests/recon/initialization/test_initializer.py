"""Warm starts in the engine: when they apply, the reported reason when they do not,
and their gain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sci_stream.model import BayerPhase, Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.denoisers.registry import IdentityDenoiser
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings
from sci_stream.reports import SolveReport, Start

CPU = torch.device("cpu")
WARM = dataclasses.replace(default_settings(CPU, "tv"), iterations=6, warm_start=True)

Video = npt.NDArray[np.float32]
MakeCalibration = Callable[..., Calibration]
Expose = Callable[..., Snapshot]
SHAPE = (6, 48, 56)


def scene(seq: int, *, seed: int = 0) -> Video:
    """Return the frames of snapshot ``seq`` of a pattern that moves by half a pixel per frame, (B,
    H, W).
    """
    n_frames, height, width = SHAPE
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    random = np.random.default_rng(seed)
    waves = random.uniform(-0.5, 0.5, (6, 2)), random.uniform(0, 6, 6)
    frames = []
    for t in range(seq * n_frames, (seq + 1) * n_frames):
        r, c = rows - 0.3 * t, columns + 0.4 * t
        image = sum(np.sin(a * r + b * c + phase) for (a, b), phase in zip(*waves, strict=True))
        frames.append(np.clip(0.5 + 0.25 * image, 0, 1))
    return np.stack(frames).astype(np.float32)


def solve(engine: Engine, snapshot: Snapshot, iterations: int = 6, **changes: Any) -> SolveReport:
    return engine.reconstruct(dataclasses.replace(snapshot, **changes), iterations)[1]


@pytest.fixture
def calibration(make_calibration: MakeCalibration) -> Calibration:
    return make_calibration(*SHAPE)


@pytest.fixture
def shots(calibration: Calibration, expose: Expose) -> list[Snapshot]:
    return [expose(calibration, scene(seq), seq=seq) for seq in range(4)]


@pytest.fixture
def engine(calibration: Calibration) -> Engine:
    return Engine(calibration, TvDenoiser(), CPU, WARM)


def test_next_snapshot_starts_warm_and_ends_better(
    engine: Engine, calibration: Calibration, shots: list[Snapshot]
) -> None:
    cold = Engine(calibration, TvDenoiser(), CPU, dataclasses.replace(WARM, warm_start=False))
    reports = [(solve(engine, shot), solve(cold, shot)) for shot in shots]
    assert [(warm.start, warm.start_reason) for warm, _ in reports] == [(Start.COLD, "first")] + [
        (Start.WARM, "warm")
    ] * 3
    assert {without.start_reason for _, without in reports} == {"no_warm_start"}
    assert reports[0][0].psnr_db == reports[0][1].psnr_db
    for warm, without in reports[1:]:
        assert warm.psnr_db is not None
        assert without.psnr_db is not None
        assert warm.psnr_db > without.psnr_db + 1.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id": SnapshotId("test", 0, 3)}, "gap"),
        ({"id": SnapshotId("test", 1, 2)}, "gap"),
        ({"id": SnapshotId("test", 0, 1)}, "gap"),
        ({"dropped_before": 1}, "gap"),
        ({"redelivered": 1}, "redelivered"),
        ({"id": SnapshotId("another", 0, 2)}, "first"),
    ],
)
def test_unconnected_snapshot_starts_cold_with_reason(
    engine: Engine, shots: list[Snapshot], changes: dict[str, Any], reason: str
) -> None:
    fresh = Engine(engine.calibration, TvDenoiser(), CPU, WARM)
    solve(engine, shots[1])
    report = solve(engine, shots[2], **changes)
    assert (report.start, report.start_reason) == (Start.COLD, reason)
    assert report.psnr_db == solve(fresh, shots[2]).psnr_db


def test_cut_starts_cold_and_next_snapshot_warm(
    engine: Engine, calibration: Calibration, expose: Expose, shots: list[Snapshot]
) -> None:
    solve(engine, shots[0])
    after = [solve(engine, expose(calibration, scene(seq, seed=4), seq=seq)) for seq in (1, 2)]
    assert [report.start_reason for report in after] == ["cut", "warm"]


def test_late_snapshot_does_not_replace_the_newest_video(
    engine: Engine, shots: list[Snapshot]
) -> None:
    solve(engine, shots[2])
    solve(engine, shots[0], redelivered=1)
    assert solve(engine, shots[3]).start is Start.WARM


def test_forget_starts_cold_with_given_reason(engine: Engine, shots: list[Snapshot]) -> None:
    solve(engine, shots[0])
    engine.forget("calibration")
    assert solve(engine, shots[1]).start_reason == "calibration"
    assert solve(engine, shots[2]).start_reason == "warm"


def test_warm_up_leaves_no_video(engine: Engine, shots: list[Snapshot]) -> None:
    engine.warm_up()
    assert solve(engine, shots[0], id=SnapshotId("warm-up", 0, 1)).start_reason == "first"


def test_modified_result_does_not_affect_next_start(engine: Engine, shots: list[Snapshot]) -> None:
    undisturbed = Engine(engine.calibration, TvDenoiser(), CPU, WARM)
    solve(undisturbed, shots[0])
    video, _ = engine.reconstruct(shots[0], 6)
    video[:] = 0.0
    assert solve(engine, shots[1]).psnr_db == solve(undisturbed, shots[1]).psnr_db


def test_mosaic_starts_warm(make_calibration: MakeCalibration, expose: Expose) -> None:
    calibration = make_calibration(*SHAPE, bayer=BayerPhase.GRBG)
    engine = Engine(calibration, TvDenoiser(), CPU, WARM)
    reports = [solve(engine, expose(calibration, scene(seq), seq=seq)) for seq in range(2)]
    assert [report.start_reason for report in reports] == ["first", "warm"]


def test_diverged_solve_is_not_a_start(engine: Engine, shots: list[Snapshot]) -> None:
    class BreaksOnce(IdentityDenoiser):
        broken = True

        def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
            return super().__call__(x, sigma) * (float("nan") if self.broken else 1.0)

    denoiser = BreaksOnce()
    engine = Engine(engine.calibration, denoiser, CPU, WARM)
    assert solve(engine, shots[0]).start_reason == "diverged"
    denoiser.broken = False
    report = solve(engine, shots[1])
    assert (report.start, report.start_reason) == (Start.COLD, "diverged")


@pytest.mark.parametrize("relaxation", [1.5, 1.86, 1.99])
def test_no_relaxation_diverges_from_a_warm_start(
    calibration: Calibration, shots: list[Snapshot], relaxation: float
) -> None:
    """Two iterations give a valid preceding video for any relaxation; the thirty after them have
    time to diverge.
    """
    solved = []
    for alpha in (relaxation, 1.0):
        settings = dataclasses.replace(WARM, relaxation=alpha, iterations=30)
        engine = Engine(calibration, TvDenoiser(), CPU, settings)
        solve(engine, shots[0], iterations=2)
        solved.append(solve(engine, shots[1], iterations=30))
    assert [report.start_reason for report in solved] == ["warm", "warm"]
    accelerated, plain = (report.psnr_db for report in solved)
    assert accelerated is not None
    assert plain is not None
    assert accelerated > plain - 1.0
