"""A picture of snapshots that are only recorded, so that an operator sees the scene."""

from __future__ import annotations

import cv2
import numpy as np

from sci_stream.model import F32, Reconstruction, Snapshot, StageTimes
from sci_stream.optics.calibration import Calibration
from sci_stream.reports import SolveReport, Start

# A person frames and focuses by a few pictures a second.
_EVERY_S = 0.3
# A single pixel may be behind closed masks: the neighbours of its colour share their light.
_NEIGHBOURS = np.ones((3, 3), np.float32)
_NEIGHBOURS_OF_COLOUR = np.kron(_NEIGHBOURS, ((1, 0), (0, 0))).astype(np.float32)[:5, :5]
_TINY = 1e-6


class RawPicture:
    """Shows the mean light of a snapshot: the sum of y over neighbours, divided by that of Σφ."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._kernel = _NEIGHBOURS if calibration.bayer is None else _NEIGHBOURS_OF_COLOUR
        self._open = self._summed(calibration.phi.sum(0)).clip(_TINY)
        self._due_s = float("-inf")

    def show(self, snapshot: Snapshot, now_s: float) -> Reconstruction | None:
        """Return a snapshot with its mean as every frame; None between two pictures."""
        if now_s < self._due_s:
            return None
        self._due_s = now_s + _EVERY_S
        mean = self._summed(self._calibration.measurement(snapshot.counts)) / self._open
        report = SolveReport(
            iterations=0,
            budget_limited=False,
            start=Start.COLD,
            start_reason="raw_only",
            solve_ns=0,
            residual=0.0,
        )
        return Reconstruction.of(
            snapshot,
            video=np.repeat(mean[np.newaxis], snapshot.n_frames, axis=0),
            report=report,
            times=StageTimes(acquired_ns=snapshot.host_time_ns),
            node="sink",
            device="",
        )

    def _summed(self, image: F32) -> F32:
        return np.asarray(
            cv2.filter2D(image, -1, self._kernel, borderType=cv2.BORDER_REFLECT_101), np.float32
        )
