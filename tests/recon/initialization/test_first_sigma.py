"""The first σ of a solve, chosen from the estimated error of the start."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from sci_stream.model import Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import SolverSettings, default_settings

B, SIZE = 8, 64
CPU = torch.device("cpu")
SETTINGS = dataclasses.replace(default_settings(CPU, "ffdnet-lite"), weigh_noise=False)
FRAMES_ONLY = dataclasses.replace(SETTINGS, along_time=False)
"""Along time the network is given another σ than frames are."""


def smooth(speed: float) -> np.ndarray:
    """Return frames of a smooth scene in which rings and a disc move, (B, H, W): much motion that y
    hardly shows.
    """
    rows, columns = np.mgrid[:SIZE, :SIZE].astype(np.float32)
    frames = []
    for t in speed * np.arange(B, dtype=np.float32):
        away = np.sqrt(6 * (rows - 48) ** 2 + (columns - 32) ** 2)
        rings = 0.15 * np.exp(-(((away - 12 - t) / 10) ** 2)) * np.cos((away - t) / 2.5)
        disc = 0.5 - 0.5 * np.tanh(np.hypot(rows - 10 - t, columns - 32) - 7)
        frames.append((0.4 + 0.3 * rows / SIZE + rings) * (1 - disc) + 0.25 * disc)
    return np.stack(frames).clip(0, 1)


def textured() -> np.ndarray:
    """Return frames of a static fine texture, (B, H, W)."""
    fine = np.random.default_rng(5).standard_normal((SIZE, SIZE))
    spread = sum(np.roll(fine, (i, j), (0, 1)) for i in (0, 1) for j in (0, 1)) / 2
    return np.broadcast_to(np.float32(0.5 + 0.12 * spread.clip(-3, 3)), (B, SIZE, SIZE)).clip(0, 1)


def calibration() -> Calibration:
    phi = np.random.default_rng(7).random((B, SIZE, SIZE)) < 0.5
    return Calibration(phi.astype(np.float32), dark=0.0, full_scale_dn=1.0)


def snapshot_of(video: np.ndarray) -> Snapshot:
    c = calibration()
    counts = (c.phi * video).sum(0).astype(np.float32)
    return Snapshot(
        SnapshotId("test", 0, 0),
        counts,
        c.hash,
        B,
        0,
        truth=np.ascontiguousarray(video, np.float32),
    )


def solved(
    video: np.ndarray, settings: SolverSettings, iterations: int
) -> tuple[float, list[float]]:
    """Return the PSNR after a number of iterations, and σ of each."""
    network = make_denoiser("ffdnet-lite", CPU)
    sigmas: list[float] = []

    def noted(x: torch.Tensor, sigma: float) -> torch.Tensor:
        sigmas.append(sigma)
        return network(x, sigma)

    _, report = Engine(calibration(), noted, CPU, settings).reconstruct(
        snapshot_of(video), iterations
    )
    assert report.psnr_db is not None
    return report.psnr_db, sigmas


@pytest.mark.parametrize(
    "video", [smooth(0.5), smooth(3), textured()], ids=["slow", "fast", "texture"]
)
def test_sigma_stays_within_the_set_limits(video: np.ndarray) -> None:
    _, sigmas = solved(video, FRAMES_ONLY, 16)
    assert 1 / 255 <= sigmas[0] <= SETTINGS.sigma_first + 1e-7
    assert sigmas[-1] <= SETTINGS.sigma_last + 1e-7
    assert all(after <= before + 1e-7 for before, after in itertools.pairwise(sigmas))


def test_better_start_has_lower_sigma() -> None:
    slow, fast = (solved(smooth(speed), FRAMES_ONLY, 4)[1][0] for speed in (0.5, 3))
    assert slow < 0.8 * fast


def test_static_texture_survives() -> None:
    # ȳ is exact here, and only from ȳ is σ as set.
    as_set = dataclasses.replace(SETTINGS, linear_start=False)
    assert solved(textured(), SETTINGS, 8)[0] > solved(textured(), as_set, 8)[0] + 1.5


def test_lower_first_sigma_is_kept() -> None:
    low = dataclasses.replace(FRAMES_ONLY, sigma_first=2 / 255, sigma_last=1 / 255)
    assert solved(smooth(3), low, 3)[1][0] == pytest.approx(2 / 255)


def test_first_sigma_from_the_still_image_is_as_set() -> None:
    plain = dataclasses.replace(FRAMES_ONLY, linear_start=False)
    assert solved(smooth(0.5), plain, 3)[1][0] == pytest.approx(SETTINGS.sigma_first)
