"""Solves trained as a whole: the network, its samples, and runs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch

from lab.tests.training.pictures import CPU, picture
from sci_stream.errors import ConfigError
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.forward import accumulate_and_project, forward
from sci_stream.recon.algorithms.unrolled import LEAST_BEFORE, Coded, estimates
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.ffdnet import FfdnetDenoiser
from sci_stream.recon.denoisers.registry import make_denoiser, named_prior
from sci_stream.recon.denoisers.weights import Stage, load_unrolled
from sci_stream.recon.engine import Engine
from sci_stream.recon.initialization.initializer import REASONS
from sci_stream.recon.settings import default_settings
from sci_stream_lab.training.checkpoint import load_checkpoint
from sci_stream_lab.training.convert import describe_weights
from sci_stream_lab.training.curve import read_curve
from sci_stream_lab.training.export import TestPlan, export_weights
from sci_stream_lab.training.learner import initial_weights
from sci_stream_lab.training.settings import TrainingSettings, Until
from sci_stream_lab.training.train import TrainingResult, train
from sci_stream_lab.training.unrolled.learner import UnrolledLearner, roughness
from sci_stream_lab.training.unrolled.masks import draw_pair, moving_masks
from sci_stream_lab.training.unrolled.network import UnrolledShape, grown, initial_stages
from sci_stream_lab.training.unrolled.samples import (
    CodedSamples,
    StartOf,
    Teacher,
    cut,
    draw_solve,
    finish_iterations,
    solved_past,
)
from sci_stream_lab.training.variants import NetworkShape
from sci_stream_lab.training.video.scenes import Scenes

SHAPE = UnrolledShape(stages=2, layers=3, channels=16)
START_OF = StartOf(make_denoiser("ffdnet-lite", CPU), default_settings(CPU, "unrolled"), CPU)


def _scene(n_frames: int, height: int, width: int) -> np.ndarray:
    wide = picture(3, height, width + n_frames)[..., 1].astype(np.float32) / 255
    return np.stack([wide[:, b : b + width] for b in range(n_frames)])


def _sample(n_frames: int = 4, height: int = 32, width: int = 32, seed: int = 0) -> CodedSamples:
    truth = _scene(n_frames, height, width)
    masks = (np.random.default_rng(seed).random(truth.shape) < 0.5).astype(np.float32)
    y = np.asarray((masks * truth).sum(0), np.float32)
    return finish_iterations(START_OF(masks, y, truth=truth), 1)


def _stages(shape: UnrolledShape = SHAPE) -> list[Stage]:
    """Return stages that do something: the last layers start small."""
    return [
        s._replace(kernels=[*s.kernels[:-1], 30 * s.kernels[-1]]) for s in initial_stages(shape, 0)
    ]


def _idle_stages() -> list[Stage]:
    """Return stages whose networks change nothing."""
    return [
        s._replace(kernels=[*s.kernels[:-1], 0 * s.kernels[-1]]) for s in initial_stages(SHAPE, 0)
    ]


def _last(coded: Coded, stages: list[Stage]) -> torch.Tensor:
    return [*estimates(coded, stages, torch.float32)][-1]


def test_steps_on_one_sample_lower_its_error() -> None:
    sample = _sample()
    learner = UnrolledLearner(initial_stages(SHAPE, 0), CPU, ema_decay=0.5)

    def error() -> float:
        return float((_last(sample.coded, learner.weights()) - sample.truth).square().mean())

    before = error()
    for _ in range(40):
        learner.learn(sample, rate=2e-3, kernel_rate=0.01)
    assert error() < 0.7 * before


def test_teacher_draws_the_result_towards_its_own() -> None:
    sample = _sample()
    taught = sample._replace(taught=sample.truth + 0.2)
    levels = []
    for samples in (sample, taught):
        learner = UnrolledLearner(initial_stages(SHAPE, 0), CPU, ema_decay=0.5)
        for _ in range(20):
            learner.learn(samples, rate=2e-3, kernel_rate=0.01)
        levels.append(float(_last(sample.coded, learner.weights()).mean()))
    assert levels[0] < levels[1]


def test_taught_draws_have_the_result_of_longer_solves(go: Go, tmp_path: Path) -> None:
    teacher, sample = Teacher(make_denoiser("ffdnet-lite", CPU), 6, CPU), _sample()
    truth = sample.truth[0].numpy()
    masks = (np.random.default_rng(0).random(truth.shape) < 0.5).astype(np.float32)
    solve = START_OF(masks, np.asarray((masks * truth).sum(0), np.float32), truth=truth)
    taught = finish_iterations(solve, 1, teacher).taught
    assert taught is not None
    errors = [(x - sample.truth).square().mean() for x in (taught, sample.coded.start)]
    assert errors[0] < errors[1]
    part = cut(np.random.default_rng(0), [sample._replace(taught=sample.truth)] * 2, 16)
    assert torch.equal(part.truth, part.taught)
    assert go(tmp_path / "run", dataclasses.replace(SETTINGS, taught_share=1.0), steps=1).finished


def test_roughness_counts_errors_on_smooth_surfaces_only() -> None:
    truth = torch.full((1, 2, 16, 16), 0.5)
    truth[..., 8:] = torch.rand((16, 8), generator=torch.Generator().manual_seed(0))
    grain = 0.05 * torch.randn((1, 2, 16, 16), generator=torch.Generator().manual_seed(1))
    on_surface, on_texture = grain.clone(), grain.clone()
    on_surface[..., 8:], on_texture[..., :8] = 0, 0
    none, there, elsewhere, even = (
        float(roughness(error, truth))
        for error in (0 * grain, on_surface, on_texture, 0 * grain + 0.05)
    )
    assert none == elsewhere < there
    assert even == pytest.approx(none, abs=1e-3)


@pytest.mark.parametrize("n_frames", [1, 2, 5, 50])
@pytest.mark.parametrize(("height", "width"), [(16, 18), (15, 7), (2, 3)])
def test_any_number_of_frames_and_any_size(n_frames: int, height: int, width: int) -> None:
    for x in estimates(_sample(n_frames, height, width).coded, _stages(), torch.float32):
        assert x.shape == (1, n_frames, height, width)
        assert x.isfinite().all()


def test_videos_of_a_batch_do_not_depend_on_each_other() -> None:
    one, other = (_sample(seed=seed).coded for seed in range(2))
    both = Coded(*(torch.cat(pair) for pair in zip(one, other, strict=True)))
    for x, a, b in zip(
        *(estimates(c, _stages(), torch.float32) for c in (both, one, other)), strict=True
    ):
        torch.testing.assert_close(x, torch.cat((a, b)))


def test_frames_reach_only_their_neighbours_in_a_layer() -> None:
    stages = _stages(UnrolledShape(stages=1, layers=3, channels=16))
    coded = _sample(n_frames=8).coded
    changed = coded.start.clone()
    changed[:, 0] += 0.1
    # Unmeasured pixels change by the network alone.
    blind = coded._replace(r_inv=torch.zeros_like(coded.r_inv))
    before, after = (_last(c, stages) for c in (blind, blind._replace(start=changed)))
    reached = (before - after).abs().amax((0, 2, 3)) > 0
    assert reached.tolist() == [True, True, False, False, False, False, False, False]


def test_shifting_everything_by_whole_blocks_shifts_the_result() -> None:
    coded = _sample(height=64, width=64).coded
    moved = Coded(*(field.roll((4, 6), (-2, -1)) for field in coded))
    x, y = (_last(c, _stages()) for c in (coded, moved))
    inside = (..., slice(24, 40), slice(24, 40))
    torch.testing.assert_close(y[inside], x.roll((4, 6), (-2, -1))[inside], rtol=1e-4, atol=1e-5)


def test_stages_without_noise_fit_the_measurement() -> None:
    coded = _sample().coded
    measured = coded.r_inv > 0
    for x in estimates(
        coded._replace(noise=torch.zeros_like(coded.noise)), _idle_stages(), torch.float32
    ):
        torch.testing.assert_close(forward(coded.phi, x)[measured], coded.y[measured])


def test_measurement_of_noise_alone_changes_nothing() -> None:
    coded = _sample().coded._replace(noise=torch.full((1, 32, 32), 1e8))
    for x in estimates(coded._replace(y=coded.y + 1), _idle_stages(), torch.float32):
        torch.testing.assert_close(x, coded.start, rtol=0, atol=1e-5)


def test_stages_begun_with_frame_network_are_iterations_with_it() -> None:
    weights = initial_weights(NetworkShape(layers=3, channels=8), 1)
    coded = _sample(height=24, width=24).coded
    # Without noise, without acceleration.
    coded = coded._replace(noise=torch.zeros_like(coded.noise))
    stages = [
        s._replace(step=torch.tensor([math.log(0.5), 0.0]))
        for s in initial_stages(SHAPE, 0, frame_network=weights)
    ]
    denoiser = FfdnetDenoiser(weights, CPU)
    relative = (coded.error + 4e-4).sqrt()
    x = coded.start
    for found in estimates(coded, stages, torch.float32):
        x, _ = accumulate_and_project(x, coded.y, coded.y, coded.phi, coded.r_inv, relaxation=0.0)
        x = denoiser(x[0], 0.5, relative).unsqueeze(0)
        fitted, _ = accumulate_and_project(
            x, coded.y, coded.y, coded.phi, coded.r_inv, relaxation=0.0
        )
        torch.testing.assert_close(found, (x + fitted) / 2, rtol=1e-4, atol=1e-4)


def test_grown_network_repeats_the_stages_between() -> None:
    assert grown([0, 1, 2], 6) == [0, 1, 1, 1, 2, 2]  # type: ignore[list-item,comparison-overlap]  # any kind of stage
    assert grown([0, 1, 2], 3) == [0, 1, 2]  # type: ignore[list-item,comparison-overlap]  # likewise


def test_moving_masks_resemble_measured_ones() -> None:
    """Neighbours of the measured masks have a correlation of 0.64, and published ones of 0."""
    found = []
    for seed in range(12):
        masks = moving_masks(np.random.default_rng(seed), 8, 96)(0.0)
        flat = masks.reshape(len(masks), -1)
        found.append(np.corrcoef(flat)[0, 1])
        assert masks.min() >= 0
        assert masks.max() <= 1.0001
    assert 0.5 < np.mean(found) < 0.9


def test_late_exposure_is_seen_through_the_next_masks() -> None:
    masks = moving_masks(np.random.default_rng(0), 6, 48)
    now, late = masks(0.0), masks(1.0)
    assert np.corrcoef(now[1:].ravel(), late[:-1].ravel())[0, 1] > 0.99


def test_every_class_of_masks_and_of_errors_is_drawn() -> None:
    measured = [np.full((14, 64, 64), 0.5, np.float32)]
    pairs = [draw_pair(np.random.default_rng(seed), 6, 32, measured) for seed in range(200)]
    correlation = np.array(
        [np.corrcoef(p.known[:2].reshape(2, -1))[0, 1] if p.known.std() else 2 for p in pairs]
    )
    assert 0.1 < (correlation == 2).mean() < 0.3  # measured
    assert 0.2 < (np.abs(correlation) < 0.1).mean() < 0.6  # independent
    assert 0.2 < (np.abs(correlation - 0.7) < 0.3).mean() < 0.5  # moving
    assert 0.3 < np.mean([p.known is p.true for p in pairs]) < 0.6


def test_light_of_frames_is_wrong_in_some_samples() -> None:
    spreads = []
    for seed in range(200):
        known, true = dataclasses.astuple(draw_pair(np.random.default_rng(seed), 6, 32, []))
        light = true.sum((1, 2)) / known.sum((1, 2))
        if np.allclose(true, known * light[:, np.newaxis, np.newaxis], atol=1e-4):
            spreads.append(light.std())
    wrong = np.array(spreads) > 1e-3
    assert 0.1 < wrong.sum() / 200 < 0.25  # a quarter of those whose masks are right
    assert 0.01 < np.median(np.array(spreads)[wrong]) < 0.05


def test_solve_of_the_snapshot_before_is_a_warm_start() -> None:
    clip = np.full((60, 48, 48), 40, np.uint8)
    clip[:, 10:30, 10:30] = (255 * _scene(1, 20, 20)).astype(np.uint8)
    reasons, errors = [], []
    for seed in range(8):
        draw = partial(
            draw_solve,
            *(np.random.default_rng(seed), Scenes([clip], [picture(0, 96, 96)]), [], START_OF),
            n_frames=6,
            size=48,
        )
        solve = draw(warm_share=1.0, past_of=solved_past)
        reasons.append(REASONS[int(solve.start.reason)])
        cold = solve.engine.initialize(solve.measurement, None)
        errors.append([float((v - solve.truth).square().mean()) for v in (solve.start.v, cold.v)])
    warm = np.array([reason == "warm" for reason in reasons])
    assert warm.sum() >= 2
    started, cold_errors = np.array(errors)[warm].T
    assert started.sum() < cold_errors.sum()


def test_sample_repeats_with_its_seed_and_fits_its_measurement() -> None:
    clip = (255 * _scene(60, 48, 48)).astype(np.uint8)
    photograph = picture(0, 96, 96)
    for seed in range(12):
        scenes = Scenes([clip], [photograph])
        solves = (
            draw_solve(np.random.default_rng(seed), scenes, [], START_OF, n_frames=6, size=48)
            for _ in range(2)
        )
        one, other = (finish_iterations(solve, 1) for solve in solves)
        for a, b in zip((*one.coded, one.truth), (*other.coded, other.truth), strict=True):
            assert torch.equal(a, b)
            assert a.isfinite().all()
        part = cut(np.random.default_rng(0), [one, other], 32)
        assert part.truth.shape == (2, 6, 32, 32)


def test_cut_keeps_measurement_and_truth_together() -> None:
    part = cut(np.random.default_rng(1), [_sample(seed=seed) for seed in range(6)], 16)
    torch.testing.assert_close(
        forward(part.coded.phi, part.truth), part.coded.y, rtol=1e-4, atol=1e-4
    )


Go = Callable[..., TrainingResult]
SETTINGS = TrainingSettings(
    variant="unrolled", stages=2, layers=3, channels=16, batch=8, patch_px=16, clip_px=32,
    warmup_steps=2,
    validate_every=3, ema_decay=0.9, taught_share=0,
)  # fmt: skip


@pytest.fixture
def go(photographs: Path, clips: Path) -> Go:
    """Train on the small images and clips."""

    def go(
        run: Path, settings: TrainingSettings = SETTINGS, *, steps: int, **options: object
    ) -> TrainingResult:
        return train(
            photographs,
            run,
            settings,
            Until(steps=steps),
            device=CPU,
            clips=clips,
            held_out=1,
            **options,  # type: ignore[arg-type]  # as given by the test
        )

    return go


def _state(run: Path) -> list[torch.Tensor]:
    learner = load_checkpoint(run)["learner"]
    return [*learner["parameters"], *learner["averages"], *learner["muon"]]


def test_resumed_training_equals_an_uninterrupted_one(go: Go, tmp_path: Path) -> None:
    go(tmp_path / "whole", steps=8)
    calls = itertools.count()
    assert go(tmp_path / "parts", steps=8, stop=lambda: next(calls) >= 4).step == 4
    assert go(tmp_path / "parts", steps=8, resume=True).finished
    for a, b in zip(_state(tmp_path / "whole"), _state(tmp_path / "parts"), strict=True):
        assert torch.equal(a, b)
    assert [point["psnr_db"] for point in read_curve(tmp_path / "whole")][2:] == [
        point["psnr_db"] for point in read_curve(tmp_path / "parts")
    ][2:]


def test_deeper_network_begins_with_the_stages_of_another_run(go: Go, tmp_path: Path) -> None:
    go(tmp_path / "one", steps=3)
    export_weights(
        tmp_path / "one", start := tmp_path / "one.safetensors", data=["ours"], licence="MIT"
    )
    still = dataclasses.replace(SETTINGS, stages=3, learning_rate=1e-8, kernel_rate=1e-8)
    go(tmp_path / "two", still, steps=1, start_from=start)
    before, after = (
        load_checkpoint(tmp_path / "one")["learner"],
        load_checkpoint(tmp_path / "two")["learner"],
    )
    for k, source in enumerate((0, 1, 1)):  # first layers of the stages
        torch.testing.assert_close(
            after["parameters"][2 * k], before["averages"][2 * source], rtol=2e-3, atol=1e-5
        )
    with pytest.raises(ConfigError, match="have another shape"):
        go(tmp_path / "three", dataclasses.replace(SETTINGS, channels=8), steps=1, start_from=start)


def test_measured_masks_are_part_of_the_data(go: Go, tmp_path: Path) -> None:
    path = tmp_path / "masks.mat"
    scipy.io.savemat(path, {"mask": np.random.default_rng(0).random((40, 40, 9))})
    go(tmp_path / "run", steps=1, masks=[path])
    with pytest.raises(ConfigError, match="other settings or images"):
        go(tmp_path / "run", steps=2, resume=True)


def test_exported_run_solves_as_in_training(go: Go, tmp_path: Path) -> None:
    go(tmp_path / "run", steps=2)
    path = tmp_path / "stages.safetensors"
    card = export_weights(
        tmp_path / "run", path, data=["ours"], clip_data=["ours too"], licence="MIT"
    ).markdown()
    assert card.startswith(
        "# unrolled: the last iterations of a solve, trained as a whole\n\n2 stages of 3 layers"
    )
    assert "--variant unrolled --stages 2 --clips CLIPS" in card
    described = dict(describe_weights(path).rows())
    assert (described["network"], described["gives"]) == (
        "unrolled: 3 layers of 16 channels",
        "video",
    )
    truth = _scene(6, 64, 64)
    masks = (np.random.default_rng(3).random(truth.shape) < 0.5).astype(np.float32)
    y = np.asarray((masks * truth).sum(0), np.float32)
    solver = named_prior("unrolled", CPU, path, Precision.FLOAT32)
    calibration = Calibration(phi=masks)
    engine = Engine(calibration, solver, CPU, default_settings(CPU, "unrolled"))
    video, _ = engine.reconstruct(calibration.snapshot("s", 0, y), LEAST_BEFORE + 2)
    expected = _last(
        finish_iterations(START_OF(masks, y, truth=truth), LEAST_BEFORE).coded, load_unrolled(path)
    )[0]
    np.testing.assert_allclose(video, expected.numpy(), atol=1e-5)
    with pytest.raises(ConfigError, match="bench classes"):
        export_weights(tmp_path / "run", path, data=[], licence="MIT", plan=TestPlan([tmp_path]))
