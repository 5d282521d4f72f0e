"""The engine: a snapshot in, a video and its report out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sci_stream.errors import CalibrationError, DeviceError
from sci_stream.model import BayerPhase, Snapshot
from sci_stream.optics import bayer
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.displacement import Displacement
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.ports import Denoiser
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.budget import BudgetController
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.registry import IdentityDenoiser
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import load_ffdnet
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import SolverSettings, default_settings
from sci_stream.reports import Start

CPU = torch.device("cpu")
TV = dataclasses.replace(default_settings(CPU, "tv"), iterations=12)

_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

Video = npt.NDArray[np.float32]
MakeVideo = Callable[..., Video]
MakeCalibration = Callable[..., Calibration]
Expose = Callable[..., Snapshot]


def _engine(
    calibration: Calibration, settings: SolverSettings = TV, denoiser: Denoiser | None = None
) -> Engine:
    return Engine(calibration, denoiser or TvDenoiser(), CPU, settings)


@pytest.mark.parametrize("shape", [(4, 32, 40), (1, 24, 24), (3, 31, 45), (8, 17, 64)])
def test_moving_scene_is_recovered(
    make_video: MakeVideo,
    make_calibration: MakeCalibration,
    expose: Expose,
    shape: tuple[int, int, int],
) -> None:
    calibration = make_calibration(*shape)
    truth = make_video(*shape)
    video, report = _engine(calibration).reconstruct(expose(calibration, truth))
    assert video.shape == shape
    assert video.dtype == np.float32
    assert np.isfinite(video).all()
    assert report.residual < 0.05
    assert report.psnr_db is not None
    assert report.psnr_db > 22.0


def test_report_describes_the_solve(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration()
    snapshot = expose(calibration, make_video())
    video, report = _engine(calibration).reconstruct(snapshot)
    assert report.iterations == 12
    assert report.start is Start.COLD
    assert report.start_reason == "no_warm_start"
    assert not report.budget_limited
    assert report.solve_ns > 0
    assert report.saturated_fraction == 0.0
    y = calibration.measurement(snapshot.counts)
    residual = np.linalg.norm(y - (calibration.phi * video).sum(0)) / np.linalg.norm(y)
    assert report.residual == pytest.approx(residual, rel=1e-4)
    mse = ((video - snapshot.truth) ** 2).mean((-1, -2))
    assert report.psnr_db == pytest.approx(float((-10 * np.log10(mse)).mean()), abs=1e-3)


def test_same_snapshot_gives_same_video(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration()
    engine = _engine(calibration)
    snapshot = expose(calibration, make_video())
    first, _ = engine.reconstruct(snapshot)
    engine.reconstruct(expose(calibration, 1 - make_video()))
    again, _ = engine.reconstruct(snapshot)
    np.testing.assert_array_equal(first, again)


def test_report_without_truth_has_no_psnr(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration()
    snapshot = dataclasses.replace(expose(calibration, make_video()), truth=None)
    assert _engine(calibration).reconstruct(snapshot)[1].psnr_db is None


def test_truth_in_bytes_equals_truth_in_fractions(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration, truth = make_calibration(), make_video()
    engine = _engine(calibration)
    as_bytes = np.round(truth * 255).astype(np.uint8)
    _, fractions = engine.reconstruct(expose(calibration, truth))
    _, whole = engine.reconstruct(expose(calibration, truth, truth=as_bytes))
    assert whole.psnr_db == pytest.approx(fractions.psnr_db, abs=0.05)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_counts_of_every_type_are_accepted(
    make_video: MakeVideo,
    make_calibration: MakeCalibration,
    expose: Expose,
    dtype: type[np.generic],
) -> None:
    calibration = dataclasses.replace(
        make_calibration(), full_scale_dn=45.0, dark=np.full((), 8.0, np.float32)
    )
    snapshot = expose(calibration, make_video())
    rounded = dataclasses.replace(snapshot, counts=np.round(snapshot.counts).astype(dtype))
    _, report = _engine(calibration).reconstruct(rounded)
    assert report.psnr_db is not None
    assert report.psnr_db > 24.0


def test_unexposed_pixels_are_filled_in(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    phi = make_calibration().phi.copy()
    phi[:, ::6, ::7] = 0.0
    calibration, truth = make_calibration(phi=phi), make_video()
    video, report = _engine(calibration).reconstruct(expose(calibration, truth))
    assert np.abs(video - truth)[:, ::6, ::7].mean() < 0.1
    assert report.saturated_fraction == 0.0


def test_bad_pixels_have_no_influence(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    bad = np.zeros((32, 40), bool)
    bad[5, 6] = bad[20, 20:24] = True
    calibration, truth = make_calibration(bad_pixels=bad), make_video()
    snapshot = expose(calibration, truth)
    engine = _engine(calibration)
    reference, report = engine.reconstruct(snapshot)
    counts = snapshot.counts.copy()
    counts[bad] = 4000.0
    hot, hot_report = engine.reconstruct(dataclasses.replace(snapshot, counts=counts))
    np.testing.assert_array_equal(hot, reference)
    assert hot_report.residual == report.residual


def test_non_finite_counts_have_no_influence(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration()
    snapshot = expose(calibration, make_video())
    counts = snapshot.counts.copy()
    counts[3, 4], counts[9, 9] = np.nan, np.inf
    video, report = _engine(calibration).reconstruct(dataclasses.replace(snapshot, counts=counts))
    assert np.isfinite(video).all()
    assert report.start_reason == "no_warm_start"
    assert report.psnr_db is not None
    assert report.psnr_db > 24.0


def test_saturated_pixels_are_excluded_and_counted(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    truth = make_video()
    aware, unaware = make_calibration(saturation_dn=2200.0), make_calibration(saturation_dn=None)
    scores = []
    for calibration in (aware, unaware):
        snapshot = expose(calibration, truth)
        clipped = dataclasses.replace(snapshot, counts=np.minimum(snapshot.counts, 2200.0))
        _, report = _engine(calibration).reconstruct(clipped)
        scores.append(report.psnr_db)
        expected = float((clipped.counts >= 2200.0).mean()) if calibration is aware else 0.0
        assert report.saturated_fraction == pytest.approx(expected)
    assert 0.01 < float((clipped.counts >= 2200.0).mean()) < 0.5
    assert scores[0] is not None
    assert scores[1] is not None
    assert scores[0] > scores[1]


def test_fully_saturated_snapshot_gives_finite_video(
    make_calibration: MakeCalibration, make_video: MakeVideo, expose: Expose
) -> None:
    calibration = make_calibration()
    white = dataclasses.replace(
        expose(calibration, make_video()), counts=np.full((32, 40), 4095, np.uint16)
    )
    video, report = _engine(calibration).reconstruct(white)
    assert np.isfinite(video).all()
    assert report.saturated_fraction == 1.0
    assert report.residual == 0.0


def test_dark_snapshot_gives_dark_video(make_calibration: MakeCalibration, expose: Expose) -> None:
    calibration = make_calibration()
    black = np.zeros((4, 32, 40), np.float32)
    video, report = _engine(calibration).reconstruct(expose(calibration, black))
    np.testing.assert_allclose(video, 0.0, atol=1e-6)
    assert np.isfinite(report.residual)


def test_mosaic_equals_four_measurements(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration, truth = make_calibration(bayer=BayerPhase.RGGB), make_video()
    snapshot = expose(calibration, truth)
    # The first σ, the noise and where something moves are estimated from all planes together: here
    # σ is constant, the noise is not used and the start is ȳ.
    settings = dataclasses.replace(
        TV, sigma_first=1 / 255, sigma_last=1 / 255, weigh_noise=False, linear_start=False
    )
    video, report = _engine(calibration, settings).reconstruct(snapshot)
    planes = []
    for phi, counts in zip(bayer.split(calibration.phi), bayer.split(snapshot.counts), strict=True):
        plane = dataclasses.replace(calibration, phi=phi, dark=np.float32(64.0), bayer=None)
        part = dataclasses.replace(
            snapshot, counts=counts, calibration_hash=plane.hash, bayer=None, truth=None
        )
        planes.append(_engine(plane, settings).reconstruct(part)[0])
    np.testing.assert_allclose(video, bayer.merge(np.stack(planes)), atol=1e-5)
    assert report.psnr_db is not None


def test_planes_of_a_mosaic_are_denoised_in_one_batch(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    class Counting(IdentityDenoiser):
        shapes: list[tuple[int, ...]] = []  # noqa: RUF012 - one test, one list

        def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
            self.shapes.append(tuple(x.shape))
            return super().__call__(x, sigma)

    calibration = make_calibration(bayer=BayerPhase.BGGR)
    frames_only = dataclasses.replace(TV, along_time=False)
    _engine(calibration, frames_only, Counting()).reconstruct(expose(calibration, make_video()), 3)
    assert Counting.shapes == [(16, 16, 20)] * 3


def test_identity_prior_fits_the_measurement(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration()
    engine = _engine(calibration, dataclasses.replace(TV, weigh_noise=False), IdentityDenoiser())
    _, report = engine.reconstruct(expose(calibration, make_video()))
    assert report.residual < 1e-6


def test_smaller_budget_is_kept_and_reported(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration()
    _, report = _engine(calibration).reconstruct(expose(calibration, make_video()), 5)
    assert report.iterations == 5
    assert report.budget_limited


class Noting(IdentityDenoiser):
    """Changes nothing and records each σ."""

    def __init__(self) -> None:
        self.sigmas: list[float] = []

    def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        self.sigmas.append(sigma)
        return super().__call__(x, sigma)


@pytest.mark.parametrize(
    ("iterations", "higher"),
    [(16, 1.0), (40, 1.0), (7, (16 / 7) ** 0.5), (1, 4.0)],
)
def test_sigma_ends_at_lowest_or_higher_with_few_iterations(
    make_video: MakeVideo,
    make_calibration: MakeCalibration,
    expose: Expose,
    iterations: int,
    higher: float,
) -> None:
    calibration, noting = make_calibration(), Noting()
    settings = dataclasses.replace(TV, along_time=False, sigma_last=0.005)
    _engine(calibration, settings, noting).reconstruct(
        expose(calibration, make_video()), iterations
    )
    assert noting.sigmas[-1] == pytest.approx(higher * settings.sigma_last)


def test_sigma_from_still_image_always_ends_at_lowest(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    """As in the paper."""
    calibration, noting = make_calibration(), Noting()
    engine = _engine(calibration, dataclasses.replace(TV, linear_start=False), noting)
    engine.reconstruct(expose(calibration, make_video()), 4)
    assert noting.sigmas[-1] == pytest.approx(TV.sigma_last)


def test_diverged_solve_returns_still_image_and_reports_it(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    class Broken(IdentityDenoiser):
        def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
            return super().__call__(x, sigma) * float("nan")

    calibration = make_calibration()
    video, report = _engine(calibration, denoiser=Broken()).reconstruct(
        expose(calibration, make_video())
    )
    assert report.start_reason == "diverged"
    assert np.isfinite(video).all()
    np.testing.assert_array_equal(video[0], video[-1])
    assert report.residual < 1e-5


def test_plain_and_accelerated_iterations_differ(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration()
    snapshot = expose(calibration, make_video())
    scores = []
    for relaxation in (1.0, 0.0):
        settings = dataclasses.replace(TV, relaxation=relaxation)
        scores.append(_engine(calibration, settings).reconstruct(snapshot)[1].psnr_db)
    assert scores[0] != scores[1]


def test_video_is_owned_by_the_caller(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration()
    engine, snapshot = _engine(calibration), expose(calibration, make_video())
    first, _ = engine.reconstruct(snapshot)
    copy = first.copy()
    first[:] = -1.0
    np.testing.assert_array_equal(engine.reconstruct(snapshot)[0], copy)


def test_costs_are_known_after_warm_up(make_calibration: MakeCalibration) -> None:
    engine = _engine(make_calibration())
    assert engine.costs.fitting(1e6, (TV.iterations,), 0) == 0
    engine.warm_up()
    assert engine.costs.fitting(1e6, (TV.iterations,), 0) == TV.iterations
    assert engine.costs.fitting(1e-9, (TV.iterations,), 0) == 0


def test_budget_controller_works_with_engine(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration()
    engine = _engine(calibration)
    controller = BudgetController(TV, engine.costs)
    snapshot = expose(calibration, make_video())
    for _ in range(3):
        _, report = engine.reconstruct(snapshot, controller.next_budget(period_ns=1, backlog=5))
        assert report.iterations == TV.min_iterations


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"counts": np.zeros((32, 41), np.uint16)}, r"\(32, 40\) pixels.*\(32, 41\)"),
        ({"n_frames": 5}, "4 frames per snapshot.*got 5"),
        ({"calibration_hash": "feed"}, r"hash [0-9a-f]{32} \(the engine's\).*got feed"),
        ({"bayer": BayerPhase.RGGB}, "Bayer phase none.*got RGGB"),
        (
            {"truth": np.zeros((3, 32, 40))},
            r"Snapshot 7.*truth of shape \(4, 32, 40\).*\(3, 32, 40\)",
        ),
    ],
)
def test_snapshot_of_other_calibration_is_refused(
    make_video: MakeVideo,
    make_calibration: MakeCalibration,
    expose: Expose,
    change: dict[str, object],
    said: str,
) -> None:
    calibration = make_calibration()
    snapshot = dataclasses.replace(expose(calibration, make_video(), seq=7), **change)
    with pytest.raises(CalibrationError, match=said):
        _engine(calibration).reconstruct(snapshot)


@pytest.mark.parametrize("bayer", [None, BayerPhase.GRBG])
def test_watch_receives_video_of_every_iteration(
    make_video: MakeVideo,
    make_calibration: MakeCalibration,
    expose: Expose,
    bayer: BayerPhase | None,
) -> None:
    calibration = make_calibration(bayer=bayer)
    seen: list[torch.Tensor] = []
    video, report = _engine(calibration).reconstruct(
        expose(calibration, make_video()), watch=seen.append
    )
    assert len(seen) == report.iterations
    assert np.array_equal(seen[-1].numpy(), video)
    assert not torch.equal(seen[0], seen[-1])


def test_out_of_device_memory_is_a_device_memory_error(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    def greedy(frames: torch.Tensor, sigma: float) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    calibration = make_calibration()
    with pytest.raises(
        DeviceError, match=r"ran out of memory.*about 0.0 GiB free.*4 frames of 32×40 pixels"
    ):
        _engine(calibration, denoiser=greedy).reconstruct(expose(calibration, make_video()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_agrees_with_cpu(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration()
    snapshot = expose(calibration, make_video())
    on_cpu, _ = _engine(calibration).reconstruct(snapshot)
    on_gpu, _ = Engine(calibration, TvDenoiser(), torch.device("cuda"), TV).reconstruct(snapshot)
    np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-3)


@pytest.mark.parametrize("device", [CPU, pytest.param(torch.device("cuda"), marks=_GPU)])
def test_overlapping_solves_equal_single_ones(
    make_video: MakeVideo,
    make_calibration: MakeCalibration,
    expose: Expose,
    device: torch.device,
) -> None:
    calibration = make_calibration(bayer=BayerPhase.RGGB)
    settings = dataclasses.replace(TV, relaxation=1.5)
    denoiser = FfdnetDenoiser(load_ffdnet(shipped_weights("ffdnet-lite")), device, Precision.AUTO)
    snapshots = [expose(calibration, make_video() * (1 - 0.1 * n), seq=n) for n in range(5)]
    engines = [
        Engine(calibration, denoiser, device, settings, video_dtype=torch.float16) for _ in range(2)
    ]
    alone = [engines[0].reconstruct(snapshot) for snapshot in snapshots]
    under_way, results = [], []
    for snapshot in snapshots:
        under_way.append(engines[1].begin(snapshot, settings.iterations))
        if len(under_way) > 1:
            results.append(under_way.pop(0).finish())
    results.append(under_way.pop().finish())
    for (video, report), (expected, its) in zip(results, alone, strict=True):
        assert video.dtype == np.float16
        np.testing.assert_allclose(video, expected, atol=2e-3)
        assert report.iterations == its.iterations
        assert report.solve_ns > 0
    assert engines[1].fault == ""


def test_exception_between_iterations_ends_the_solve(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    class Unwanted(Exception):  # noqa: N818 - not an error
        pass

    calls: list[int] = []

    def between() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            raise Unwanted

    calibration = make_calibration()
    engine = Engine(calibration, TvDenoiser(), CPU, TV, between=between)
    with pytest.raises(Unwanted):
        engine.reconstruct(expose(calibration, make_video()))
    assert len(calls) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("bayer", [None, BayerPhase.BGGR])
def test_gpu_in_16_bits_agrees_with_cpu_in_float32(
    make_video: MakeVideo,
    make_calibration: MakeCalibration,
    expose: Expose,
    bayer: BayerPhase | None,
) -> None:
    calibration = make_calibration(8, 64, 96, bayer=bayer)
    snapshot = expose(calibration, make_video(8, 64, 96))
    weights, cuda = load_ffdnet(shipped_weights("ffdnet-lite")), torch.device("cuda")
    settings = default_settings(CPU, "ffdnet-lite")
    on_cpu, _ = Engine(calibration, FfdnetDenoiser(weights, CPU), CPU, settings).reconstruct(
        snapshot
    )
    engine = Engine(calibration, FfdnetDenoiser(weights, cuda, Precision.AUTO), cuda, settings)
    on_gpu, report = engine.reconstruct(snapshot)
    assert engine.fault == ""
    assert float(np.sqrt(np.mean((on_gpu - on_cpu) ** 2))) < 2e-3
    assert report.psnr_db is not None


def test_masks_shifted_during_a_solve_apply_to_the_next(
    make_video: MakeVideo, make_calibration: MakeCalibration, expose: Expose
) -> None:
    calibration = make_calibration()
    snapshot = expose(calibration, make_video())
    plain, _ = _engine(calibration).reconstruct(snapshot)
    moved = _engine(calibration)
    moved.correct_masks(MaskCorrection(Displacement((1, 0))))
    expected, _ = moved.reconstruct(snapshot)

    engine = Engine(
        calibration,
        TvDenoiser(),
        CPU,
        TV,
        between=lambda: engine.correct_masks(MaskCorrection(Displacement((1, 0)))),
    )
    for video, result in ((plain, ""), (expected, "1,0,0,0,0;0,0,0,0,0")):
        found, report = engine.reconstruct(snapshot)
        np.testing.assert_array_equal(found, video)
        assert report.masks_at == result
    assert not np.array_equal(plain, expected)
