"""Small calibrations and scenes that several reconstruction tests share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from sci_stream.model import Array, BayerPhase, Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration

Video = npt.NDArray[np.float32]


@pytest.fixture
def make_video() -> Callable[..., Video]:
    """Return a maker of smooth moving scenes, (B, H, W) in 0–1."""

    def make(n_frames: int = 4, height: int = 32, width: int = 40) -> Video:
        rows, columns = np.mgrid[:height, :width]
        frames = [
            0.5
            + 0.3 * np.sin(2 * np.pi * (columns - 0.5 * b) / 16) * np.cos(2 * np.pi * rows / 20)
            + 0.2 * (np.hypot(rows - height / 2, columns - width / 2 - 0.5 * b) < height / 5)
            for b in range(n_frames)
        ]
        return np.clip(np.stack(frames), 0, 1).astype(np.float32)

    return make


@pytest.fixture
def make_calibration() -> Callable[..., Calibration]:
    """Return a maker of calibrations with random grey masks, a dark frame and a 12-bit scale."""

    def make(
        n_frames: int = 4,
        height: int = 32,
        width: int = 40,
        *,
        bayer: BayerPhase | None = None,
        saturation_dn: float | None = 4095.0,
        bad_pixels: Array | None = None,
        phi: Array | None = None,
    ) -> Calibration:
        random = np.random.default_rng(5)
        if phi is None:
            phi = (
                0.1
                + 0.8 * (random.random((n_frames, height, width)) < 0.5)
                + 0.1 * random.random((height, width))
            )
        return Calibration(
            phi=phi.astype(np.float32),
            dark=np.full((), 64.0, np.float32),
            full_scale_dn=900.0,
            saturation_dn=saturation_dn,
            bad_pixels=bad_pixels,
            bayer=bayer,
        )

    return make


@pytest.fixture
def expose() -> Callable[..., Snapshot]:
    """Return a camera without noise: the counts that a calibration predicts, with the truth."""

    def make(
        calibration: Calibration, video: Video, *, truth: Array | None = None, seq: int = 0
    ) -> Snapshot:
        exact = calibration.dark + calibration.full_scale_dn * (calibration.phi * video).sum(0)
        return Snapshot(
            id=SnapshotId("test", 0, seq),
            counts=exact.astype(np.float32),
            calibration_hash=calibration.hash,
            n_frames=calibration.n_frames,
            host_time_ns=0,
            bayer=calibration.bayer,
            truth=video if truth is None else truth,
        )

    return make
