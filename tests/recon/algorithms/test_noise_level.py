"""Local noise levels: each pixel is denoised by the estimated error of the start, with priors that
accept a σ map.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from sci_stream.model import Snapshot, SnapshotId
from sci_stream.optics.calibration import BayerPhase, Calibration
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings

CPU = torch.device("cpu")
B, H, W = 8, 64, 64


def falling_drop(n_frames: int) -> Iterator[np.ndarray]:
    """Yield frames of a small bright disc that falls fast before a smooth background at rest."""
    rows, columns = np.mgrid[:H, :W]
    for t in range(n_frames):
        inside = np.clip(5.5 - np.hypot(rows - 8 - 4.0 * t, columns - 30), 0, 1)
        yield (0.1 + 0.1 * rows / H) * (1 - inside) + 0.7 * inside


def filmed(bayer: BayerPhase | None = None) -> tuple[Calibration, Snapshot]:
    phi = (np.random.default_rng(4).random((B, H, W)) < 0.5).astype(np.float32)
    calibration = Calibration(phi, dark=0.0, full_scale_dn=255.0, saturation_dn=None, bayer=bayer)
    truth = np.stack(list(falling_drop(B))).astype(np.float32)
    counts = (255.0 * np.einsum("bhw,bhw->hw", phi, truth)).astype(np.float32)
    snapshot = Snapshot(
        id=SnapshotId("drop", 0, 0),
        counts=counts,
        calibration_hash=calibration.hash,
        n_frames=B,
        host_time_ns=0,
        bayer=bayer,
        truth=truth,
    )
    return calibration, snapshot


def solved(
    denoiser: str, *, bayer: BayerPhase | None = None, **how: bool
) -> tuple[np.ndarray, float]:
    calibration, snapshot = filmed(bayer)
    settings = dataclasses.replace(default_settings(CPU, denoiser), **how)
    engine = Engine(calibration, make_denoiser(denoiser, CPU), CPU, settings)
    video, report = engine.reconstruct(snapshot, 8)
    assert report.psnr_db is not None
    return video, report.psnr_db


@pytest.mark.parametrize("bayer", [None, BayerPhase.GBRG])
def test_small_moving_object_before_static_scene_improves(bayer: BayerPhase | None) -> None:
    local, even = (solved("ffdnet-lite", bayer=bayer, local_sigma=how)[1] for how in (True, False))
    assert local > even + 0.1


@pytest.mark.parametrize(
    ("denoiser", "how"), [("tv", {}), ("ffdnet-lite", {"linear_start": False})]
)
def test_level_without_local_errors_is_uniform(denoiser: str, how: dict[str, bool]) -> None:
    local, even = (solved(denoiser, local_sigma=setting, **how)[0] for setting in (True, False))
    assert np.array_equal(local, even)
