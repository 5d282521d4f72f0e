"""Algorithms made from settings and from a rig."""

from __future__ import annotations

import dataclasses
import json
from typing import get_args

import pytest
import torch

from sci_stream.config import ReconstructSection, parse_rig
from sci_stream.model import Snapshot, SnapshotId
from sci_stream.nodes.reconstruct.solver_settings import describe_solver, make_prior
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.forward import forward, gram_diag, inverse_gram
from sci_stream.recon.algorithms.admm import admm
from sci_stream.recon.algorithms.gap import Problem, cold_start, gap
from sci_stream.recon.algorithms.schedule import Shape
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.factory import SOLVERS
from sci_stream.recon.settings import SolverSettings
from sci_stream.tools.replay.solver import as_settings

CPU = torch.device("cpu")
PLAIN = SolverSettings(iterations=3, min_iterations=3, weigh_noise=False)
PHI = torch.rand(3, 12, 10, generator=torch.Generator().manual_seed(0))
Y = forward(PHI, torch.rand(3, 12, 10, generator=torch.Generator().manual_seed(1)))


def _solved(settings: SolverSettings) -> torch.Tensor:
    calibration = Calibration(PHI.numpy())
    counts = (Y * calibration.full_scale_dn).numpy()
    video, _ = Engine(calibration, TvDenoiser(), CPU, settings).reconstruct(
        Snapshot(SnapshotId("s", 0, 0), counts, calibration.hash, calibration.n_frames, host_time_ns=0)
    )
    return torch.from_numpy(video)


def test_gap_receives_relaxation_and_admm_gamma() -> None:
    settings = dataclasses.replace(PLAIN, relaxation=1.4, gamma=0.7)
    problem = Problem(Y, PHI, inverse_gram(gram_diag(PHI)), (TvDenoiser(),))
    start, sigmas = cold_start(Y, PHI, problem.r_inv), settings.schedule.ladder(3)
    *_, accelerated = gap(start, problem._replace(relaxation=1.4), sigmas)
    *_, plain = gap(start, problem._replace(relaxation=0.0), sigmas)
    *_, weighted = admm(start, problem._replace(gamma=0.7), sigmas)
    torch.testing.assert_close(_solved(settings), accelerated)
    torch.testing.assert_close(_solved(dataclasses.replace(settings, accelerate=False)), plain)
    torch.testing.assert_close(_solved(dataclasses.replace(settings, solver="admm")), weighted)


def test_rig_accepts_every_solver() -> None:
    annotation = ReconstructSection.model_fields["solver"].annotation
    assert annotation is not None
    literal, none = get_args(annotation)
    assert set(get_args(literal)) == set(SOLVERS)
    assert none is type(None)


def test_rig_settings_override_denoiser_defaults() -> None:
    rig = parse_rig(
        """
        [reconstruct]
        denoiser = "ffdnet-lite"
        solver = "admm"
        gamma = 0.5
        relaxation = 1.2
        sigma_shape = "stepwise"
        along_time = false
        """,
        overrides={},
    )
    denoiser, settings = make_prior(rig.reconstruct, torch.device("cpu"))
    assert denoiser.name == "ffdnet-lite"
    assert (settings.solver, settings.gamma, settings.relaxation) == ("admm", 0.5, 1.2)
    assert (settings.sigma_shape, settings.along_time) == (Shape.STEPWISE, False)
    _, untouched = make_prior(parse_rig("", overrides={}).reconstruct, torch.device("cpu"))
    assert untouched.solver == "gap"


@pytest.mark.parametrize(("large", "name"), [(True, "ffdnet"), (False, "ffdnet-lite")])
def test_auto_denoiser_on_a_large_gpu_is_the_full_network(
    large: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sci_stream.recon.denoisers.registry.is_large_gpu", lambda _device: large)
    denoiser, _ = make_prior(ReconstructSection(), torch.device("cpu"))
    assert denoiser.name == name


def test_recorded_settings_round_trip() -> None:
    section = ReconstructSection(sigma_shape=Shape.STEPWISE, solver="admm", gamma=0.5)
    _, settings = make_prior(section, torch.device("cpu"))
    described = json.loads(json.dumps(describe_solver(section, "tv", settings)))
    assert as_settings(described) == settings


def test_recorded_settings_of_earlier_versions_are_known() -> None:
    _, settings = make_prior(ReconstructSection(), torch.device("cpu"))
    described = describe_solver(ReconstructSection(), "tv", settings)
    assert as_settings(described | {"lambda_rule": "residual", "xi": 0.7, "switch_at": 0.5}) == settings
