"""The start as a second measurement: what iterations keep of it, and where."""

from __future__ import annotations

import dataclasses
import math
from collections import deque

import numpy as np
import pytest
import torch

from sci_stream.optics.calibration import Calibration
from sci_stream.optics.forward import gram_diag, inverse_gram
from sci_stream.recon.algorithms.gap import Anchor, Problem, gap
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.initialization.initializer import Past
from sci_stream.recon.settings import SolverSettings, default_settings

CPU = torch.device("cpu")
SETTINGS = default_settings(CPU, "ffdnet-lite")
FRAMES, SIZE = 6, 48
NOISE = 0.05
START = torch.full((1, 3, 4, 4), 0.2)


def _moving(speed: float) -> np.ndarray:
    """Return two snapshots of waves that move by ``speed`` pixels a frame, (2B, H, W)."""
    rows, columns = np.mgrid[:SIZE, :SIZE]
    frames = [
        0.5 + 0.25 * np.sin((columns - speed * time) / 2.5) * np.cos(rows / 3)
        for time in range(2 * FRAMES)
    ]
    return np.stack(frames).astype(np.float32)


def _started(speed: float, *, warm: bool, settings: SolverSettings = SETTINGS):
    """Return an engine, the measurement of the second snapshot, its start, and the truth."""
    rng = np.random.default_rng(0)
    phi = (rng.random((FRAMES, SIZE, SIZE)) < 0.5).astype(np.float32)
    calibration = Calibration(phi=phi, read_noise_dn=NOISE)
    engine = Engine(calibration, make_denoiser("ffdnet-lite", CPU), CPU, settings)
    video = _moving(speed)
    noise = NOISE * rng.standard_normal((SIZE, SIZE))
    y = (phi * video[FRAMES:]).sum(0) + noise
    before = torch.from_numpy(video[:FRAMES]).unsqueeze(0)
    past = Past(before, torch.ones((), dtype=torch.bool)) if warm else None
    with torch.inference_mode():
        measurement = engine.prepare(torch.from_numpy(y.astype(np.float32)))
        start = engine.initialize(measurement, past)
    return engine, measurement, start, torch.from_numpy(video[FRAMES:])


@pytest.mark.parametrize(("variance", "expected"), [(0.0, 0.2), (0.8, 0.6), (math.inf, 1.0)])
def test_draw_is_weighted_by_the_errors(variance: float, expected: float) -> None:
    anchor = Anchor.of(START, torch.tensor(variance), torch.full((1, 4, 4), 0.1))
    drawn = anchor.drawn(torch.ones(1, 3, 4, 4))
    torch.testing.assert_close(drawn, torch.full((1, 3, 4, 4), expected))


def test_exact_start_behind_an_exact_measurement_is_finite() -> None:
    v = torch.ones(1, 3, 4, 4)
    drawn = Anchor.of(START, torch.tensor(0.0), torch.zeros(1, 4, 4)).drawn(v)
    torch.testing.assert_close(drawn, v)


def test_estimate_from_an_exact_measurement_is_not_drawn() -> None:
    v = torch.ones(1, 3, 4, 4)
    drawn = Anchor.of(START, torch.tensor(0.5), torch.zeros(1, 4, 4)).drawn(v)
    torch.testing.assert_close(drawn, v)


def test_start_of_unknown_error_changes_nothing() -> None:
    phi = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    y = phi.sum(1) * 0.5
    problem = Problem(y, phi, inverse_gram(gram_diag(phi)), (lambda x, _sigma: 0.9 * x,))
    anchor = Anchor.of(START, torch.tensor(math.inf), torch.full((1, 4, 4), 0.01))
    unknown = problem._replace(anchor=anchor)
    plain, anchored = (
        list(gap(torch.zeros(1, 3, 4, 4), p, [0.3, 0.2])) for p in (problem, unknown)
    )
    for one, other in zip(plain, anchored, strict=True):
        torch.testing.assert_close(one, other)


def test_warm_start_is_kept() -> None:
    *_, start, _ = _started(0.7, warm=True)
    assert start.known is not None
    assert 0 < float(start.known) < 0.1


def test_cold_start_is_not_kept() -> None:
    assert _started(0.7, warm=False)[2].known is None


def test_start_after_a_cut_is_not_kept() -> None:
    engine, measurement, start, _ = _started(0.7, warm=True)
    past = Past(1 - start.v, torch.ones((), dtype=torch.bool))
    with torch.inference_mode():
        after_cut = engine.initialize(measurement, past)
    assert after_cut.known is not None
    assert math.isinf(float(after_cut.known))


def test_start_without_a_linear_estimate_is_not_kept() -> None:
    settings = dataclasses.replace(SETTINGS, linear_start=False)
    *_, start, _ = _started(0.7, warm=True, settings=settings)
    assert start.known is None


@pytest.mark.parametrize("speed", [0.2, 0.7, 1.5])
def test_iterations_of_a_warm_solve_keep_its_start(speed: float) -> None:
    engine, measurement, start, truth = _started(speed, warm=True)

    def error(*, anchored: bool) -> float:
        begun = start if anchored else start._replace(known=None)
        with torch.inference_mode():
            (last,) = deque(engine.solve(measurement, begun, 24), maxlen=1)
        return float((last[0] - truth).square().mean())

    assert error(anchored=True) < error(anchored=False)
