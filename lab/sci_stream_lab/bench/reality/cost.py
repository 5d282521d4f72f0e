"""``sci-stream bench reality --cost``: what noise estimation and self-calibration cost, next to the
solves.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from sci_stream.devices.solver import make_prior
from sci_stream.optics.forward import gram_diag, inverse_gram
from sci_stream.recon.backend.device import pick_device
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import GuardedSolver
from sci_stream.recon.noise_estimation import coded_windows, estimate_noise
from sci_stream_lab.bench.environment import environment
from sci_stream_lab.bench.reality.perturbations import parse_perturbation
from sci_stream_lab.bench.reality.rigs import OpticalSetup, film
from sci_stream_lab.bench.reality.scenes import SCENES, SceneFormat
from sci_stream_lab.bench.reality.solving import SolverSpec
from sci_stream_lab.bench.result import BenchResult, ResultColumn, ResultTable

_FRAMES, _SCENE = 8, "simulated fast"
FIRST = 10
"""Snapshots at the beginning of a series, all of which are checked."""
# Solves take ten times as long as checks, and are all alike.
_SOLVES = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """Mean CPU time of a part for each snapshot, and its share of that of a solve."""

    part: str
    snapshots: int
    ms: float
    share: float


_COLUMNS = (
    ResultColumn("part", "part", left=True),
    ResultColumn("snapshots", "snapshots"),
    ResultColumn("ms", "ms each", ".1f", "ms"),
    ResultColumn("share", "of a solve", ".1%"),
)


def bench_cost(spec: SolverSpec, snapshots: int = 2 * FIRST, size: int = 256) -> BenchResult:
    """Measure the CPU time of solves and checks of a series, side by side: B = 8, masks with
    jitter.

    ``snapshots`` is their number, more than `FIRST`, of which a few are solved; ``size`` the height
    and width. Checks cost the same at any size.
    """
    device = pick_device(spec.device)
    prior, settings = make_prior(spec.section, device)
    rig = OpticalSetup("random", 0.5, _FRAMES)
    scene = next(scene for scene in SCENES if scene.name == _SCENE)
    videos = scene.frames(SceneFormat(size, _FRAMES, False, snapshots))
    series = film(rig, rig.optics(size), videos, parse_perturbation("jitter"))
    engine = Engine(series.assumed, prior, device, settings)
    engine.warm_up()
    solver = GuardedSolver(engine)
    phi = torch.from_numpy(series.assumed.phi.copy()).unsqueeze(0).to(device)
    r_inv, windows = inverse_gram(gram_diag(phi)), coded_windows(phi)
    rows = []
    for number, snapshot in enumerate(series.snapshots):
        y = torch.from_numpy(series.assumed.measurement(snapshot.counts)).unsqueeze(0).to(device)
        began_s = time.process_time()
        estimate_noise(y, windows, r_inv)
        estimated_s = time.process_time()
        if number < _SOLVES:
            engine.reconstruct(snapshot, spec.iterations)
        solved_s = time.process_time()
        solver.measure(snapshot)
        rows.append((estimated_s - began_s, solved_s - estimated_s, time.process_time() - solved_s))
    noise_ms, solve_ms, checks_ms = 1e3 * np.array(rows).T
    solve_ms = solve_ms[:_SOLVES]
    solve = float(solve_ms.mean())
    parts = (
        (f"solve, {spec.iterations} iterations, with the noise", solve_ms),
        ("noise estimation", noise_ms),
        (f"checks and self-calibration, first {FIRST}", checks_ms[:FIRST]),
        ("checks and self-calibration, later", checks_ms[FIRST:]),
    )
    costs = [Cost(part, len(ms), float(ms.mean()), float(ms.mean()) / solve) for part, ms in parts]
    together = costs[1].share + costs[2].share
    return BenchResult(
        name="reality cost",
        environment=environment(spec.device),
        tables=(
            ResultTable(
                f"CPU time for each snapshot; {spec.description}; {size}×{size}",
                _COLUMNS,
                tuple(costs),
            ),
        ),
        notes=(
            f"noise estimation, checks and self-calibration of the first {FIRST} snapshots: "
            f"{together:.1%} of a solve",
        ),
        settings={"iterations": spec.iterations, "snapshots": snapshots, "size": size},
    )
