"""Quality on the published benchmark sets, which have ground truth."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch

from sci_stream.model import Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings
from sci_stream.reports import SolveReport

CPU = torch.device("cpu")


class Benchmark:
    """A published set of shots, optionally cropped to its top left corner."""

    def __init__(self, path: Path, crop: int | None = None) -> None:
        content = scipy.io.loadmat(path)
        mask, meas, orig = (
            content[key].transpose(2, 0, 1)[:, :crop, :crop] for key in ("mask", "meas", "orig")
        )
        self.calibration = Calibration(phi=mask, full_scale_dn=255.0, source=path.name)
        self.n_shots = meas.shape[0]
        self._meas = meas.astype(np.float32)
        self._truth = (
            orig.reshape(self.n_shots, self.calibration.n_frames, *meas.shape[1:]).astype(
                np.float32
            )
            / 255
        )

    def shot(self, n: int) -> Snapshot:
        return Snapshot(
            id=SnapshotId("benchmark", 0, n),
            counts=self._meas[n],
            calibration_hash=self.calibration.hash,
            n_frames=self.calibration.n_frames,
            host_time_ns=0,
            truth=self._truth[n],
        )


def _solve(
    benchmark: Benchmark,
    denoiser: str,
    weights: Path | None,
    iterations: int,
    shots: list[int],
    **changes: Any,
) -> list[SolveReport]:
    settings = dataclasses.replace(
        default_settings(CPU, denoiser), iterations=iterations, **changes
    )
    engine = Engine(benchmark.calibration, make_denoiser(denoiser, CPU, weights), CPU, settings)
    return [engine.reconstruct(benchmark.shot(n))[1] for n in shots]


def _mean_db(reports: list[SolveReport]) -> float:
    return float(np.mean([report.psnr_db for report in reports]))


def _weights(data_dir: Path) -> Path:
    return data_dir / "weights" / "ipol_net_gray.pth"


def test_gap_tv_reaches_published_psnr_on_traffic(data_dir: Path) -> None:
    benchmark = Benchmark(data_dir / "benchmark" / "traffic48_cacti.mat")
    reports = _solve(
        benchmark, "tv", None, 24, list(range(6)), along_time=False, linear_start=False
    )
    assert _mean_db(reports) == pytest.approx(20.89, abs=0.35)
    assert max(report.residual for report in reports) < 0.1


def test_gap_tv_reaches_published_psnr_on_crash(data_dir: Path) -> None:
    benchmark = Benchmark(data_dir / "benchmark" / "crash32_cacti.mat")
    assert _mean_db(_solve(benchmark, "tv", None, 24, [0, 3], along_time=False)) > 24.5


def test_twelve_ffdnet_iterations_on_crop_beat_gap_tv(data_dir: Path) -> None:
    benchmark = Benchmark(data_dir / "benchmark" / "traffic48_cacti.mat", crop=64)
    (learnt,) = _solve(benchmark, "ffdnet", _weights(data_dir), 10, [1])
    (classical,) = _solve(benchmark, "tv", None, 24, [1], along_time=False)
    assert learnt.psnr_db is not None
    assert classical.psnr_db is not None
    assert learnt.psnr_db > classical.psnr_db + 0.5


def test_denoising_along_time_gains_on_real_video(data_dir: Path) -> None:
    benchmark = Benchmark(data_dir / "benchmark" / "crash32_cacti.mat", crop=128)
    along_time, frames = (
        _mean_db(_solve(benchmark, "ffdnet-lite", None, 12, [0], along_time=on))
        for on in (True, False)
    )
    assert along_time > frames + 0.1


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 160 s on two idle cores
def test_gap_ffdnet_reaches_published_psnr_on_traffic(data_dir: Path) -> None:
    benchmark = Benchmark(data_dir / "benchmark" / "traffic48_cacti.mat")
    assert _mean_db(_solve(benchmark, "ffdnet", _weights(data_dir), 40, list(range(6)))) > 23.5
