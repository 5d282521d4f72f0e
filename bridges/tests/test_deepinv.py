"""Denoisers of deepinv are priors, with the installed library. None of these downloads weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import sci_stream
from sci_stream.errors import ConfigError
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream_bridges.deepinv import DeepinvDenoiser
from sci_stream_testing.denoisers import DenoiserContract

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # of deepinv's own dependencies, when they are imported
models = pytest.importorskip("deepinv.models", exc_type=ModuleNotFoundError)

NAME = "sci_stream_bridges.deepinv"
CPU = torch.device("cpu")
B, H, W = 4, 24, 32


@pytest.fixture
def x() -> np.ndarray:
    row, column, time = np.mgrid[:H, :W, :B]
    return np.moveaxis(0.5 + 0.4 * np.sin((column + time) / 4) * np.cos(row / 5), -1, 0)


@pytest.fixture
def masks() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (B, H, W))


class TestTv(DenoiserContract):
    def make(self, device: torch.device):
        return make_denoiser(f"{NAME}:TVDenoiser", device)


class TestNetwork(DenoiserContract):
    reduces_noise = False  # of random weights

    @pytest.fixture(autouse=True)
    def _weights(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        self.path = tmp_path / "dncnn.pth"
        torch.save(models.DnCNN(1, 1, pretrained=None).state_dict(), self.path)

    def make(self, device: torch.device):
        return make_denoiser(f"{NAME}:DnCNN", device, self.path)


def test_reconstruct_runs_deepinv_denoiser_by_name_and_object(x, masks) -> None:
    y = (masks * x).sum(0)
    options = {"iterations": 8, "device": "cpu", "truth": x}
    none = sci_stream.reconstruct(y, masks, solver="identity", **options)
    named = sci_stream.reconstruct(y, masks, solver=f"{NAME}:TVDenoiser", **options)
    assert named.psnr_db > max(22, none.psnr_db)
    given = sci_stream.reconstruct(
        y, masks, solver=DeepinvDenoiser(models.TVDenoiser(n_it_max=100)), **options
    )
    np.testing.assert_array_equal(given.video, named.video)


def test_deepinv_modules_are_denoisers_as_they_are(x, masks) -> None:
    torch.manual_seed(0)
    network = models.DnCNN(1, 1, depth=3, nf=8, pretrained=None)
    result = sci_stream.reconstruct(
        (masks * x).sum(0), masks, solver=network, iterations=2, device="cpu"
    )
    assert result.video.shape == (B, H, W)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "TvDenoiser",
            "Cannot import the denoiser .*TvDenoiser'.*deepinv.models has no 'TvDenoiser'",
        ),
        ("base", "Cannot create the solver"),
    ],
)
def test_unknown_deepinv_denoiser_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_denoiser(f"{NAME}:{name}", CPU)


def test_weights_for_a_denoiser_without_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"deepinv\.models\.TVDenoiser takes no weights"):
        make_denoiser(f"{NAME}:TVDenoiser", CPU, tmp_path / "w.pth")
