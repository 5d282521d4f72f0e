"""The correlated data step of the first iterations: better where something moves, unchanged where
nothing does.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from sci_stream.optics.calibration import BayerPhase
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import SolverSettings, default_settings
from tests.recon.films import Film, film

CPU = torch.device("cpu")
DEFAULT = default_settings(CPU, "ffdnet-lite")
PAPER = dataclasses.replace(DEFAULT, correlated=0)


def solved(footage: Film, how: SolverSettings, iterations: int) -> tuple[np.ndarray, float]:
    engine = Engine(footage.calibration, make_denoiser("ffdnet-lite", CPU), CPU, how)
    video, report = engine.reconstruct(footage.snapshots[0], iterations)
    assert report.psnr_db is not None
    return video, report.psnr_db


def test_correlated_residual_improves_moving_scene() -> None:
    fast = film("fast", mask="random")
    assert solved(fast, DEFAULT, 4)[1] > solved(fast, PAPER, 4)[1] + 0.3


@pytest.mark.parametrize("options", [{}, {"bayer": BayerPhase.RGGB}])
def test_correlated_residual_keeps_static_scene(options: dict[str, object]) -> None:
    static = film("static", mask="random", **options)
    assert solved(static, DEFAULT, 8)[1] > solved(static, PAPER, 8)[1] - 0.2


def test_still_image_start_gives_the_papers_algorithm() -> None:
    fast = film("fast", mask="random")
    results = [
        solved(fast, dataclasses.replace(how, linear_start=False, weigh_noise=False), 4)[0]
        for how in (DEFAULT, PAPER)
    ]
    assert np.array_equal(*results)
