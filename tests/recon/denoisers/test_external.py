"""Denoisers of other packages: plug-ins by entry point and by name, with the contract and their
errors.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import sci_stream
from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import make_prior
from sci_stream.errors import ConfigError, InputError
from sci_stream.ports import Recordable
from sci_stream.recon.denoisers.external import CallableDenoiser, DenoiserDefaults
from sci_stream.recon.denoisers.registry import denoiser_spec, make_denoiser
from sci_stream_testing.denoisers import DenoiserContract

CPU = torch.device("cpu")
FRAMES = torch.rand(3, 12, 10, generator=torch.Generator().manual_seed(0))

PLUGIN = """
import torch
from sci_stream.recon.denoisers.external import DenoiserDefaults

class Shrink:
    defaults = DenoiserDefaults(sigma_last=0.02, iterations=6, along_time=False)

    def __init__(self, device, weights=None):
        self.strength = 1.0 if weights is None else float(weights.read_text())

    def __call__(self, x, sigma):
        mean = x.mean((1, 2), keepdim=True)
        return mean + (x - mean) / (1 + self.strength * sigma)

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = torch.nn.AvgPool2d(3, 1, 1, count_include_pad=False)

    def forward(self, images, sigma):
        return self.pool(images)

def maker(device):
    return lambda images: images * 0.5

def needy(device, size):
    return maker(device)

def nothing(device):
    return None

class Wrong:
    defaults = {"sigma_last": 0.02}

def failing(device):
    raise FileNotFoundError("no weights")

number = 3
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package with an entry point into a folder that Python searches."""
    (tmp_path / "shrinking.py").write_text(textwrap.dedent(PLUGIN))
    (tmp_path / "broken_plugin.py").write_text("def (")
    info = tmp_path / "shrinking-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shrinking\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sci_stream.denoisers]\nshrink = shrinking:Shrink\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("shrinking", None)


class TestPluginContract(DenoiserContract):
    @pytest.fixture(autouse=True, params=["shrink", "shrinking:Shrink", "shrinking:Network"])
    def _plugin(self, request: pytest.FixtureRequest, plugin: Path) -> None:
        self.name: str = request.param
        self.reduces_noise = self.name.endswith("Network")
        assert plugin.is_dir()

    def make(self, device: torch.device):
        denoiser = make_denoiser(self.name, device)
        assert denoiser.name == self.name
        assert not isinstance(
            denoiser, Recordable
        )  # its work on a GPU is not known to be recordable
        return denoiser


@pytest.mark.usefixtures("plugin")
def test_plugin_defaults_become_solver_settings() -> None:
    defaults = denoiser_spec("shrink").defaults
    assert (defaults.sigma_last, defaults.iterations, defaults.along_time) == (0.02, 6, False)
    assert denoiser_spec("shrinking:Network").defaults == DenoiserDefaults()
    denoiser, settings = make_prior(ReconstructSection(solver="shrinking:Shrink"), CPU)
    assert (denoiser.name, settings.iterations, settings.sigma_last) == (
        "shrinking:Shrink",
        6,
        0.02,
    )


def test_plugin_receives_its_weights(plugin: Path) -> None:
    weights = plugin / "strength.txt"
    weights.write_text("4")
    weak, strong = make_denoiser("shrink", CPU), make_denoiser("shrink", CPU, weights)
    assert strong(FRAMES, 0.2).std() < weak(FRAMES, 0.2).std()
    with pytest.raises(ConfigError, match="'shrinking:Network' takes no weights"):
        make_denoiser("shrinking:Network", CPU, weights)


@pytest.mark.usefixtures("plugin")
def test_reconstruct_runs_a_plugin_by_name() -> None:
    masks = np.random.default_rng(0).integers(0, 2, (4, 24, 32))
    result = sci_stream.reconstruct(masks.sum(0) * 0.5, masks, solver="shrink", device="cpu")
    assert result.report.iterations == 6
    assert abs(result.video.mean() - 0.5) < 0.02


@pytest.mark.usefixtures("plugin")
def test_function_of_a_file_is_a_denoiser_at_every_door(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    half = "def half(images, sigma):\n    return images * 0.5\n"
    file.write_text(f"{half}class Same:\n    def __call__(self, images):\n        return images\n")
    section = ReconstructSection.model_validate(
        {"denoiser": "mine.py:half"}, context={"folder": tmp_path}
    )
    assert section.solver == f"{file}:half"
    denoiser, _ = make_prior(section, CPU)
    torch.testing.assert_close(denoiser(FRAMES, 0.1), FRAMES * 0.5)
    masks = np.random.default_rng(0).integers(0, 2, (4, 24, 32))
    result = sci_stream.reconstruct(
        masks.sum(0) * 0.5, masks, solver=f"{file}:Same", iterations=2, device="cpu"
    )
    assert np.isfinite(result.video).all()


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no/file.py:f", "Cannot import the denoiser 'no/file.py:f'.*No such file"),
        ("shrank", "Unknown solver; expected one of .*ffdnet, .*shrink.*module:Class"),
        (
            "absent_module:Net",
            "Cannot import the denoiser 'absent_module:Net'.*No module named.*PYTHONPATH",
        ),
        ("shrinking:Shrunk", "Cannot import the denoiser 'shrinking:Shrunk'.*has no attribute"),
        ("shrinking:needy", r"needs arguments that are not known.*needy\(device, size\)"),
        (
            "shrinking:nothing",
            "'shrinking:nothing' is invalid; expected .* a callable; got NoneType",
        ),
        (
            "shrinking:Wrong",
            "attribute defaults .* is invalid; expected .*DenoiserDefaults; got dict",
        ),
        (
            "shrinking:failing",
            r"Cannot create the solver 'shrinking:failing'; got FileNotFoundError\('no "
            r"weights'\)",
        ),
        ("broken_plugin:X", "Cannot import the denoiser 'broken_plugin:X'.*got SyntaxError"),
        ("a:b:c", "Unknown solver.*got 'a:b:c'"),
        ("shrinking:number", "is invalid; expected .*; got int"),
    ],
)
def test_unusable_plugin_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_denoiser(name, CPU)


@pytest.mark.parametrize("name", ["a.b:C", "ffdnet"])
def test_rig_accepts_denoiser_names(name: str) -> None:
    assert ReconstructSection(solver=name).solver == name


@pytest.mark.parametrize("name", ["a/b:C", ":C", "a:", "a:b:c", "1a:b", "a b"])
def test_rig_refuses_invalid_denoiser_names(name: str) -> None:
    with pytest.raises(ValueError, match="letters, digits"):
        ReconstructSection(solver=name)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError("sizes differ"), InputError),
        (FileNotFoundError("no weights"), InputError),
        (torch.OutOfMemoryError("full"), torch.OutOfMemoryError),
        (RuntimeError("CUDA error: unplugged"), RuntimeError),
    ],
)
def test_failing_denoiser_is_named_unless_the_device_fails(
    error: Exception, raised: type[Exception]
) -> None:
    def fail(_images: torch.Tensor) -> torch.Tensor:
        raise error

    with pytest.raises(raised, match=str(error)):
        CallableDenoiser(fail, CPU)(FRAMES, 0.5)


def test_callable_denoiser_splits_batches_to_reduce_memory() -> None:
    sizes: list[int] = []

    def blur(images: torch.Tensor, sigma: float) -> torch.Tensor:
        sizes.append(len(images))
        return images * (1 - sigma)

    denoiser = CallableDenoiser(blur, CPU)
    whole = denoiser(FRAMES, 0.5)
    assert denoiser.reduce_memory()
    assert torch.equal(denoiser(FRAMES, 0.5), whole)
    assert sizes == [3, 1, 1, 1]
    assert not denoiser.reduce_memory()
