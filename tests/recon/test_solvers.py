"""Algorithms and priors made from settings and from a rig."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import describe_solver, make_prior
from sci_stream.model import Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.forward import forward, gram_diag, inverse_gram
from sci_stream.recon.algorithms.gap import Problem, cold_start, gap
from sci_stream.recon.algorithms.schedule import sigma_levels
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import SolverSettings, default_settings
from sci_stream.tools.replay.solver import as_settings

CPU = torch.device("cpu")
PLAIN = SolverSettings(iterations=3, min_iterations=3, weigh_noise=False)
PHI = torch.rand(3, 12, 10, generator=torch.Generator().manual_seed(0))
Y = forward(PHI, torch.rand(3, 12, 10, generator=torch.Generator().manual_seed(1)))


def _solved(settings: SolverSettings) -> torch.Tensor:
    calibration = Calibration(PHI.numpy())
    counts = (Y * calibration.full_scale_dn).numpy()
    video, _ = Engine(calibration, TvDenoiser(), CPU, settings).reconstruct(
        Snapshot(
            SnapshotId("s", 0, 0), counts, calibration.hash, calibration.n_frames, host_time_ns=0
        )
    )
    return torch.from_numpy(video)


def test_gap_receives_relaxation() -> None:
    settings = dataclasses.replace(PLAIN, relaxation=1.4)
    problem = Problem(Y, PHI, inverse_gram(gram_diag(PHI)), (TvDenoiser(),))
    start = cold_start(Y, PHI, problem.r_inv)
    sigmas = sigma_levels(settings.sigma_first, settings.sigma_last, 3)
    *_, accelerated = gap(start, problem._replace(relaxation=1.4), sigmas)
    *_, plain = gap(start, problem._replace(relaxation=0.0), sigmas)
    torch.testing.assert_close(_solved(settings), accelerated)
    torch.testing.assert_close(_solved(dataclasses.replace(settings, relaxation=0.0)), plain)


def test_section_of_an_experiment_sets_any_solver_setting() -> None:
    class Experiment(ReconstructSection):
        relaxation: float | None = None
        linear_start: bool | None = None

    _, settings = make_prior(Experiment(solver="tv", relaxation=1.5, sigma_last=0.05), CPU)
    assert (settings.relaxation, settings.sigma_last, settings.linear_start) == (1.5, 0.05, True)
    _, from_still = make_prior(Experiment(solver="tv", linear_start=False), CPU)
    assert from_still == dataclasses.replace(
        default_settings(CPU, "tv", linear_start=False), warm_start=True
    )


@pytest.mark.parametrize(("large", "name"), [(True, "ffdnet"), (False, "unrolled")])
def test_auto_denoiser_on_a_large_gpu_is_the_full_network(
    large: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sci_stream.recon.denoisers.registry.is_large_gpu", lambda _device: large)
    denoiser, _ = make_prior(ReconstructSection(), torch.device("cpu"))
    assert denoiser.name == name


def test_recorded_settings_round_trip() -> None:
    section = ReconstructSection(sigma_first=0.1, iterations=7)
    _, settings = make_prior(section, CPU)
    settings = dataclasses.replace(settings, relaxation=1.5)
    described = json.loads(json.dumps(describe_solver(section, "tv", settings)))
    assert as_settings(described) == settings
