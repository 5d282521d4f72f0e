"""Build series information and snapshots from camera frames."""

from __future__ import annotations

from sci_stream.clock import unix_ns
from sci_stream.config import Rig
from sci_stream.model import CameraCapabilities, CameraFrame, Policy, SeriesInfo, Snapshot, SnapshotId
from sci_stream.nodes.acquire.camera_reader import Captured
from sci_stream.nodes.runtime.process import versions
from sci_stream.optics.calibration import Calibration


def series_info(name: str, rig: Rig, capabilities: CameraCapabilities, calibration: Calibration) -> SeriesInfo:
    """Return the information about a series at its start."""
    return SeriesInfo(
        series=name,
        started_ns=unix_ns(),
        rig=rig.rig.name,
        policy=Policy(rig.policy.mode),
        camera_model=capabilities.model,
        camera_serial=capabilities.serial,
        height_px=capabilities.height_px,
        width_px=capabilities.width_px,
        pixel_format=capabilities.pixel_format,
        bit_depth=capabilities.bit_depth,
        n_frames=calibration.n_frames,
        calibration_hash=calibration.hash,
        bayer=calibration.bayer or capabilities.bayer,
        frame_period_ns=capabilities.frame_period_ns,
        rig_toml=rig.to_toml(),
        versions=versions(),
        chunks=dict(capabilities.chunks),
    )


def make_snapshot(captured: Captured, frame: CameraFrame, info: SeriesInfo, clock: str) -> Snapshot:
    """Return the snapshot of a frame; ``clock`` names the camera's."""
    return Snapshot(
        id=SnapshotId(info.series, captured.epoch, captured.seq),
        counts=frame.counts,
        calibration_hash=info.calibration_hash,
        n_frames=info.n_frames,
        host_time_ns=frame.host_time_ns,
        camera_time_ns=frame.camera_time_ns,
        camera_clock=clock,
        camera_frame_id=frame.frame_id,
        pixel_format=info.pixel_format,
        bayer=info.bayer,
        dropped_before=captured.missed,
        truth=frame.truth,
        chunks=frame.chunks,
    )
