"""Solves whose last iterations were trained as a whole: in the engine, by file and by name."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import sci_stream
from sci_stream.config import ReconstructSection
from sci_stream.devices.solver import make_prior, offered_priors
from sci_stream.errors import ConfigError, WeightsError
from sci_stream.optics.bayer import BayerPhase
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.algorithms.unrolled import LEAST_BEFORE, Coded, UnrolledSolver, estimates
from sci_stream.recon.backend.half_precision import Precision
from sci_stream.recon.denoisers.registry import make_denoiser, named_prior
from sci_stream.recon.denoisers.variants import shipped_weights
from sci_stream.recon.denoisers.weights import (
    STAGE_INPUTS,
    STAGE_OUTPUTS,
    UNROLLED_LAYOUT,
    Stage,
    load_unrolled,
)
from sci_stream.recon.engine import Engine
from sci_stream.recon.initialization.initializer import coded
from sci_stream.recon.settings import default_settings

CPU = torch.device("cpu")
CHANNELS, LAYERS, NUMBER = 12, 4, 3


def random_stages() -> list[Stage]:
    """Return stages of random weights that change a video by a few per cent."""
    generator = torch.Generator().manual_seed(0)
    sizes = [STAGE_INPUTS + CHANNELS // 2, *[CHANNELS] * (LAYERS - 1), STAGE_OUTPUTS]
    return [
        Stage(
            [
                (0.01 if o == STAGE_OUTPUTS else 0.1) * torch.randn(o, i, 3, 3, generator=generator)
                for i, o in itertools.pairwise(sizes)
            ],
            [0.01 * torch.randn(o, generator=generator) for o in sizes[1:]],
            torch.tensor([0.2 - 0.1 * k, 1.0]),
        )
        for k in range(NUMBER)
    ]


def save(network: list[Stage], path: Path, **metadata: str) -> None:
    """Write stages as the laboratory exports them."""
    tensors = {}
    for k, stage in enumerate(network):
        layers = enumerate(zip(stage.kernels, stage.biases, strict=True))
        tensors |= {
            f"stage.{k}.conv.{n}.{part}": t.contiguous()
            for n, pair in layers
            for part, t in zip(("weight", "bias"), pair, strict=True)
        }
        tensors[f"stage.{k}.step"] = stage.step
    shape = {"stages": str(NUMBER), "layers": str(LAYERS), "channels": str(CHANNELS)}
    safetensors.torch.save_file(tensors, path, {"layout": UNROLLED_LAYOUT, **shape, **metadata})


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save(random_stages(), path := tmp_path / "stages.safetensors")
    return path


def _calibration(
    n_frames: int, height: int, width: int, bayer: BayerPhase | None = None
) -> Calibration:
    masks = np.random.default_rng(0).random((n_frames, height, width), np.float32)
    return Calibration(phi=masks, bayer=bayer)


def _scene(n_frames: int, height: int, width: int) -> np.ndarray:
    rows, columns = np.mgrid[:height, :width]
    return np.stack(
        [0.5 + 0.3 * np.sin((columns - b) / 3) * np.cos(rows / 4) for b in range(n_frames)]
    )


def _engine(
    calibration: Calibration, weights: Path, precision: Precision = Precision.FLOAT32
) -> Engine:
    prior = named_prior("unrolled", CPU, weights, precision)
    return Engine(
        calibration,
        prior,
        CPU,
        dataclasses.replace(default_settings(CPU, "unrolled"), warm_start=True),
    )


@pytest.mark.parametrize(
    ("n_frames", "height", "width", "bayer"),
    [
        (1, 20, 22, None),
        (2, 16, 16, None),
        (50, 15, 7, None),
        (5, 33, 21, None),
        (3, 24, 26, BayerPhase.GRBG),
    ],
)
def test_stages_are_the_last_iterations_of_a_solve(
    weights: Path, n_frames: int, height: int, width: int, bayer: BayerPhase | None
) -> None:
    calibration = _calibration(n_frames, height, width, bayer)
    y = (calibration.phi * _scene(n_frames, height, width)).sum(0)
    engine, snapshot = (
        _engine(calibration, weights),
        calibration.snapshot("s", 0, np.asarray(y, np.float32)),
    )
    after_each: list[torch.Tensor] = []
    all_stages = LEAST_BEFORE + NUMBER
    video, report = engine.reconstruct(
        snapshot, all_stages, watch=lambda estimate: after_each.append(estimate.clone())
    )
    assert report.iterations == len(after_each) == all_stages
    assert report.residual < 0.05
    assert report.noise is not None
    frames = Engine(calibration, make_denoiser("ffdnet-lite", CPU), CPU, engine.settings)
    with torch.inference_mode():
        measurement = frames.prepare(torch.from_numpy(calibration.measurement(snapshot.counts)))
        start = frames.initialize(measurement)
        before = [*frames.solve(measurement, start, LEAST_BEFORE)]
        problem = coded(measurement, start, before[-1])
        stages = [*estimates(problem, random_stages(), torch.float32)]
        if n_frames < 3:  # stages learned from more
            stages = [(result + before[-1]) / 2 for result in stages]
        expected = [*before, *stages]
    for result, of_iteration in zip(after_each, expected, strict=True):
        torch.testing.assert_close(result, engine.masks.merged(of_iteration))
    np.testing.assert_array_equal(video, after_each[-1].numpy())


def test_solve_of_few_iterations_has_few_stages_or_none(weights: Path) -> None:
    calibration = _calibration(4, 16, 16)
    snapshot = calibration.snapshot(
        "s", 0, np.asarray((calibration.phi * _scene(4, 16, 16)).sum(0), np.float32)
    )
    engine = _engine(calibration, weights)
    frames = Engine(calibration, make_denoiser("ffdnet-lite", CPU), CPU, engine.settings)
    video, report = engine.reconstruct(snapshot, LEAST_BEFORE)
    assert (report.iterations, report.budget_limited) == (LEAST_BEFORE, True)
    np.testing.assert_array_equal(video, frames.reconstruct(snapshot, LEAST_BEFORE)[0])
    each: list[torch.Tensor] = []
    engine.reconstruct(
        snapshot, LEAST_BEFORE + NUMBER, watch=lambda estimate: each.append(estimate.clone())
    )
    np.testing.assert_array_equal(
        engine.reconstruct(snapshot, LEAST_BEFORE + 1)[0], each[LEAST_BEFORE].numpy()
    )


@pytest.mark.parametrize("snapshots", [1, 2])
@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_chunks_of_frames_change_nothing(at_once: int, snapshots: int) -> None:
    generator = torch.Generator().manual_seed(1)
    y, error, still = torch.rand((3, 2, 12, 14), generator=generator)
    phi, start = torch.rand((2, 2, 8, 12, 14), generator=generator)
    problem = Coded(y, phi, 1 / phi.square().sum(1), 0.01 * y, 0.1 * error, still, start)
    whole, parts = (
        [*estimates(problem, random_stages(), torch.float32, pixels, snapshots=snapshots)]
        for pixels in (None, at_once * y.numel() // snapshots)
    )
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b)


def test_memory_is_reduced_down_to_single_frames(weights: Path) -> None:
    calibration = _calibration(6, 32, 32)
    engine = _engine(calibration, weights)
    snapshot = calibration.snapshot(
        "s", 0, np.asarray((calibration.phi * _scene(6, 32, 32)).sum(0), np.float32)
    )
    video, _ = engine.reconstruct(snapshot)
    while engine.reduce_memory():
        pass
    assert isinstance(engine._network, UnrolledSolver)
    assert engine._network.pixels_per_chunk < 2 * 32 * 32
    np.testing.assert_allclose(engine.reconstruct(snapshot)[0], video, atol=1e-5)


def test_convolutions_in_16_bits_differ_little(weights: Path) -> None:
    calibration = _calibration(4, 32, 32)
    snapshot = calibration.snapshot(
        "s", 0, np.asarray((calibration.phi * _scene(4, 32, 32)).sum(0), np.float32)
    )
    exact, half = (
        _engine(calibration, weights, how).reconstruct(snapshot)[0]
        for how in ("float32", Precision.HALF)
    )
    assert 0 < np.abs(exact - half).max() < 0.02


def test_costs_of_solves_are_known_with_and_without_stages(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _engine(_calibration(4, 16, 16), weights)
    all_stages = LEAST_BEFORE + NUMBER
    solved: list[int] = []
    solve = engine.solve

    def count(*arguments: Any) -> Iterator[torch.Tensor]:
        solved.append(arguments[2])
        return solve(*arguments)

    monkeypatch.setattr(engine, "solve", count)
    costs = engine.warm_up()
    assert solved == [
        4,
        4,
        LEAST_BEFORE,
        LEAST_BEFORE,
        all_stages,
        all_stages,
    ]  # a second time warm
    idle = costs._idle
    further = (idle[LEAST_BEFORE] - idle[4]) / (LEAST_BEFORE - 4) * (15 - all_stages)
    assert idle[15] == pytest.approx(idle[all_stages] + max(further, 0))
    # Where no two numbers differ by iterations alone, the full one is measured.
    solved.clear()
    engine.change_settings(dataclasses.replace(engine.settings, min_iterations=9))
    engine.warm_up()
    assert solved == [9, 9, all_stages, all_stages, 15, 15]


def test_arrays_and_rig_take_the_solver_from_its_weights(weights: Path) -> None:
    masks = np.random.default_rng(0).integers(0, 2, (4, 32, 32))
    ys = np.stack([(masks * _scene(4, 32, 32)).sum(0)] * 2)
    result = sci_stream.reconstruct(ys, masks, weights=weights, white=1.0, device="cpu")
    assert [report.iterations for report in result.reports] == [15, 15]
    assert result.reports[1].start_reason in ("warm", "no_gain")  # the preceding video was tried
    section = ReconstructSection(weights=weights)
    prior, settings = make_prior(section, CPU)
    assert (prior.name, settings.iterations, settings.min_iterations) == ("unrolled", 15, 4)
    assert "unrolled" in offered_priors(section, "unrolled")
    assert make_prior(section.model_copy(update={"iterations": 12}), CPU)[1].iterations == 12


def test_stages_are_the_default_on_a_cpu() -> None:
    prior, settings = make_prior(ReconstructSection(), CPU)
    assert isinstance(prior, UnrolledSolver)
    assert settings.iterations == 11 + len(prior.stages)


def test_weights_and_names_of_other_networks_are_refused(weights: Path) -> None:
    with pytest.raises(WeightsError, match=r"unknown layout.*Choose the denoiser 'unrolled'"):
        make_denoiser("ffdnet", CPU, weights)
    with pytest.raises(WeightsError, match=r"no unrolled stages.*'ffdnet'"):
        named_prior("unrolled", CPU, shipped_weights("ffdnet-lite"), Precision.AUTO)
    with pytest.raises(ConfigError, match="without trained stages"):
        make_denoiser("unrolled", CPU, weights)


def test_written_weights_are_read_back(weights: Path) -> None:
    for stage, read in zip(random_stages(), load_unrolled(weights), strict=True):
        for a, b in zip(
            (*stage.kernels, *stage.biases, stage.step),
            (*read.kernels, *read.biases, read.step),
            strict=True,
        ):
            torch.testing.assert_close(a, b)


def _with(stage: Stage, k: int, kernel: torch.Tensor) -> Stage:
    return stage._replace(kernels=[*stage.kernels[:k], kernel, *stage.kernels[k + 1 :]])


@pytest.mark.parametrize(
    ("change", "metadata", "said"),
    [
        (
            lambda s: _with(s, 0, s.kernels[0][:, : STAGE_INPUTS + 1]),
            {},
            r"expected.*3 stages of 4 layers and 12 channels",
        ),
        (lambda s: _with(s, 2, s.kernels[2][0]), {}, "do not have the shape"),
        (lambda s: s._replace(step=torch.zeros(3)), {}, "do not have the shape"),
        (lambda s: s, {"stages": "1000000000"}, "do not have the shape"),
        (lambda s: s, {"layers": "-1"}, "do not have the shape"),
        (lambda s: s, {"layers": "1"}, "do not have the shape"),
        (lambda s: s, {"channels": "many"}, "cannot be read"),
        (lambda s: s._replace(step=torch.tensor([0.0, torch.nan])), {}, "NaN or infinity"),
    ],
)
def test_broken_stages_are_refused(
    tmp_path: Path, change: Callable[[Stage], Stage], metadata: dict[str, str], said: str
) -> None:
    first, *others = random_stages()
    save([change(first), *others], path := tmp_path / "broken.safetensors", **metadata)
    with pytest.raises(WeightsError, match=said):
        load_unrolled(path)
