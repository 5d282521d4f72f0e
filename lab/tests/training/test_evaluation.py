"""PSNR on noisy images: equal noise for every network, and published values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lab.tests.training.pictures import CPU
from sci_stream.recon.denoisers.weights import FfdnetWeights, load_ffdnet
from sci_stream_lab.training.evaluation import evaluate, psnr_by_level, validation_planes
from sci_stream_lab.training.images import load_images


def _leaves_alone() -> FfdnetWeights:
    """Return a network that predicts no noise."""
    return FfdnetWeights(
        (torch.zeros(4, 5, 3, 3),), (torch.zeros(4),), gives_noise=True, origin="own"
    )


def test_identity_network_scores_the_noise_level() -> None:
    planes = [np.full((65, 64), 0.5, np.float32), np.full((128, 30), 0.9, np.float32)]
    scores = psnr_by_level(_leaves_alone(), planes, CPU)
    assert scores == pytest.approx(
        {level: -20 * np.log10(int(level) / 255) for level in ("15", "25", "50")}, abs=0.2
    )


def test_noise_of_an_image_is_reproducible() -> None:
    planes = [np.full((16, 16), 0.5, np.float32)] * 2
    once, again = (psnr_by_level(_leaves_alone(), planes, CPU, levels=(25,)) for _ in range(2))
    assert once == again
    assert once != psnr_by_level(_leaves_alone(), planes[:1], CPU, levels=(25,))


def test_validation_images_are_cropped_to_their_centre(photographs: Path) -> None:
    planes = validation_planes(load_images(photographs), 32)
    assert {plane.shape for plane in planes} == {(32, 32)}
    assert validation_planes(load_images(photographs), 70)[0].shape == (64, 70)


@pytest.mark.slow
@pytest.mark.timeout(900)  # two minutes on an idle core
def test_published_weights_score_as_published_on_set12(data_dir: Path) -> None:
    weights = load_ffdnet(data_dir / "weights" / "kair_ffdnet_gray.pth")
    scores = evaluate(weights, data_dir / "test" / "set12", CPU)
    assert scores == pytest.approx({"15": 32.76, "25": 30.43, "50": 27.31}, abs=0.05)
