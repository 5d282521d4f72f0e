"""Good messages, one of every kind."""

from __future__ import annotations

import numpy as np

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
from sci_stream.reports import CalibrationHealth, SolveReport, Start
from sci_stream.wire.messages import (
    Accepted,
    CalibrationMissing,
    CalibrationRequest,
    Control,
    ControlResult,
    Done,
    Dropped,
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    Ping,
    Pong,
    RawRow,
    RawSnapshots,
    Refused,
    SeriesEnd,
    Welcome,
)

SERIES = "20260102T030405-0a1b2c3d"
HASH = "00112233445566778899aabbccddeeff"
HEALTH = CalibrationHealth(
    shift_x_px=0.25,
    shift_y_px=-0.5,
    shift_sd_px=0.01,
    match=0.95,
    contrast=1.0,
    order="reversed",
    first_mask=2,
    corrected=True,
    below_black_fraction=0.001,
    brightness=0.4,
    gain=1.5,
    error_log_odds=84.0,
)


def samples() -> dict[str, Message]:
    """Return a good message of every kind, by kind."""
    rng = np.random.default_rng(7)
    identity = SnapshotId(SERIES, 1, 42)
    calibration = Calibration(
        rng.random((3, 4, 6), dtype=np.float32),
        dark=np.full((4, 6), 3.5, np.float32),
        full_scale_dn=900.0,
        saturation_dn=4095.0,
        bad_pixels=rng.random((4, 6)) > 0.9,
        read_noise_dn=2.25,
        gain_e_per_dn=2.6,
        bit_depth=12,
        bayer=BayerPhase.GBRG,
        camera_serial="A-17",
        exposure_ns=20_000_000,
        gain_db=0.0,
        created="2026-01-02T03:04:05Z",
        source="white field",
    )
    snapshot = Snapshot(
        identity,
        rng.integers(0, 4096, (4, 6), dtype=np.uint16),
        calibration.hash,
        3,
        1_767_322_245_000_000_000,
        camera_time_ns=12345,
        camera_clock="device",
        camera_frame_id=65535,
        pixel_format="BayerGB12",
        bayer=BayerPhase.GBRG,
        dropped_before=2,
        truth=rng.integers(0, 256, (3, 4, 6), dtype=np.uint8),
        backlog=1,
        period_ns=33_000_000,
        redelivered=1,
        dispatched_ns=1_767_322_245_000_100_000,
        chunks={"ExposureTime": 100.5, "LineStatusAll": 3, "Torn": False, "Format": "Mono12"},
    )
    return {
        "series_start": SeriesInfo(
            SERIES, 1, "bench", Policy.RECORD, "SimCam", "A-17", 4, 6, "BayerGB12", 12, 3,
            calibration.hash,
            bayer=BayerPhase.GBRG, frame_period_ns=33_000_000, rig_toml="[rig]\n",
            versions={"numpy": "2"},
            chunks={"ExposureTime": "us", "LineStatusAll": "", "Torn": ""},
            distortions="Gamma is 0.8: counts are not proportional to light.",
        ),
        "snapshot": snapshot,
        "raw_snapshots": RawSnapshots(
            identity,
            [snapshot.counts, snapshot.counts + np.uint16(1)],
            calibration.hash,
            3,
            BayerPhase.GBRG,
            [
                RawRow(1_767_322_245_000_000_000, 12345, 65535, 2, snapshot.chunks),
                RawRow(1_767_322_245_010_000_000, None, None, 0, {}),
            ],
        ),
        "reconstruction": Reconstruction(
            identity,
            rng.random((3, 4, 6), dtype=np.float32).astype(np.float16),
            calibration.hash,
            SolveReport(
                iterations=12, start=Start.WARM, start_reason="flow", budget_limited=True,
                solve_ns=5_000_000,
                residual=0.01, saturated_fraction=0.001, psnr_db=31.5, health=HEALTH,
                solver="0123abcd",
                masks_at="1,0,0,2500,0;0,0,0,-12,0", noise=0.02, mismatch=0.01,
            ),
            StageTimes(1, 2, 3, 4, 5, 0),
            "reconstruct-0",
            "NVIDIA H200",
            bayer=BayerPhase.GBRG,
            counts=snapshot.counts,
            picture=rng.integers(0, 256, (4, 6, 3), dtype=np.uint8),
            camera_time_ns=12345,
            camera_frame_id=65535,
            chunks=snapshot.chunks,
        ),
        "series_end": SeriesEnd(SERIES, 43, "finished", 2),
        "dropped": Dropped(SERIES, 1, 41, "queue_full"),
        "accepted": Accepted(SERIES, 42, "reconstruction"),
        "hello": Hello("reconstruct-0", "reconstruct", "0a1b2c3d", "cpu", 2,
        versions={"torch": "2.4"}),
        "welcome": Welcome("acquire", "ffee0011", 0.5),
        "ping": Ping(1_780_000_000_000_000_000),
        "pong": Pong(1_780_000_000_000_000_000, 1_780_000_000_000_400_000,
        1_780_000_000_000_400_000),
        "heartbeat": Heartbeat("acquire", {"acquired": 7, "rate": 29.97, "phase": "running",
        "ok": True}),
        "goodbye": Goodbye("reconstruct-0"),
        "refused": Refused("version", "another release"),
        "done": Done(SERIES, 42, False, "out of memory"),
        "calibration_request": CalibrationRequest(HASH),
        "calibration": calibration,
        "calibration_missing": CalibrationMissing(HASH),
        "control": Control("0a1b2c3d", "reconstruct-0", "set", {"iterations": 12,
        "adapt_budget": False}, "eva@lab"),
        "control_result": ControlResult("0a1b2c3d", True, "", {"iterations": 12,
        "adapt_budget": False}),
    }  # fmt: skip
