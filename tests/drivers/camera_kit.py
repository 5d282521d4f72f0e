"""Small cameras and small files for the replay camera."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.io

from sci_stream.model import (
    Array,
    BayerPhase,
    CameraFrame,
    Policy,
    SeriesInfo,
    Snapshot,
    SnapshotId,
)
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import Camera
from sci_stream.recording.writer import RecordingWriter
from sci_stream_drivers.simulated import SimulatedCamera, SimulatedOptions

H, W, B, SHOTS = 24, 32, 3, 4


@dataclass(frozen=True)
class Published:
    """A simulated measurement in MATLAB's order, (H, W, ·)."""

    meas: Array
    mask: Array
    orig: Array

    def save_v5(self, path: Path, **changed: Array) -> Path:
        """Write a MATLAB file of version 5."""
        scipy.io.savemat(path, {**vars(self), **changed})
        return path

    def save_v73(self, path: Path, **changed: Array) -> Path:
        """Write a MATLAB 7.3 file: HDF5 behind a text header, axes reversed."""
        with h5py.File(path, "w", userblock_size=512) as file:
            for key, array in {**vars(self), **changed}.items():
                file[key] = array.T
        with path.open("r+b") as file:
            file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(126) + b"\x02\x00IM")
        return path


class Clock:
    """A monotonic clock on which only sleep takes time, slightly longer than requested."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + 0.0004


def record(
    path: Path,
    segments: Iterable[Iterable[int]],
    dropped_before: Mapping[int, int],
    *,
    epoch_of: Callable[[int], int] = lambda _: 0,
    chunks: bool = False,
) -> Path:
    """Record snapshots whose counts tell their seq, a millisecond apart on the camera's clock, in
    segments.

    With ``chunks`` every second one says how it was exposed: for 100 µs and seq more.
    """
    calibration = Calibration(
        phi=np.full((B, H, W), 0.5, np.float32), full_scale_dn=100.0, bayer=BayerPhase.GRBG
    )
    info = SeriesInfo(
        series="s", started_ns=1, rig="test", policy=Policy.RECORD, camera_model="bench",
        camera_serial="7",
        height_px=H, width_px=W, pixel_format="BayerGR12", bit_depth=12, n_frames=B,
        calibration_hash=calibration.hash, bayer=BayerPhase.GRBG,
        chunks={"ExposureTime": "us"} if chunks else {},
    )  # fmt: skip
    writer: RecordingWriter | None = None
    for seqs in segments:
        numbers = list(seqs)
        if writer is None:
            writer = RecordingWriter(path, info, calibration, video=False)
        else:
            before = writer
            writer = before.next_segment()
            before.close(continued=writer.path.name)
        for seq in numbers:
            counts = np.full((H, W), 100 + seq, np.uint16)
            snapshot = Snapshot(
                SnapshotId("s", epoch_of(seq), seq),
                counts,
                calibration.hash,
                B,
                host_time_ns=10 + seq,
            )
            values = {"ExposureTime": 100.0 + seq} if chunks and seq % 2 == 0 else {}
            lost = dropped_before.get(seq, 0)
            writer.write_raw(
                replace(
                    snapshot, camera_time_ns=seq * 1_000_000, dropped_before=lost, chunks=values
                )  # type: ignore[arg-type]
            )
    assert writer is not None
    writer.close({})
    return path


def simulated(**options: Any) -> SimulatedCamera:
    """Return a small simulated camera that delivers SHOTS snapshots at full speed, unless options
    say otherwise.
    """
    small = {
        "width_px": W,
        "height_px": H,
        "n_frames": B,
        "snapshot_rate_hz": 0,
        "snapshots": SHOTS,
    }
    return SimulatedCamera(SimulatedOptions.model_validate({**small, **options}))


def frames(camera: Camera, count: int = SHOTS) -> list[CameraFrame]:
    """Open and start a camera if necessary, and read a number of frames."""
    camera.open()
    camera.start()
    received = [camera.read(5.0) for _ in range(count)]
    return [frame for frame in received if frame is not None]


MakeCamera = Callable[[], Camera]

SIMULATED: dict[str, dict[str, Any]] = {
    "simulated mono": {"bayer": "none"},
    "simulated mono 8 bit": {"bayer": "none", "bit_depth": 8},
    "simulated RGGB": {"bayer": "RGGB", "truth": True},
    "simulated BGGR 10 bit, random masks": {"bayer": "BGGR", "bit_depth": 10, "mask": "random"},
    "simulated saturating": {"exposure": 3.0},
    "simulated loop": {"loop_snapshots": 2, "truth": True},
    "simulated, ids wrap": {"faults": {"id_first": 1, "id_last": 3}},
}
