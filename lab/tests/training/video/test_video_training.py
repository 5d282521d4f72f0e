"""Training on clips: entries, the pool, reproducibility, resuming, export."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.tests.training.pictures import CPU, picture
from sci_stream import reconstruct
from sci_stream.errors import ConfigError
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.denoisers.video_ffdnet import VideoFfdnetDenoiser
from sci_stream.recon.denoisers.weights import VIDEO_INPUTS
from sci_stream_lab.training.checkpoint import load_checkpoint
from sci_stream_lab.training.curve import read_curve
from sci_stream_lab.training.export import export_weights
from sci_stream_lab.training.learner import initial_weights
from sci_stream_lab.training.settings import TrainingSettings, Until
from sci_stream_lab.training.train import TrainingResult, train
from sci_stream_lab.training.variants import VARIANTS
from sci_stream_lab.training.video.data import n_sources
from sci_stream_lab.training.video.entries import PoolEntry, draw_coded, draw_noisy, noisy_entry, sensed, solve_entries
from sci_stream_lab.training.video.pool import EntryPool
from sci_stream_lab.training.video.scenes import Scenes

Train = Callable[..., TrainingResult]
# More than the noisy videos need: some sources after them are solves.
STEPS = 24


@pytest.fixture
def go(photographs: Path, clips: Path) -> Train:
    """Train on the small clips and photographs."""

    def go(run: Path, settings: TrainingSettings, steps: int = STEPS, **options: object) -> TrainingResult:
        given: dict[str, object] = {"device": CPU, "clips": clips, **options}
        return train(photographs, run, settings, Until(steps=steps), **given)  # type: ignore[arg-type]  # as given by the test

    return go


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return Scenes([], [picture(n, 90, 110) for n in range(3)])


@pytest.fixture(scope="module")
def untrained() -> VideoFfdnetDenoiser:
    return VideoFfdnetDenoiser(initial_weights(VARIANTS["video-lite"], 0), CPU)


def _same(one: Path, other: Path) -> bool:
    first, second = (load_checkpoint(run)["learner"] for run in (one, other))
    return all(
        torch.equal(a, b)
        for key in ("parameters", "averages", "muon")
        for a, b in zip(first[key], second[key], strict=True)  # type: ignore[literal-required]  # keys of LearnerState
    )


def _after(calls: int) -> Callable[[], bool]:
    counter = itertools.count()
    return lambda: next(counter) >= calls


def test_noisy_entry_is_what_the_network_sees(scenes: Scenes, untrained: VideoFfdnetDenoiser) -> None:
    for seed in range(6):
        drawn = draw_noisy(scenes, np.random.default_rng(seed), 32, 75 / 255)
        entry = noisy_entry(drawn, untrained, CPU)
        n_frames = len(drawn.truth)
        assert entry.inputs.shape == (n_frames, VIDEO_INPUTS, 16, 16)
        seen = torch.nn.functional.pixel_shuffle(entry.inputs[:, :4].float(), 2)[:, 0]
        torch.testing.assert_close(seen, torch.from_numpy(drawn.noisy), rtol=0, atol=1e-3)
        torch.testing.assert_close(entry.truth.float(), torch.from_numpy(drawn.truth), rtol=0, atol=1e-3)
        assert entry.inputs[:, -1].max() <= drawn.sigma + 1e-4
        # The untrained network changes little: the error is the noise.
        mse = float(np.square(drawn.noisy - drawn.truth).mean())
        assert 1 / entry.weight == pytest.approx(mse + 1e-5, rel=0.5, abs=5e-5)


def test_solve_gives_the_iterations_to_keep(scenes: Scenes, untrained: VideoFfdnetDenoiser) -> None:
    for seed in range(3):
        drawn = draw_coded(scenes, np.random.default_rng(seed), 32)
        assert all(drawn.iterations - 1 in recorded for recorded in drawn.recorded)
        entries = solve_entries(drawn, untrained, CPU)
        assert len(entries) == sum(len(recorded) for recorded in drawn.recorded)
        assert {entry.inputs.shape for entry in entries} == {(len(drawn.masks), VIDEO_INPUTS, 16, 16)}


def test_diverging_solve_gives_no_entries(scenes: Scenes) -> None:
    weights = initial_weights(VARIANTS["video-lite"], 0)
    biases = (*weights.biases[:-1], torch.full((4,), float("nan")))
    broken = VideoFfdnetDenoiser(dataclasses.replace(weights, biases=biases), CPU)
    assert solve_entries(draw_coded(scenes, np.random.default_rng(0), 32), broken, CPU) == []


def _entries(number: int, n: int) -> list[PoolEntry]:
    inputs = torch.full((2, VIDEO_INPUTS, 8, 8), float(number), dtype=torch.float16)
    return [PoolEntry(inputs, torch.full((2, 16, 16), float(number), dtype=torch.float16), number + 1.0)] * n


def test_pool_keeps_the_newest_and_restores_them(tmp_path: Path) -> None:
    pool = EntryPool(5, CPU, tmp_path / "pool")
    for number, n in enumerate([1, 1, 3, 0, 1, 2]):
        pool.add(number, _entries(number, n))
        if number == 3:
            pool.save()
    pool.save()
    restored = EntryPool(5, CPU, tmp_path / "pool")
    assert restored.restore(6, lambda number: pytest.fail(f"made source {number} again")) == 0
    for seed in range(20):
        mine, theirs = (p.draw(np.random.default_rng(seed), 4, 8) for p in (pool, restored))
        assert torch.equal(mine.truth, theirs.truth)
        assert torch.equal(mine.inputs, theirs.inputs)
        assert mine.weights is not None
        assert set(mine.weights.tolist()) <= {3.0, 5.0, 6.0}
        assert mine.inputs.shape == (4, VIDEO_INPUTS, 4, 4)
        assert mine.truth.shape == (4, 1, 8, 8)


def test_patches_show_the_place_of_their_truth(scenes: Scenes, untrained: VideoFfdnetDenoiser, tmp_path: Path) -> None:
    pool = EntryPool(1, CPU, tmp_path)
    pool.add(0, [noisy_entry(draw_noisy(scenes, np.random.default_rng(0), 32, 1e-6), untrained, CPU)])
    samples = pool.draw(np.random.default_rng(0), 8, 16)
    seen = torch.nn.functional.pixel_shuffle(samples.inputs[:, :4], 2)
    torch.testing.assert_close(seen, samples.truth, rtol=0, atol=2e-3)


def test_number_of_sources_follows_the_step(small_video: TrainingSettings) -> None:
    counts = [n_sources(small_video, step) for step in range(-1, 36)]
    assert counts[:7] == [1, 2, 2, 2, 2, 3, 3]  # one at first, then one every four steps
    assert counts[7] == 4  # the first step with solves
    assert counts[21:23] == [4, 5]


def test_run_without_noise_steps_begins_with_a_full_pool(small_video: TrainingSettings) -> None:
    assert n_sources(dataclasses.replace(small_video, noise_steps=0, pool=400), -1) == 100


def test_drawn_measurements_are_whole_numbers_of_a_sensor(scenes: Scenes) -> None:
    y = np.linspace(0, 5, 64 * 64, dtype=np.float32).reshape(64, 64)
    drawn = [sensed(np.random.default_rng(seed), y) for seed in range(20)]
    assert {len(np.unique(each)) < 300 for each in drawn} == {True, False}  # 8 bits, and more
    for each in drawn:
        assert abs(float((each - y).mean())) < 0.02
        assert 1e-3 < float((each - y).std()) < 0.3


def test_trained_video_network_reconstructs(go: Train, tmp_path: Path, small_video: TrainingSettings) -> None:
    go(tmp_path / "run", dataclasses.replace(small_video, pool=4, noise_steps=2), steps=4)
    path = tmp_path / "video.safetensors"
    export_weights(tmp_path / "run", path, licence="Apache-2.0", data=["Pictures"], clip_data=["Clips"])
    masks = np.random.default_rng(0).integers(0, 2, (4, 16, 16)).astype(np.float32)
    y = (masks * 0.5).sum(0)
    found = reconstruct(y, masks, denoiser="video-lite", weights=path, iterations=4, device="cpu")
    assert found.video.shape == (4, 16, 16)
    assert np.isfinite(found.video).all()


def test_same_seed_gives_the_same_network(go: Train, tmp_path: Path, small_video: TrainingSettings) -> None:
    for run, seed in [("a", 1), ("b", 1), ("c", 2)]:
        go(tmp_path / run, dataclasses.replace(small_video, seed=seed), steps=12)
    assert _same(tmp_path / "a", tmp_path / "b")
    assert not _same(tmp_path / "a", tmp_path / "c")


def test_resumed_training_equals_an_uninterrupted_one(go: Train, tmp_path: Path, small_video: TrainingSettings) -> None:
    go(tmp_path / "whole", small_video)
    parts = tmp_path / "parts"
    go(parts, small_video, stop=_after(5))
    go(parts, small_video, stop=_after(14), resume=True)
    assert go(parts, small_video, resume=True).finished
    assert _same(tmp_path / "whole", parts)
    losses = [[point["loss"] for point in read_curve(run)] for run in (tmp_path / "whole", parts)]
    assert losses[0] == losses[1]


def test_lost_pool_is_made_again_with_a_warning(
    go: Train, tmp_path: Path, small_video: TrainingSettings, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    settings = dataclasses.replace(small_video, pool=40)
    go(run, settings, stop=_after(18))
    lost, damaged, *_ = sorted((run / "pool").iterdir())
    lost.unlink()
    damaged.write_bytes(b"invalid")
    with caplog.at_level(logging.WARNING):
        assert go(run, settings, resume=True).finished
    assert "made again with the current network" in caplog.text


def test_validation_is_by_noise_level_and_of_a_solve(go: Train, tmp_path: Path, small_video: TrainingSettings) -> None:
    result = go(tmp_path / "run", small_video, steps=10)
    assert list(result.psnr_db) == ["15", "25", "50", "solve"]
    assert all(5 < db < 60 for db in result.psnr_db.values())


def test_exported_network_loads_as_prior_and_card_names_clips(
    go: Train, tmp_path: Path, small_video: TrainingSettings
) -> None:
    go(tmp_path / "run", small_video, steps=10)
    path = tmp_path / "trained.safetensors"
    sources = {"data": ["Pictures of the test"], "clip_data": ["Clips of the test, public domain"]}
    card = export_weights(tmp_path / "run", path, licence="Apache-2.0", **sources).markdown()
    denoiser = make_denoiser("video-lite", CPU, path)
    assert isinstance(denoiser, VideoFfdnetDenoiser)
    assert denoiser.denoise_video(torch.rand(1, 5, 16, 16), 0.1).shape == (1, 5, 16, 16)
    for said in (
        "# video-lite",
        "5 photographs",
        "2 clips (`0.mkv`, `2.mkv`)",
        "Clips of the test, public domain",
        "| noise_steps | 6 |",
        "| σ 50 | solve |",
        "--variant video-lite --clips CLIPS",
    ):
        assert said in card
    assert "bayer_share" not in card


def test_video_network_needs_clips_and_others_a_start(
    go: Train, tmp_path: Path, small: TrainingSettings, small_video: TrainingSettings
) -> None:
    with pytest.raises(ConfigError, match=r"'video-lite' sees neighbouring frames.*--clips"):
        go(tmp_path / "run", small_video, clips=None)
    with pytest.raises(ConfigError, match=r"needs the weights of a denoiser; expected --start-from"):
        go(tmp_path / "run", small)
    with pytest.raises(ConfigError, match="no usable clip"):
        go(tmp_path / "run", dataclasses.replace(small_video, clip_px=64))


def test_videos_smaller_than_a_patch_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"clip_px is out of range; expected 64 to 1024; got 32"):
        TrainingSettings(variant="video-lite", clip_px=32)
