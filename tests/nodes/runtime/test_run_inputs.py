"""The inputs of a run: a restarted node takes them as they were when the run began."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from sci_stream.config import load_rig
from sci_stream.devices.analyses import Analyses
from sci_stream.devices.modulators import load_patterns
from sci_stream.devices.solver import describe_solver, make_prior, solver_id
from sci_stream.errors import ConfigError
from sci_stream.nodes.runtime.run_inputs import (
    FROZEN_VARIABLE,
    freeze,
    input_versions,
    load_rig_of_run,
)
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.external import load_plugin
from sci_stream.recon.denoisers.plugin_code import MAX_BYTES, code_of, use_copies
from sci_stream.recon.denoisers.registry import named_prior

CPU = torch.device("cpu")
ANALYSIS = """
class Factor:
    units = {"factor": ""}
    def __call__(self, video, report):
        return {"factor": %s}, None
"""


class Inputs:
    """A rig with a denoiser, masks and an analysis in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rig = folder / "rig.toml"
        self.masks = folder / "masks.npy"
        self.denoiser = folder / "den.py"
        self.package = folder / "site" / "factor_plugin"
        self.package.mkdir(parents=True)
        self.write(1)
        info = folder / "site" / "factor_plugin-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: factor-plugin\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[sci_stream.analyses]\nfactor = factor_plugin:Factor\n"
        )
        self.rig.write_text(
            '[reconstruct]\ndenoiser = "den.py:f"\nanalyses = ["factor"]\n'
            '[modulator]\ndriver = "simulated"\npatterns = "masks.npy"\n'
        )

    def write(self, factor: int) -> None:
        self.denoiser.write_text(f"def f(images, sigma):\n    return images * {factor}\n")
        (self.package / "__init__.py").write_text(ANALYSIS % factor)
        np.save(self.masks, np.full((2, 4, 4), factor, np.uint8))


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inputs]:
    made = Inputs(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    yield made
    use_copies({})
    sys.modules.pop("factor_plugin", None)


def restarted(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a run, change all its inputs, and restart a node of it."""
    frozen = inputs.folder / "run"
    frozen.mkdir()
    freeze(load_rig(inputs.rig), inputs.rig, frozen)
    inputs.write(9)
    sys.modules.pop("factor_plugin", None)
    importlib.invalidate_caches()
    monkeypatch.setenv(FROZEN_VARIABLE, str(frozen))


def test_restarted_node_takes_the_inputs_of_its_run(
    inputs: Inputs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    series,
) -> None:
    restarted(inputs, monkeypatch)
    rig = load_rig_of_run(inputs.rig)
    images = torch.ones(1, 4, 4)
    denoiser = named_prior(rig.reconstruct.solver, CPU, None, Precision.FLOAT32)
    assert denoiser(images, 0.1).mean() == 1
    patterns = load_patterns(rig.modulator.patterns)
    assert patterns is not None
    assert patterns.max() == 255, "0 to 1, not 9"
    figures, _ = Analyses(rig.reconstruct.analyses)(
        series.video(0), series.reconstruction(0).report
    )
    assert figures == {"factor": 1}
    for changed in (inputs.denoiser, inputs.masks, inputs.package):
        assert f"{changed} has changed since the run began" in caplog.text


def test_messages_and_records_name_the_originals(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarted(inputs, monkeypatch)
    rig = load_rig_of_run(inputs.rig)
    assert rig.reconstruct.solver == f"{inputs.denoiser}:f"
    assert rig.modulator.patterns == inputs.masks


def test_denoiser_finds_files_next_to_its_original(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs.denoiser.write_text("raise OSError(__file__)")
    restarted(inputs, monkeypatch)
    load_rig_of_run(inputs.rig)
    with pytest.raises(ConfigError, match=str(inputs.denoiser.with_suffix(""))):
        load_plugin(f"{inputs.denoiser}:f")


def test_ids_of_solver_and_series_contain_the_code(inputs: Inputs) -> None:
    rig = load_rig(inputs.rig)

    def ids() -> tuple[str, dict[str, str]]:
        prior, settings = make_prior(rig.reconstruct, CPU)
        solver = describe_solver(rig.reconstruct, prior.name, settings)
        return solver_id(solver), input_versions(rig)

    before_solver, before_series = ids()
    assert ids() == (before_solver, before_series)
    inputs.write(2)
    solver, series = ids()
    assert solver != before_solver
    assert set(series) == {"den.py", "factor_plugin", "masks.npy"}
    assert all(series[name] != before_series[name] for name in series)


def test_libraries_and_own_code_are_no_input_of_a_run() -> None:
    assert code_of("torch.nn:Identity", "sci_stream.denoisers") is None, f"more than {MAX_BYTES}"
    assert code_of("sci_stream.recon:x", "sci_stream.denoisers") is None
    assert code_of("tv", "sci_stream.denoisers") is None
    assert code_of("no_such_module:x", "sci_stream.denoisers") is None


def test_node_without_supervisor_reads_the_files_themselves(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FROZEN_VARIABLE, raising=False)
    assert load_rig_of_run(inputs.rig) == load_rig(inputs.rig)
