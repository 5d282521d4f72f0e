"""The programs in `examples/` run as documented."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import sci_stream
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
    """Return a function that runs an example as a program, here,
    where torch is imported already.
    """

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
        calibration.measurement(frames[0].counts),
        calibration.phi.sum(0) * scene,
        atol=1 / calibration.full_scale_dn,
    )


def test_reconstruct_runs_as_documented(run_example: RunExample) -> None:
    shown = run_example("reconstruct")
    own, shipped = (float(line.split()[-2]) for line in shown.splitlines()[:2])
    assert own > 20
    assert shipped > 27
    assert "(2, 8, 64, 64)" in shown


def test_notebook_runs_and_shows_what_it_stores(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = json.loads((EXAMPLES / "reconstruct.ipynb").read_text())["cells"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(re.findall(r"sci-stream\[(\w+)\]", "".join(cells[0]["source"]))) <= set(extras)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    stored = "".join(
        text for cell in code for output in cell["outputs"] for text in output.get("text", ())
    )
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell["outputs"])
    exec(
        "\n".join("".join(cell["source"]) for cell in code), {}
    )  # the kernel of Jupyter would import torch again
    pyplot = sys.modules["matplotlib.pyplot"]
    assert len(pyplot.figure(1).axes) == 4
    pyplot.close("all")
    np.testing.assert_allclose(decibels(capsys.readouterr().out), decibels(stored), atol=0.5)
    assert len(decibels(stored)) == 6


def decibels(text: str) -> list[float]:
    """Return the PSNR that a notebook prints."""
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


def test_tiny_unet_is_trained_and_runs_with_its_weights() -> None:
    tiny = load("tiny_unet")
    masks = tiny.shifted_mask(256)
    films = tiny.scenes(16, tiny.torch.Generator().manual_seed(1))
    phi = masks[:, :64, :64]
    errors = []
    for network in (tiny.TinyUnet(weights=None), tiny.train(masks, seconds=4.0), tiny.TinyUnet()):
        with tiny.torch.no_grad():
            video = network((phi * films).sum(1), phi.expand_as(films), phi.sum(0).clamp_min(1e-6))
        errors.append(float((video - films).square().mean()))
    untrained, begun, shipped = errors
    assert 0 < begun < 1.05 * untrained
    assert shipped < begun
    shot = (phi * films[0]).sum(0).numpy()
    solver = f"{EXAMPLES / 'tiny_unet.py'}:TinyUnet"
    result = sci_stream.reconstruct(shot, phi.numpy(), solver=solver, white=1.0, device="cpu")
    assert result.report.iterations == 1
    assert np.square(result.video - films[0].numpy()).mean() < 2 * shipped
