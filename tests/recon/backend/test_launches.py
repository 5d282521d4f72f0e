"""Kernel launches, waits and recordings of a solve, counted on a substitute for a GPU."""

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
from sci_stream.ports import Denoiser
from sci_stream.recon.algorithms.noise_level import Sigma
from sci_stream.recon.backend.async_solve import AsyncSolve
from sci_stream.recon.backend.cuda_graph import Replay
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import named_prior
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.initialization.initializer import Past
from sci_stream.recon.settings import default_settings
from sci_stream.reports import Start
from tests.recon.backend.stand_in import Device, OutsideTensors

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


def make_engine(
    calibration: Calibration, device: Device | None, *, prior: Denoiser | None = None, **how: Any
) -> Engine:
    settings = dataclasses.replace(
        default_settings(CPU, "tv"), iterations=6, warm_start=True, **how
    )
    return Engine(
        calibration,
        prior or TvDenoiser(1),
        CPU,
        settings,
        recorder=None if device is None else device.record,
    )


def begun_as_one_launch(
    engine: Engine, device: Device, snapshot: Snapshot, iterations: int
) -> AsyncSolve:
    """Begin a recorded solve; assert that it launches hardly more than itself and waits for
    nothing.
    """
    device.reset()
    with device:
        pending = engine.begin(snapshot, iterations)
    assert device.recordings == 0
    assert not device.waits, device.waits
    assert device.launches < 16
    return pending


@pytest.mark.parametrize(
    ("bayer", "how"),
    [
        (None, {}),
        (BayerPhase.RGGB, {}),
        (None, {"weigh_noise": False, "local_sigma": False}),
        (None, {"linear_start": False}),
    ],
)
def test_whole_solve_is_one_launch_and_waits_for_nothing(
    bayer: BayerPhase | None, how: dict[str, Any], make_calibration: MakeCalibration, expose: Expose
) -> None:
    """The device decides between a cold and a warm start and on the levels of σ, as the host does
    step by step.
    """
    calibration, device = make_calibration(*SHAPE, bayer=bayer), Device()
    plain, engine = (make_engine(calibration, on, **how) for on in (None, device))
    engine.warm_up()
    starts = []
    # 5 are not recorded: the next lower number is spent.
    for asked, iterations, snapshot in zip(
        (6, 4, 6, 5), (6, 4, 6, 4), snapshots(calibration, expose, 4), strict=True
    ):
        video, report = begun_as_one_launch(engine, device, snapshot, asked).finish()
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


def test_solve_with_trained_stages_is_one_launch(
    make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration, device = make_calibration(*SHAPE), Device()
    prior, settings = (
        named_prior("unrolled", CPU, None, Precision.FLOAT32),
        default_settings(CPU, "unrolled"),
    )
    plain, engine = (
        Engine(
            calibration,
            prior,
            CPU,
            dataclasses.replace(settings, warm_start=True),
            recorder=recorder,
        )
        for recorder in (None, device.record)
    )
    engine.warm_up()
    for snapshot, iterations in zip(snapshots(calibration, expose, 3), (15, 8, 12), strict=True):
        video, _ = begun_as_one_launch(engine, device, snapshot, iterations).finish()
        np.testing.assert_allclose(video, plain.reconstruct(snapshot, iterations)[0], atol=1e-4)


@pytest.mark.parametrize("name", ["tv", "unrolled"])
def test_tensors_from_outside_outlive_a_recording(
    name: str, make_calibration: MakeCalibration, expose: Expose
) -> None:
    """A graph has addresses and no references; solves of many other sizes come in between."""
    outside, device = OutsideTensors(), Device()

    def record(work: Replay) -> Replay:
        with outside:
            work()
        return device.record(work)

    settings = dataclasses.replace(default_settings(CPU, name), iterations=4, warm_start=True)
    prior = named_prior(name, CPU, None, Precision.FLOAT32)
    engine = Engine(make_calibration(*SHAPE), prior, CPU, settings, recorder=record)
    engine.warm_up()
    for frames in range(2, 20):
        calibration = make_calibration(frames, 24, 16 + 2 * frames)
        other = make_engine(calibration, None)
        for seq in range(2):
            video = np.full((frames, 24, 16 + 2 * frames), 0.1 * (seq + 1), np.float32)
            other.reconstruct(expose(calibration, video, seq=seq))
    gc.collect()
    assert len(outside.tensors) > 10
    assert all(tensor() is not None for tensor in outside.tensors)


def test_changed_iterations_replace_recording_of_whole_solve(
    make_calibration: MakeCalibration, expose: Expose
) -> None:
    """An operator changes them in a running rig; the old recording would go on with the
    old number.
    """
    calibration, device = make_calibration(*SHAPE), Device()
    plain, engine = (make_engine(calibration, on) for on in (None, device))
    engine.warm_up()
    (snapshot,) = snapshots(calibration, expose, 1)
    recordings = []
    for iterations in (6, 4, 5, 4):
        for each in (plain, engine):
            each.forget()
            each.change_settings(dataclasses.replace(each.settings, iterations=iterations))
        video, report = engine.reconstruct(snapshot)
        np.testing.assert_allclose(video, plain.reconstruct(snapshot)[0], atol=1e-4)
        assert report.iterations == iterations
        recordings.append(engine.recordings)
    assert recordings == [4, 1, 1, 1], (
        "cold and warm of 6 and 4 iterations; those of other numbers are let go of"
    )


def test_video_of_a_whole_solve_survives_the_next_replay(
    make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration, device = make_calibration(*SHAPE), Device()
    engine = make_engine(calibration, device)
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
    make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration, device = make_calibration(*SHAPE), Device()
    plain, engine = (make_engine(calibration, on) for on in (None, device))
    engine.warm_up()
    shots = snapshots(calibration, expose, 3)
    for shot in (shots[1], dataclasses.replace(shots[0], redelivered=True), shots[2]):
        video, report = engine.reconstruct(shot)
        wanted, _ = plain.reconstruct(shot)
    assert report.start_reason == "warm"
    np.testing.assert_allclose(video, wanted, atol=1e-4)


def test_denoiser_of_two_forms_waits_once(
    make_calibration: MakeCalibration, expose: Expose
) -> None:
    """It reads every level, so that nothing is recorded; both ends of the schedule come to the host
    at once.
    """
    calibration, device = make_calibration(*SHAPE), Device()
    plain, engine = (make_engine(calibration, on, prior=TwoForms()) for on in (None, device))
    engine.warm_up()
    assert (device.recordings, engine.recordings) == (0, 0)
    assert engine.fault == "solves are not recorded: the denoiser tv reads each σ as a number"
    for snapshot in snapshots(calibration, expose, 2):
        device.reset()
        with device:
            pending = engine.begin(snapshot, 6)
        # Here the host is the device, and a level on the host counts when it is compared.
        waits = [wait for wait in device.waits if not wait.startswith("aten.is_nonzero")]
        assert waits == ["cpu: a tensor is read back"]
        np.testing.assert_array_equal(pending.finish()[0], plain.reconstruct(snapshot, 6)[0])


def test_displaced_masks_need_no_new_recording(
    make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration, device = make_calibration(*SHAPE), Device()
    plain, engine = make_engine(calibration, None), make_engine(calibration, device)
    engine.warm_up()
    device.reset()
    for displacement, snapshot in zip(
        (Displacement((1, 0)), Displacement((0, 1), x=(0.0, 0.0, 0.5, 0.5, 0.0))),
        snapshots(calibration, expose, 2),
        strict=True,
    ):
        for each in (plain, engine):
            each.correct_masks(MaskCorrection(displacement))
        video, wanted = engine.reconstruct(snapshot)[0], plain.reconstruct(snapshot)[0]
        np.testing.assert_allclose(video, wanted, atol=1e-4)
    assert device.recordings == 0


def test_snapshot_after_a_diverged_one_starts_cold(
    make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration, device = make_calibration(*SHAPE), Device()
    engine = make_engine(calibration, device)
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
    make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration, device = make_calibration(*SHAPE), Device()
    engine = make_engine(calibration, device)
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
