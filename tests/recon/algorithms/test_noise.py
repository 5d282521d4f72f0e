"""Known measurement noise is not fitted: each pixel is weighted by its noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sci_stream.errors import CalibrationError
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.forward import forward, gram_diag, inverse_gram
from sci_stream.recon.algorithms.gap import (
    Problem,
    cold_start,
    data_weight,
    gap,
    noise_variance_ratio,
)
from sci_stream.recon.denoisers.tv import TvDenoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings
from sci_stream_drivers.simulated.options import SimulatedOptions
from sci_stream_drivers.simulated.sensor import Sensor

CPU = torch.device("cpu")
SIGMAS = (0.3, 0.2, 0.1, 0.05)
SHAPE = (3, 2, 4)


def shrink(x: torch.Tensor, sigma: float) -> torch.Tensor:
    """Pull towards the frame's mean: the simplest denoiser that does something."""
    mean = x.mean((-2, -1), keepdim=True)
    return mean + (x - mean) / (1.0 + sigma)


@pytest.fixture
def problem() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return Φ, y and the variance of its noise, which differs from pixel to pixel."""
    generator = torch.Generator().manual_seed(1)
    phi = 0.05 + 0.95 * torch.rand(SHAPE, generator=generator, dtype=torch.float64)
    noise = 0.02 * torch.rand(SHAPE[1:], generator=generator, dtype=torch.float64)
    y = forward(phi, torch.rand(SHAPE, generator=generator, dtype=torch.float64))
    return (
        phi,
        y + noise.sqrt() * torch.randn(y.shape, generator=generator, dtype=torch.float64),
        noise,
    )


def as_matrix(phi: torch.Tensor) -> torch.Tensor:
    """Return Φ as it multiplies a vector."""
    return torch.cat([torch.diag(mask.flatten()) for mask in phi], dim=1)


def test_gap_with_noise_is_the_linear_mmse_step(
    problem: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    phi, y, noise = problem
    matrix, covariance = as_matrix(phi), torch.diag(noise.flatten())
    v = cold_start(y, phi, inverse_gram(gram_diag(phi))).flatten()
    gathered, expected = torch.zeros_like(y).flatten(), []
    for sigma in SIGMAS:
        # x is normal around v with the variance 2σ², y − Φx with that of the noise: their product
        # has its peak at this.
        error = 2 * sigma**2 * (matrix @ matrix.T)
        gain = error @ torch.linalg.inv(error + covariance)
        gathered = gain @ (gathered + 1.5 * (y.flatten() - matrix @ v))
        unexplained = y.flatten() + gathered - matrix @ v
        x = v + 2 * sigma**2 * matrix.T @ torch.linalg.solve(error + covariance, unexplained)
        v = shrink(x.view(SHAPE), sigma).flatten()
        expected.append(v.view(SHAPE))

    r_inv = inverse_gram(gram_diag(phi))
    known = Problem(
        y,
        phi,
        r_inv,
        (shrink,),
        relaxation=1.5,
        noise_ratio=noise_variance_ratio(noise, r_inv, None),
    )
    iterates = gap(cold_start(y, phi, r_inv), known, SIGMAS)
    for got, wanted in zip(iterates, expected, strict=True):
        torch.testing.assert_close(got, wanted)


def test_zero_noise_changes_nothing(
    problem: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    phi, y, noise = problem
    r_inv = inverse_gram(gram_diag(phi))
    start = cold_start(y, phi, r_inv)
    unknown = Problem(y, phi, r_inv, (shrink,))
    zero = unknown._replace(noise_ratio=noise_variance_ratio(torch.zeros_like(noise), r_inv, None))
    quiet, exact = gap(start, zero, SIGMAS), list(gap(start, unknown, SIGMAS))
    for got, wanted in zip(quiet, exact, strict=True):
        torch.testing.assert_close(got, wanted)


def test_data_weight_falls_with_noise_and_with_lower_sigma() -> None:
    r_inv = torch.tensor([0.5, 0.5, 0.1, 0.0])
    noise_ratio = noise_variance_ratio(torch.tensor([0.0, 0.02, 0.02, 0.02]), r_inv, None)
    assert noise_ratio is not None
    high, low = data_weight(noise_ratio, 0.1), data_weight(noise_ratio, 0.05)
    torch.testing.assert_close(high, torch.tensor([1.0, 2 / 3, 0.01 / 0.011, 1.0]))
    assert bool((low <= high).all())
    assert bool((low[1:3] < high[1:3]).all())
    assert noise_variance_ratio(None, r_inv, None) is None


# --- noise of the calibration


def test_calibration_gives_noise_variance() -> None:
    options = SimulatedOptions(n_frames=4, read_noise_e=12.0, full_well_e=3000.0)
    sensor = Sensor(options, np.full((4, 8, 8), 0.5, np.float32))
    calibration = Calibration(
        np.full((4, 300, 300), 0.5, np.float32),
        dark=np.float32(sensor.black_dn),  # type: ignore[arg-type]  # a scalar is documented to do
        full_scale_dn=sensor.full_scale_dn,
        read_noise_dn=sensor.read_noise_dn,
        gain_e_per_dn=sensor.gain_e_per_dn,
    )
    assert calibration.noise is not None
    for brightness in (0.01, 0.2, 1.0):
        y = 2.0 * brightness
        measured = calibration.measurement(
            sensor.convert(np.full(calibration.shape, y, np.float32), 3)
        )
        assert measured.var() == pytest.approx(
            calibration.noise[0] + calibration.noise[1] * y, rel=0.04
        )


def test_noise_enters_the_hash_and_invalid_noise_is_refused() -> None:
    phi = np.full((2, 4, 4), 0.5, np.float32)
    unknown = Calibration(phi)
    assert unknown.noise is None
    known = [
        Calibration(phi, read_noise_dn=1.0),
        Calibration(phi, gain_e_per_dn=1.0),
        Calibration(phi, gain_e_per_dn=2),
    ]
    assert len({unknown.hash, *(calibration.hash for calibration in known)}) == 4
    assert known[0].noise == (1.0, 0.0)
    assert known[2].noise == (0.0, 0.5)
    impossible: list[dict[str, Any]] = [
        {"read_noise_dn": -1.0},
        {"read_noise_dn": np.nan},
        {"gain_e_per_dn": 0.0},
    ]
    for wrong in impossible:
        with pytest.raises(CalibrationError, match=next(iter(wrong))):
            Calibration(phi, **wrong)


def test_noisy_snapshot_improves_with_known_or_estimated_noise(
    make_video: Callable[..., np.ndarray],
    make_calibration: Callable[..., Calibration],
    expose: Callable[..., Snapshot],
) -> None:
    exact = make_calibration(4, 48, 56)
    read_noise_dn = 0.15 * exact.full_scale_dn
    noisy = dataclasses.replace(exact, read_noise_dn=read_noise_dn)
    truth = make_video(4, 48, 56)
    noise = read_noise_dn * np.random.default_rng(2).standard_normal(exact.shape, dtype=np.float32)
    settings = dataclasses.replace(default_settings(CPU, "tv"), iterations=12)

    def quality_db(calibration: Calibration, *, weigh: bool) -> float:
        clean = expose(calibration, truth)
        snapshot = dataclasses.replace(clean, counts=clean.counts + noise)
        engine = Engine(
            calibration, TvDenoiser(), CPU, dataclasses.replace(settings, weigh_noise=weigh)
        )
        quality = engine.reconstruct(snapshot)[1].psnr_db
        assert quality is not None
        return quality

    unweighted = quality_db(exact, weigh=False)
    assert quality_db(noisy, weigh=False) == unweighted
    assert quality_db(noisy, weigh=True) > unweighted + 2.0
    assert quality_db(exact, weigh=True) > unweighted + 0.1, "it is estimated from the snapshot"
