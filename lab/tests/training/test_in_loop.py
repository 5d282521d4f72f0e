"""A network of frames trained through the iterations of the solve."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.tests.training.pictures import CPU, picture
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import load_ffdnet
from sci_stream_lab.training.checkpoint import load_checkpoint
from sci_stream_lab.training.export import export_weights
from sci_stream_lab.training.images import PHOTOGRAPHS
from sci_stream_lab.training.in_loop import LoopData, LoopLearner, SolvesToLearnFrom
from sci_stream_lab.training.media import MediaSet
from sci_stream_lab.training.settings import TrainingSettings, Until
from sci_stream_lab.training.train import TrainingResult, train
from sci_stream_lab.training.video.clips import CLIPS

SETTINGS = TrainingSettings(
    batch=6, patch_px=16, clip_px=16, warmup_steps=0, validate_every=3, ema_decay=0.9
)


def _clip(seed: int) -> np.ndarray:
    wide = picture(seed, 32, 60)[..., 1]
    return np.stack([wide[:, b : b + 32] for b in range(26)])


@pytest.fixture
def data() -> LoopData:
    """Return the data of four clips."""
    clips = MediaSet(CLIPS, tuple(_clip(n) for n in range(4)), ("0", "1", "2", "3"))
    photographs = MediaSet(PHOTOGRAPHS, (picture(9),), ("9",))
    return LoopData(clips, photographs, [], SETTINGS, CPU, held_out=1)


def _drawn(data: LoopData, seed: int) -> SolvesToLearnFrom:
    return data._draw(np.random.default_rng(seed), 1, 6)


@pytest.fixture
def learner() -> LoopLearner:
    return LoopLearner(load_ffdnet(shipped_weights("ffdnet-lite")), CPU, ema_decay=0.5)


@pytest.mark.parametrize("seed", range(4))
def test_gradient_is_that_of_the_whole_solve(
    data: LoopData, learner: LoopLearner, seed: int
) -> None:
    solves = _drawn(data, seed)._replace(iterations=6)
    learner._bfloat16 = False
    learner._loss(solves).backward()
    for parameter in (learner._outer[0], learner._inner[2], learner._outer[1]):
        assert parameter.grad is not None
        along = parameter.grad / parameter.grad.norm()
        expected = float((parameter.grad * along).sum())
        with torch.no_grad():
            parameter.add_(along, alpha=1e-4)
            above = float(learner._loss(solves))
            parameter.sub_(along, alpha=2e-4)
            below = float(learner._loss(solves))
            parameter.add_(along, alpha=1e-4)
        # Its ReLUs bend the error within the step: by at most 9 % for these seeds.
        assert (above - below) / 2e-4 == pytest.approx(expected, rel=0.15)


def test_steps_on_the_same_solves_lower_their_error(data: LoopData, learner: LoopLearner) -> None:
    solves = _drawn(data, 0)
    with torch.no_grad():
        before = float(learner._loss(solves))
    for _ in range(15):
        learner.learn(solves, rate=1e-4, kernel_rate=5e-4)
    with torch.no_grad():
        assert float(learner._loss(solves)) < before - 0.05


def _train(photographs: Path, clips: Path, run: Path, **options: object) -> TrainingResult:
    settings, weights = SETTINGS, shipped_weights("ffdnet-lite")
    if not options.get("resume"):
        options["start_from"] = weights
    return train(
        photographs, run, settings, Until(steps=5), device=CPU, clips=clips, held_out=1, **options
    )  # type: ignore[arg-type]  # as given by the test


def test_run_is_the_same_in_parts_and_exports_its_weights(
    photographs: Path, clips: Path, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert _train(photographs, clips, whole).finished
    calls = itertools.count()
    assert _train(photographs, clips, parts, stop=lambda: next(calls) >= 2).step == 2
    assert _train(photographs, clips, parts, resume=True).finished
    one, other = (load_checkpoint(run)["learner"]["averages"] for run in (whole, parts))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    path = tmp_path / "weights.safetensors"
    card = export_weights(
        whole, path, data=["ours"], clip_data=["ours too"], licence="MIT"
    ).markdown()
    for said in (
        "trained in the loop",
        "--clips CLIPS",
        "--masks MASKS",
        "behind masks of each class",
        "ours too",
    ):
        assert said in card
    assert "sigma_most" not in card
    assert load_ffdnet(path).channels == 32
    half = tmp_path / "half.safetensors"
    start = shipped_weights("ffdnet-lite")
    card = export_weights(whole, half, data=[], licence="MIT", mixed_with=start).markdown()
    assert "0.5 of them and 0.5 of `" in card
    begun, ended, mixed = (load_ffdnet(weights).kernels[3] for weights in (start, path, half))
    torch.testing.assert_close(mixed, (begun + ended) / 2, rtol=0, atol=1e-3)
