"""Slightly wrong masks cause no false texture where something moves."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from sci_stream.files.measurement_file import load_measurement
from sci_stream.model import Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.recon.denoisers.registry import make_denoiser
from sci_stream.recon.engine import Engine
from sci_stream.recon.settings import default_settings
from sci_stream_lab.bench.reality.false_texture import unsupported_texture

CPU = torch.device("cpu")


def solved(phi: np.ndarray, y: np.ndarray, **changes: object) -> torch.Tensor:
    """Return the reconstruction in 12 iterations, (B, H, W)."""
    calibration = Calibration(phi.astype(np.float32))
    settings = dataclasses.replace(default_settings(CPU, "ffdnet-lite"), iterations=12, **changes)  # type: ignore[arg-type]
    engine = Engine(calibration, make_denoiser("ffdnet-lite", CPU), CPU, settings)
    snapshot = Snapshot(
        SnapshotId("real", 0, 0), y.astype(np.float32), calibration.hash, len(phi), 0
    )
    return torch.from_numpy(engine.reconstruct(snapshot)[0])


def moving_masks(n_frames: int, size: int, phase_px: float) -> np.ndarray:
    """Return one blurred random pattern that moves down by a pixel a frame, (B, H, W), off by a
    phase.
    """
    rng = np.random.default_rng(1)
    pattern = torch.from_numpy((rng.random((size + 2 * n_frames, size)) < 0.5).astype(np.float32))
    weights = torch.tensor([0.25, 0.5, 0.25]).view(1, 1, 3, 1)
    smooth = torch.nn.functional.conv2d(pattern[None, None], weights, padding=(1, 0))[0, 0].numpy()
    low = int(np.floor(phase_px))
    between = phase_px - low
    return np.stack(
        [
            (1 - between) * smooth[b + low : b + low + size]
            + between * smooth[b + low + 1 : b + low + 1 + size]
            for b in range(1, n_frames + 1)
        ]
    )


def blades(n_frames: int, size: int) -> np.ndarray:
    """Return smooth dark blades that turn past, (B, H, W)."""
    columns = np.arange(size, dtype=np.float32)
    frames = [0.35 + 0.25 * np.tanh(1.5 * np.sin((columns - b) / 14)) for b in range(n_frames)]
    return np.stack([np.broadcast_to(frame, (size, size)) for frame in frames])


def test_phase_error_of_masks_makes_no_false_texture() -> None:
    n_frames, size = 12, 96
    scene = blades(n_frames, size)
    y = (moving_masks(n_frames, size, 0.5) * scene).sum(0)
    assumed = moving_masks(n_frames, size, 0.0)
    exactly_explained = unsupported_texture(solved(assumed, y, weigh_noise=False))
    assert unsupported_texture(solved(assumed, y)) < 0.6 * exactly_explained


def test_real_capture_has_no_texture_finer_than_it_can_carry(data_dir: Path) -> None:
    path = data_dir / "real" / "4fan14_cacti.mat"
    if not path.is_file():
        pytest.skip(f"real capture not found: {path}")
    capture = load_measurement(path)
    # The lower left quarter: two dark blades, smooth but for their edges.
    phi = (capture.masks / capture.masks.max())[:, 128:, :128]
    meas = capture.y[0][128:, :128]
    y = meas / np.percentile(meas / phi.sum(0).clip(0.5), 99.5)
    found = {
        weigh: unsupported_texture(solved(phi, y, weigh_noise=weigh)) for weigh in (True, False)
    }
    assert found[True] < 0.007
    assert found[True] < 0.4 * found[False]


def test_unsupported_texture_counts_what_flickers_not_what_moves() -> None:
    ramp = torch.linspace(0, 6, 64).expand(64, 64)
    smooth = torch.stack([0.5 + 0.3 * torch.sin(ramp + 0.2 * b) for b in range(8)])
    flicker = 0.05 * torch.randn(8, 64, 64, generator=torch.Generator().manual_seed(1))
    still = smooth[:1].expand(8, 64, 64)
    assert unsupported_texture(still) == 0.0
    assert unsupported_texture(smooth) < 0.002
    level = 0.05 * (8 / 9) ** 0.5 / float(smooth.mean())
    assert unsupported_texture(smooth + flicker) == pytest.approx(level, rel=0.1)
