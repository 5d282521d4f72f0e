"""Training of networks of mosaics: what they learn from, and their weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lab.tests.training.pictures import CPU, picture
from sci_stream.model import BayerPhase
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import load_ffdnet
from sci_stream_lab.training.export import export_weights
from sci_stream_lab.training.images import PHOTOGRAPHS
from sci_stream_lab.training.in_loop import LoopData, LoopLearner
from sci_stream_lab.training.media import MediaSet
from sci_stream_lab.training.mosaics import draw_mosaic, saturated_colour, seen_by_camera
from sci_stream_lab.training.settings import TrainingSettings, Until
from sci_stream_lab.training.train import train
from sci_stream_lab.training.variants import variant_of
from sci_stream_lab.training.video.clips import CLIPS
from sci_stream_lab.training.video.scenes import MosaicScenes

IMAGES = [picture(n) for n in range(3)]
SETTINGS = TrainingSettings(
    "ffdnet-lite-mosaic", batch=6, patch_px=16, clip_px=16, warmup_steps=0, validate_every=3
)


def test_mosaic_is_the_same_for_the_same_seed() -> None:
    one, other = (draw_mosaic(np.random.default_rng(5), IMAGES, 16) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert one.shape == (16, 16)
    assert one.dtype == np.float32


def test_mosaics_are_within_the_range_of_a_sensor() -> None:
    rng = np.random.default_rng(0)
    mosaics = np.stack([draw_mosaic(rng, IMAGES, 16) for _ in range(60)])
    assert mosaics.min() >= 0
    assert mosaics.max() <= 1
    assert mosaics.std() > 0.1


def test_camera_changes_white_balance_and_exposure() -> None:
    grey = np.full((4, 4, 3), 0.5, np.float32)
    rng = np.random.default_rng(0)
    seen = np.stack([seen_by_camera(rng, grey)[0, 0] for _ in range(50)])
    assert (seen.std(0) > 0.05).all()
    assert np.ptp(seen[:, 0] / seen[:, 1]) > 0.4


def test_drawn_colours_are_saturated_and_of_all_hues() -> None:
    rng = np.random.default_rng(0)
    colours = np.array([saturated_colour(rng) for _ in range(200)])
    assert colours.min() >= 0
    assert colours.max() <= 1
    assert (np.bincount(colours.argmax(1), minlength=3) > 30).all()
    saturation = np.ptp(colours, axis=1) / colours.max(1)
    assert (saturation > 0.3).mean() > 0.5


def test_scenes_are_mosaics_of_moving_colours() -> None:
    scenes = MosaicScenes((), IMAGES)
    one, other = (scenes.draw(np.random.default_rng(2), 8, 32) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert one.shape == (8, 32, 32)
    assert one.min() >= 0
    assert one.max() <= 1


def test_variant_learns_mosaics_and_exports_them(photographs: Path, tmp_path: Path) -> None:
    run, path = tmp_path / "run", tmp_path / "weights.safetensors"
    train(photographs, run, SETTINGS, Until(steps=4), device=CPU, held_out=1)
    card = export_weights(run, path, data=["ours"], licence="MIT").markdown()
    weights = load_ffdnet(path)
    assert weights.mosaic
    assert variant_of(weights) == "ffdnet-lite-mosaic"
    assert "four planes of a Bayer mosaic" in card


def test_loop_of_mosaics_lowers_the_error_of_its_solves() -> None:
    clip = np.stack([picture(0, 32, 60)[:, b : b + 32, 1] for b in range(26)])
    clips = MediaSet(CLIPS, (clip, clip), ("0", "1"))
    photographs = MediaSet(PHOTOGRAPHS, tuple(picture(n) for n in range(12)), tuple("abcdefghijkl"))
    data = LoopData(clips, photographs, [], SETTINGS, CPU, held_out=1)
    with data.batches(0) as batches:
        solves = next(batches)
    assert solves.solves[0].engine.calibration.bayer is BayerPhase.RGGB
    learner = LoopLearner(load_ffdnet(shipped_weights("ffdnet-lite")), CPU, ema_decay=0.5)
    losses = []
    for _ in range(12):
        with torch.no_grad():
            losses.append(float(learner._loss(solves)))
        learner.learn(solves, rate=1e-4, kernel_rate=5e-4)
    assert losses[-1] < losses[0] - 0.05
    assert data.n_images == 4


@pytest.mark.parametrize("name", ["ffdnet-mosaic", "ffdnet-lite-mosaic"])
def test_settings_name_the_denoiser_that_uses_the_weights(name: str) -> None:
    settings = TrainingSettings(name)
    assert settings.is_mosaic
    assert settings.denoiser == name.removesuffix("-mosaic")
    assert not TrainingSettings(settings.denoiser).is_mosaic
