"""Parameters of a running solver: a consistent change applies from the next snapshot on, otherwise
nothing changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import changed_section, make_prior, offered_priors
from sci_stream.errors import ConfigError
from sci_stream.nodes.reconstruct.solver import Changed, Ready, Result, Solved
from sci_stream.nodes.reconstruct.solver_thread import SolverThread
from sci_stream.recon.denoisers.registry import DENOISERS
from sci_stream.recon.denoisers.variants import shipped_weights
from tests.series_fixtures import Series

TV = ReconstructSection(solver="tv", iterations=6, adapt_budget=False, threads=1)
OWN = ReconstructSection(solver="ffdnet", weights=Path("own.pth"), iterations=9)


def test_choices_are_rig_denoiser_and_shipped_ones() -> None:
    shipped = tuple(sorted(DENOISERS.keys() - {"identity"}))
    assert offered_priors(TV, "tv") == shipped
    assert offered_priors(OWN, "ffdnet") == shipped
    assert offered_priors(ReconstructSection(weights=Path("own.pth")), "ffdnet") == shipped
    assert offered_priors(ReconstructSection(solver="a:B"), "a:B") == ("a:B", *shipped)


def test_weights_of_matconvnet_name_the_converting_command() -> None:
    section = ReconstructSection(solver="ffdnet", weights=Path("FFDNet_gray.mat"))
    with pytest.raises(ConfigError, match="sci-stream weights import"):
        make_prior(section, torch.device("cpu"))


def test_rig_weights_belong_to_rig_denoiser() -> None:
    away = changed_section(OWN, OWN, "ffdnet", {"solver": "tv"})
    assert (away.solver, away.weights, away.iterations) == ("tv", None, None)
    back = changed_section(OWN, away, "tv", {"solver": "ffdnet"})
    assert (back.solver, back.weights, back.iterations) == ("ffdnet", Path("own.pth"), 9)


def test_setting_same_denoiser_changes_nothing() -> None:
    section = changed_section(TV, TV, "tv", {"iterations": 3})
    assert changed_section(TV, section, "tv", {"solver": "tv"}) == section


def test_iterations_below_minimum_lower_the_minimum() -> None:
    section = changed_section(TV, TV, "tv", {"iterations": 20, "min_iterations": 10})
    assert changed_section(TV, section, "tv", {"iterations": 5}).min_iterations == 5
    with pytest.raises(ConfigError, match=r"min_iterations \(30\) is more than iterations \(20\)"):
        changed_section(TV, section, "tv", {"min_iterations": 30})


@pytest.fixture
def solver(series: Series) -> Iterator[SolverThread]:
    solver = SolverThread(TV, "cpu")
    solver.start(lambda: None)
    solver.adopt(series.calibration)
    assert isinstance(next_result(solver), Ready)
    yield solver
    solver.stop()


def next_result(solver: SolverThread) -> Result:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        for result in solver.results():
            return result
        time.sleep(0.005)
    raise AssertionError("the solver is silent")


def solved(solver: SolverThread, series: Series, seq: int) -> Solved:
    solver.submit(series.snapshot(seq))
    result = next_result(solver)
    assert isinstance(result, Solved)
    return result


def test_change_applies_to_following_snapshots_and_is_reported(
    solver: SolverThread, series: Series
) -> None:
    assert solved(solver, series, 0).report.iterations == 6
    solver.change("1", {"iterations": 3})
    changed = next_result(solver)
    assert isinstance(changed, Changed)
    assert {entry.name: entry.value for entry in changed.parameters}["iterations"] == 3
    assert solved(solver, series, 1).report.iterations == 3
    assert solver.status()["solver.iterations"] == 3


def test_changed_denoiser_equals_initial_one(solver: SolverThread, series: Series) -> None:
    before = solved(solver, series, 0)
    solver.change("1", {"solver": "ffdnet-lite", "iterations": 4})
    assert isinstance(next_result(solver), Changed)
    after = solved(solver, series, 0)
    assert (before.video != after.video).any()
    assert solver.status()["denoiser"] == "ffdnet-lite"

    fresh = SolverThread(TV.model_copy(update={"solver": "ffdnet-lite", "iterations": 4}), "cpu")
    fresh.start(lambda: None)
    fresh.adopt(series.calibration)
    next_result(fresh)
    expected = solved(fresh, series, 0)
    fresh.stop()
    assert (after.video == expected.video).all()


def test_failed_change_leaves_settings_unchanged(solver: SolverThread, series: Series) -> None:
    for changes in ({"min_iterations": 50}, {"solver": "median"}):
        solver.change("1", changes)
        changed = next_result(solver)
        assert isinstance(changed, Changed)
        assert isinstance(changed.error, ConfigError)
    assert solved(solver, series, 0).report.iterations == 6
    assert solver.status()["denoiser"] == "tv"


def test_rig_weights_can_be_restored(series: Series) -> None:
    own = ReconstructSection(
        solver="ffdnet-lite", weights=shipped_weights("ffdnet-lite"), iterations=2, threads=1
    )
    solver = SolverThread(own, "cpu")
    solver.start(lambda: None)
    for name in ("tv", "ffdnet-lite"):
        solver.change(name, {"solver": name})
        changed = next_result(solver)
        assert isinstance(changed, Changed)
        assert changed.error is None
    assert "solver.weights" in solver.status()
    solver.stop()
