"""Simulated camera whose masks are displaced from their calibrated position."""

from __future__ import annotations

from typing import Any

from sci_stream.model import Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream_drivers.simulated import SimulatedCamera, SimulatedOptions


class Rig:
    """Deliver numbered snapshots of a simulated camera, with its own or another calibration."""

    def __init__(self, **options: Any) -> None:
        given = {"snapshot_rate_hz": 0.0, "bayer": "none", "truth": True, **options}
        self.options = SimulatedOptions.model_validate(given)
        self._camera = SimulatedCamera(self.options)
        self._camera.open()
        self.calibration: Calibration = self._camera.calibration()
        self._camera.start()
        self._seq = 0

    def snapshot(self) -> Snapshot:
        """Return the next snapshot."""
        frame = self._camera.read(60.0)
        assert frame is not None
        seq, self._seq = self._seq, self._seq + 1
        return Snapshot(
            id=SnapshotId("s", 0, seq),
            counts=frame.counts,
            calibration_hash=self.calibration.hash,
            n_frames=self.calibration.n_frames,
            host_time_ns=0,
            bayer=self.calibration.bayer,
            truth=frame.truth,
        )
