"""Launches, waits, copies and recordings of a solve, counted on a pretended GPU.

Operations on tensors of two devices raise there. Its videos are compared with the processor's.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sci_stream.model import BayerPhase, Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.displacement import Displacement
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.ports import Solver
from sci_stream.recon.algorithms.noise_level import Sigma
from sci_stream.recon.backend.async_solve import AsyncSolve
from sci_stream.recon.backend.cuda_graph import record_cuda_graph
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import DENOISERS, named_prior
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.initialization.initializer import Past
from sci_stream.recon.settings import SolverSettings, default_settings
from sci_stream.reports import Start
from tests.recon.backend.pretended_cuda import CUDA, PretendedCuda

CPU = torch.device("cpu")
SHAPE = (4, 32, 40)
MakeCalibration = Callable[..., Calibration]
Expose = Callable[..., Snapshot]


def snapshots(calibration: Calibration, expose: Expose, count: int = 4) -> list[Snapshot]:
    """Return consecutive snapshots of a pattern that moves by half a pixel per frame."""
    random = np.random.default_rng(0)
    waves = random.uniform(-0.5, 0.5, (6, 2)), random.uniform(0, 6, 6)
    rows, columns = np.mgrid[: SHAPE[1], : SHAPE[2]].astype(np.float64)
    found = []
    for seq in range(count):
        frames = []
        for t in range(seq * SHAPE[0], (seq + 1) * SHAPE[0]):
            at = zip(*waves, strict=True)
            image = sum(
                np.sin(a * (rows - 0.3 * t) + b * (columns + 0.4 * t) + phase)
                for (a, b), phase in at
            )
            frames.append(np.clip(0.5 + 0.25 * image, 0, 1))
        found.append(expose(calibration, np.stack(frames).astype(np.float32), seq=seq))
    return found


class TwoForms(TvDenoiser):
    """Computes in two forms, above and below a level of σ, as a network in two precisions."""

    recordable = False

    def __call__(self, x: torch.Tensor, sigma: Sigma) -> torch.Tensor:
        self._steps = 1 if sigma > 12 / 255 else 2
        return super().__call__(x, sigma)


def solver_settings(name: str = "tv", iterations: int = 6, **how: Any) -> SolverSettings:
    """Return settings with warm starts, by which one number of iterations is recorded."""
    settings = {"iterations": iterations, "min_iterations": iterations, "warm_start": True} | how
    return dataclasses.replace(default_settings(CPU, name), **settings)


def make_engine(
    calibration: Calibration,
    device: torch.device,
    settings: SolverSettings | None = None,
    *,
    name: str = "tv",
    solver: Solver | None = None,
    recorded: bool = True,
) -> Engine:
    """Make an engine that fuses nothing, and records its solves on a GPU."""
    if solver is None:
        solver = (
            TvDenoiser(1) if name == "tv" else named_prior(name, device, None, Precision.FLOAT32)
        )
    return Engine(
        calibration,
        solver,
        device,
        settings or solver_settings(name),
        recorder=record_cuda_graph(device) if device.type == "cuda" else None,
        cuda_graphs=recorded,
    )


def begun_without_waits(
    engine: Engine, gpu: PretendedCuda, snapshot: Snapshot, iterations: int | None = None
) -> AsyncSolve:
    """Begin a solve; assert that the host waits for nothing and copies counts, their saturated
    pixels, the video and its figures.
    """
    gpu.reset()
    pending = engine.begin(snapshot, iterations)
    assert not gpu.waits
    assert gpu.up.total() == gpu.down.total() == 2
    return pending


def begun_as_one_launch(
    engine: Engine, gpu: PretendedCuda, snapshot: Snapshot, iterations: int | None = None
) -> AsyncSolve:
    """Begin a recorded solve, as above; assert that it launches hardly more than itself."""
    pending = begun_without_waits(engine, gpu, snapshot, iterations)
    assert gpu.recordings == 0
    assert gpu.launches < 16
    return pending


@pytest.mark.parametrize(
    ("name", "recorded"),
    [*((name, True) for name in DENOISERS), ("tv", False), ("unrolled", False)],
)
@pytest.mark.parametrize("bayer", [None, BayerPhase.RGGB])
def test_solve_waits_for_nothing_and_copies_twice(
    *,
    name: str,
    recorded: bool,
    bayer: BayerPhase | None,
    gpu: PretendedCuda,
    make_calibration: MakeCalibration,
    expose: Expose,
) -> None:
    """Cold, warm, and with corrected masks; a recorded solve is one launch."""
    calibration = make_calibration(*SHAPE, bayer=bayer)
    settings = solver_settings(name, 10 if name == "unrolled" else 3)
    plain, engine = (
        make_engine(calibration, device, settings, name=name, recorded=recorded)
        for device in (CPU, CUDA)
    )
    engine.warm_up()
    begin = begun_as_one_launch if recorded else begun_without_waits
    starts = []
    for n, snapshot in enumerate(snapshots(calibration, expose, 3)):
        if n == 2:
            for corrected in (plain, engine):
                corrected.correct_masks(MaskCorrection(Displacement((1, 0))))
        video, report = begin(engine, gpu, snapshot).finish()
        wanted, expected = plain.reconstruct(snapshot)
        assert report.start_reason == expected.start_reason
        starts.append(report.start)
        np.testing.assert_allclose(video, wanted, atol=1e-4)
    assert starts[:2] == [Start.COLD, Start.WARM]
    assert bool(engine.recordings) is recorded
    assert bool(engine.fault) is not recorded


@pytest.mark.parametrize(
    "how", [{}, {"weigh_noise": False, "local_sigma": False}, {"linear_start": False}]
)
def test_recorded_solves_report_what_plain_ones_do(
    how: dict[str, Any], gpu: PretendedCuda, make_calibration: MakeCalibration, expose: Expose
) -> None:
    """The device decides between a cold and a warm start and on the levels of σ, as the host does
    step by step.
    """
    calibration = make_calibration(*SHAPE)
    plain, engine = (
        make_engine(calibration, on, solver_settings(min_iterations=4, **how)) for on in (CPU, CUDA)
    )
    engine.warm_up()
    starts = []
    # 5 are not recorded: the next lower number is spent.
    for asked, iterations, snapshot in zip(
        (6, 4, 6, 5), (6, 4, 6, 4), snapshots(calibration, expose, 4), strict=True
    ):
        video, report = begun_as_one_launch(engine, gpu, snapshot, asked).finish()
        wanted, plain_report = plain.reconstruct(snapshot, iterations)
        assert (report.start, report.start_reason) == (
            plain_report.start,
            plain_report.start_reason,
        )
        assert (report.iterations, report.psnr_db) == (
            iterations,
            pytest.approx(plain_report.psnr_db, abs=1e-3),
        )
        assert report.residual == pytest.approx(plain_report.residual, abs=1e-4)
        np.testing.assert_allclose(video, wanted, atol=1e-4)
        starts.append(report.start)
    assert engine.fault == ""
    assert starts[0] is Start.COLD
    assert Start.WARM in starts


def test_tensors_from_outside_outlive_a_recording(
    gpu: PretendedCuda, make_calibration: MakeCalibration, expose: Expose
) -> None:
    """A replay raises where one is gone; solves of many other sizes come in between."""
    calibration = make_calibration(*SHAPE)
    cold, warm = snapshots(calibration, expose, 2)
    before = {}
    for name in ("tv", "unrolled"):
        engine = make_engine(calibration, CUDA, solver_settings(name, 4), name=name)
        engine.warm_up()
        before[engine] = [engine.reconstruct(snapshot)[0] for snapshot in (cold, warm)]
    for frames in range(2, 20):
        other = make_engine(make_calibration(frames, 16, 8 + 2 * frames), CUDA, recorded=False)
        past = Past(torch.zeros_like(other.masks.phi), torch.ones((), device=CUDA) > 0)
        measurement = other.prepare(torch.ones(other.calibration.shape, device=CUDA))
        next(other.solve(measurement, other.initialize(measurement, past), 1))
    gc.collect()
    for engine, videos in before.items():
        engine.forget()
        for snapshot, video in zip((cold, warm), videos, strict=True):
            again = begun_as_one_launch(engine, gpu, snapshot).finish()[0]
            np.testing.assert_array_equal(again, video)


def test_changed_iterations_replace_recording_of_whole_solve(
    gpu: PretendedCuda, make_calibration: MakeCalibration, expose: Expose
) -> None:
    """An operator changes them in a running rig; the old recording would go on with the
    old number.
    """
    calibration = make_calibration(*SHAPE)
    settings = solver_settings(min_iterations=4)
    plain, engine = (make_engine(calibration, on, settings) for on in (CPU, CUDA))
    engine.warm_up()
    (snapshot,) = snapshots(calibration, expose, 1)
    recordings = []
    for iterations in (6, 4, 5, 4):
        for changed in (plain, engine):
            changed.forget()
            changed.change_settings(dataclasses.replace(settings, iterations=iterations))
        video, report = engine.reconstruct(snapshot)
        np.testing.assert_allclose(video, plain.reconstruct(snapshot)[0], atol=1e-4)
        assert report.iterations == iterations
        recordings.append(engine.recordings)
    assert recordings == [4, 1, 1, 1], (
        "cold and warm of 6 and 4 iterations; those of other numbers are let go of"
    )


def test_video_of_a_whole_solve_survives_the_next_replay(
    gpu: PretendedCuda, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration(*SHAPE)
    engine = make_engine(calibration, CUDA)
    engine.warm_up()
    one, other = snapshots(calibration, expose, 2)
    pending = engine.begin(one)
    later = engine.begin(other)
    video = pending.finish()[0]
    kept = video.copy()
    later.finish()
    engine.reconstruct(other)
    np.testing.assert_array_equal(video, kept)
    engine.forget()
    np.testing.assert_allclose(engine.reconstruct(one)[0], kept, atol=1e-6)


def test_video_of_a_late_snapshot_does_not_replace_the_newest(
    gpu: PretendedCuda, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration(*SHAPE)
    plain, engine = (make_engine(calibration, on) for on in (CPU, CUDA))
    engine.warm_up()
    shots = snapshots(calibration, expose, 3)
    for shot in (shots[1], dataclasses.replace(shots[0], redelivered=True), shots[2]):
        video, report = engine.reconstruct(shot)
        wanted, _ = plain.reconstruct(shot)
    assert report.start_reason == "warm"
    np.testing.assert_allclose(video, wanted, atol=1e-4)


def test_denoiser_of_two_forms_waits_once(
    gpu: PretendedCuda, make_calibration: MakeCalibration, expose: Expose
) -> None:
    """It reads every level, so that nothing is recorded; both ends of the schedule come to the host
    at once.
    """
    calibration = make_calibration(*SHAPE)
    plain, engine = (make_engine(calibration, on, solver=TwoForms()) for on in (CPU, CUDA))
    engine.warm_up()
    assert (gpu.recordings, engine.recordings) == (0, 0)
    assert engine.fault == "solves are not recorded: the denoiser tv reads each σ as a number"
    for snapshot in snapshots(calibration, expose, 2):
        gpu.reset()
        pending = engine.begin(snapshot, 6)
        assert gpu.waits == ["to from the device"]
        np.testing.assert_allclose(
            pending.finish()[0], plain.reconstruct(snapshot, 6)[0], atol=1e-4
        )


def test_displaced_masks_need_no_new_recording(
    gpu: PretendedCuda, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration(*SHAPE)
    plain, engine = (make_engine(calibration, on) for on in (CPU, CUDA))
    engine.warm_up()
    gpu.reset()
    for displacement, snapshot in zip(
        (Displacement((1, 0)), Displacement((0, 1), x=(0.0, 0.0, 0.5, 0.5, 0.0))),
        snapshots(calibration, expose, 2),
        strict=True,
    ):
        for each in (plain, engine):
            each.correct_masks(MaskCorrection(displacement))
        video, wanted = engine.reconstruct(snapshot)[0], plain.reconstruct(snapshot)[0]
        np.testing.assert_allclose(video, wanted, atol=1e-4)
    assert gpu.recordings == 0


def test_snapshot_after_a_diverged_one_starts_cold(
    gpu: PretendedCuda, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration(*SHAPE)
    engine = make_engine(calibration, CUDA)
    engine.warm_up()
    shots = snapshots(calibration, expose, 3)
    reports = []
    for shot in shots:
        if shot is shots[1]:
            engine._initializer._past = Past(
                torch.full_like(engine.masks.phi, torch.nan), torch.tensor(False)
            )
        reports.append(engine.reconstruct(shot)[1])
    assert [report.start_reason for report in reports] == ["first", "diverged", "warm"]
    assert all(report.psnr_db is not None and report.psnr_db > 10 for report in reports)


def test_engine_out_of_memory_releases_recordings_and_continues(
    gpu: PretendedCuda, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration(*SHAPE)
    engine = make_engine(calibration, CUDA)
    engine.warm_up()
    (snapshot,) = snapshots(calibration, expose, 1)
    before = engine.reconstruct(snapshot)[0]
    engine.forget()
    assert engine.reduce_memory()
    np.testing.assert_allclose(engine.reconstruct(snapshot)[0], before, atol=1e-4)
    assert engine.recordings == 0
    assert engine.fault == "solves are not recorded: memory ran out"


def test_warm_up_times_iterations_at_levels_of_real_scenes(
    make_calibration: MakeCalibration,
) -> None:
    """A dark snapshot begins at the lowest level, where a network in two precisions computes in the
    slower one.
    """
    levels: list[float] = []

    class Noting(TvDenoiser):
        def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
            levels.append(float(sigma))
            return super().__call__(x, sigma)

    Engine(make_calibration(*SHAPE), Noting(), CPU, default_settings(CPU, "tv")).warm_up()
    assert np.mean(np.array(levels) > 10 / 255) > 0.5
