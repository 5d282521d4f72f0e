"""The stages of a solve from Python: prepare, initialize, solve."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings

CPU = torch.device("cpu")
SETTINGS = dataclasses.replace(default_settings(CPU, "ffdnet-lite"), iterations=5)


def test_stages_give_the_video_of_the_engine(
    make_video: Callable[..., np.ndarray],
    make_calibration: Callable[..., Calibration],
    expose: Callable[..., Snapshot],
) -> None:
    calibration = make_calibration(saturation_dn=None)
    snapshot = expose(calibration, make_video())
    engine = Engine(calibration, TvDenoiser(), CPU, SETTINGS)
    measurement = engine.prepare(torch.from_numpy(calibration.measurement(snapshot.counts)))
    start = engine.initialize(measurement)
    *_, last = engine.solve(measurement, start, 5)
    np.testing.assert_array_equal(last[0].numpy(), engine.reconstruct(snapshot)[0])


class _Blend(torch.nn.Module):
    """Blends each frame with its mean by a weight that is learned."""

    name = "blend"

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.3))

    def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        return x.lerp(x.mean((-2, -1), keepdim=True), self.weight * sigma.to(x.dtype))


def test_gradients_pass_through_the_iterations(
    make_video: Callable[..., np.ndarray],
    make_calibration: Callable[..., Calibration],
    expose: Callable[..., Snapshot],
) -> None:
    """By those of a prior a network is trained in the loop."""
    calibration, prior = make_calibration(), _Blend()
    truth = torch.from_numpy(make_video())
    engine = Engine(calibration, prior, CPU, SETTINGS)
    y = torch.from_numpy(calibration.measurement(expose(calibration, make_video()).counts))

    def error() -> torch.Tensor:
        measurement = engine.prepare(y)
        *_, last = engine.solve(measurement, engine.initialize(measurement), 5)
        return (last[0] - truth).square().mean()

    error().backward()
    gradient = prior.weight.grad
    assert gradient is not None
    with torch.no_grad():
        prior.weight += 0.01
        above = error()
        prior.weight -= 0.02
        below = error()
    assert float(gradient) == pytest.approx(float(above - below) / 0.02, rel=0.02)
