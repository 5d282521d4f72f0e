"""A small series: its description, its calibration, and makers of its records."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from sci_stream.model import (
    BayerPhase,
    Policy,
    Reconstruction,
    SeriesInfo,
    Snapshot,
    SnapshotId,
    StageTimes,
)
from sci_stream.optics.calibration import Calibration
from sci_stream.reports import SolveReport, Start
from sci_stream.wire.messages import RawRow, RawSnapshots

B, H, W = 3, 16, 24


@dataclass(frozen=True)
class Series:
    """Makes reproducible content for each seq, so that a test knows what to expect."""

    info: SeriesInfo
    calibration: Calibration

    def counts(self, seq: int) -> np.ndarray:
        return np.random.default_rng(seq).integers(0, 4096, (H, W)).astype(np.uint16)

    def video(self, seq: int) -> np.ndarray:
        return np.random.default_rng(seq + 1000).random((B, H, W)).astype(np.float16)

    def snapshot(self, seq: int, **changes: object) -> Snapshot:
        snapshot = Snapshot(
            id=SnapshotId(self.info.series, 1, seq),
            counts=self.counts(seq),
            calibration_hash=self.calibration.hash,
            n_frames=B,
            host_time_ns=10_000 + seq,
            camera_time_ns=500 * seq,
            camera_frame_id=seq + 7,
            dropped_before=2,
        )
        return replace(snapshot, **changes)  # type: ignore[arg-type]  # a test names the fields it changes

    def raw_snapshots(self, seq: int, count: int = 1) -> RawSnapshots:
        snapshots = [self.snapshot(seq + index) for index in range(count)]
        return RawSnapshots(
            snapshots[0].id,
            [snapshot.counts for snapshot in snapshots],
            self.calibration.hash,
            B,
            None,
            [
                RawRow(one.host_time_ns, one.camera_time_ns, one.camera_frame_id, 2, {})
                for one in snapshots
            ],
        )

    def reconstruction(self, seq: int, **changes: object) -> Reconstruction:
        reconstruction = Reconstruction(
            id=SnapshotId(self.info.series, 1, seq),
            video=self.video(seq),
            calibration_hash=self.calibration.hash,
            report=SolveReport(
                iterations=12,
                start=Start.WARM,
                start_reason="motion",
                budget_limited=True,
                solve_ns=34_000_000,
                residual=0.02,
                saturated_fraction=0.001,
                psnr_db=31.5,
            ),
            times=StageTimes(acquired_ns=10_000 + seq, finished_ns=20_000 + seq),
            node="reconstruct-0",
            device="cpu",
            counts=self.counts(seq),
            camera_time_ns=500 * seq,
            camera_frame_id=seq + 7,
            redelivered=1,
        )
        return replace(reconstruction, **changes)  # type: ignore[arg-type]  # as above


@pytest.fixture(scope="session")
def series() -> Series:
    return make_series()


def make_series() -> Series:
    rng = np.random.default_rng(0)
    calibration = Calibration(
        phi=rng.random((B, H, W), dtype=np.float32),
        dark=rng.random((H, W), dtype=np.float32) * 10,
        full_scale_dn=412.3,
        saturation_dn=4095.0,
        bad_pixels=rng.random((H, W)) > 0.99,
        read_noise_dn=2.25,
        gain_e_per_dn=2.6,
        bit_depth=12,
        bayer=BayerPhase.GBRG,
        camera_serial="42",
        exposure_ns=1_000_000,
        gain_db=1.5,
        created="2026-01-02T03:04:05Z",
        source="a white field",
    )
    info = SeriesInfo(
        series="run-1",
        started_ns=1_700_000_000_000_000_000,
        rig="bench",
        policy=Policy.RECORD,
        camera_model="simulated",
        camera_serial="42",
        height_px=H,
        width_px=W,
        pixel_format="BayerGB12",
        bit_depth=12,
        n_frames=B,
        calibration_hash=calibration.hash,
        bayer=BayerPhase.GBRG,
        frame_period_ns=33_000_000,
        rig_toml='# a rig, µ and all\n[camera]\ndriver = "simulated"\n',
        versions={"sci_stream": "0.1.0"},
    )
    return Series(info, calibration)
