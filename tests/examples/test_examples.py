"""The programs in `examples/` run as documented."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from sci_stream.ports import Camera
from tests.conftest import RigMaker
from tests.e2e.kit import ROOT, assert_accounted_for

pytestmark = pytest.mark.rig(seconds=60)

EXAMPLES = ROOT / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RunExample = Callable[..., str]


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunExample:
    """Return a function that runs an example as a program, here, where torch is imported already."""

    def run(name: str, *arguments: object) -> str:
        path = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out

    return run


camera_plugin, denoiser_plugin = load("camera_plugin"), load("denoiser_plugin")


class TestModulatorPlugin(load("modulator_plugin").TestNotedModulator):  # type: ignore[misc]
    """The suite of modulators, as the example runs it."""


class TestCameraPlugin(camera_plugin.TestGradientCamera):
    """The suite of cameras, as the example runs it."""


class TestDenoiserPlugin(denoiser_plugin.TestBilateralDenoiser):
    """The suite of denoisers, as the example runs it."""


def test_camera_plugin_delivers_frames_of_its_calibration() -> None:
    driver = camera_plugin.GradientCamera
    camera = driver(driver.Options(period_s=0.001))
    assert isinstance(camera, Camera)
    capabilities = camera.open()
    camera.start()
    frames = [camera.read(1.0) for _ in range(3)]
    camera.stop()
    calibration = camera.calibration()
    camera.close()
    assert [frame.frame_id for frame in frames] == [0, 1, 2]
    assert frames[0].counts.shape == (capabilities.height_px, capabilities.width_px)
    scene = np.linspace(0, 1, capabilities.width_px, dtype=np.float32)
    np.testing.assert_allclose(
        calibration.measurement(frames[0].counts), calibration.phi.sum(0) * scene, atol=1 / calibration.full_scale_dn
    )


def test_reconstruct_runs_as_documented(run_example: RunExample) -> None:
    shown = run_example("reconstruct")
    own, shipped = (float(line.split()[-2]) for line in shown.splitlines()[:2])
    assert own > 20
    assert shipped > 27
    assert "(2, 8, 64, 64)" in shown


@pytest.mark.filterwarnings("ignore")  # of Jupyter's own
def test_notebook_runs_and_shows_what_it_stores(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / "reconstruct.ipynb", as_version=4)
    stored = decibels(notebook)
    nbclient.NotebookClient(notebook, timeout=150, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert len(stored) == 6
    np.testing.assert_allclose(decibels(notebook), stored, atol=0.5)
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))


def decibels(notebook: dict) -> list[float]:
    """Return the PSNR that the cells of a notebook print."""
    text = "".join(output.get("text", "") for cell in notebook["cells"] for output in cell.get("outputs", []))
    return [float(found) for found in re.findall(r"([\d.]+) dB", text)]


def test_subscribe_and_open_recording_work_on_a_rig(
    tmp_path: Path, rig_in_process: RigMaker, run_example: RunExample
) -> None:
    rig = rig_in_process({"camera": {"options": {"trigger": "free", "snapshot_rate_hz": 10.0}}})
    shown = run_example("subscribe", rig.rig.network.taps, "2")
    ledger = assert_accounted_for(rig.finish())
    (recording,) = rig.segments()
    assert shown.count("snapshot ") == 2
    assert f"{ledger['reconstructed'] + ledger['raw_only']} snapshots" in run_example(
        "open_recording", recording, tmp_path / "plot.png"
    )
    assert (tmp_path / "plot.png").stat().st_size > 10_000
