"""The shipped weights."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import cv2
import pytest
import torch

from sci_stream.errors import ConfigError, WeightsError
from sci_stream.recon.denoisers import variants
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import save_ffdnet
from tests.recon.networks import random_weights

CPU = torch.device("cpu")


def test_unknown_variant_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"ffdnet, ffdnet-lite.*'ffdnet-huge'"):
        shipped_weights("ffdnet-huge")


def test_lite_network_without_path_is_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "_WEIGHTS_FOLDER", tmp_path)
    with pytest.raises(WeightsError, match=r"no weights for 'ffdnet-lite'.*sci-stream train"):
        make_denoiser("ffdnet-lite", CPU)

    weights = random_weights(7, 32)
    save_ffdnet(weights, tmp_path / "ffdnet-lite.safetensors")
    x = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0))
    denoise = make_denoiser("ffdnet-lite", CPU)
    assert denoise.name == "ffdnet-lite"
    assert torch.equal(denoise(x, 0.1), FfdnetDenoiser(weights, CPU)(x, 0.1))


def test_lite_network_accepts_other_weights(tmp_path: Path) -> None:
    x = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0))
    weights, path = random_weights(3, 8), tmp_path / "other.safetensors"
    save_ffdnet(weights, path)
    assert torch.equal(
        make_denoiser("ffdnet-lite", CPU, path)(x, 0.1), FfdnetDenoiser(weights, CPU)(x, 0.1)
    )


@pytest.mark.parametrize("name", ["ffdnet", "ffdnet-lite", "ffdnet-lite-mosaic"])
def test_shipped_weights_are_complete_and_documented(name: str) -> None:
    path = shipped_weights(name)
    card = path.with_suffix(".md").read_text()
    sha256, *_ = re.findall(r"SHA-256 `([0-9a-f]{64})`", card)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "## Data" in card


@pytest.mark.parametrize("name", ["ffdnet", "ffdnet-lite"])
def test_shipped_weights_denoise(name: str, data_dir: Path) -> None:
    truth = (
        torch.from_numpy(
            cv2.imread(str(data_dir / "test" / "set12" / "01.png"), cv2.IMREAD_GRAYSCALE)
        )[None]
        / 255
    )
    sigma = 25 / 255
    noisy = truth + sigma * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        clean = make_denoiser(name, CPU)(noisy, sigma)
    assert (
        float((clean - truth).square().mean()) < 0.25 * sigma**2
    )  # six decibels, and more where there is less detail
