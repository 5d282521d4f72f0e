"""Whether a snapshot can be solved with a calibration."""

from __future__ import annotations

from sci_stream.errors import CalibrationError
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration


def check_fit(snapshot: Snapshot, calibration: Calibration) -> None:
    """Raise if a snapshot, or the truth that it carries, is not of a calibration.

    Raises
    ------
    CalibrationError
        Saying what does not fit.
    """
    what = f"Snapshot {snapshot.id.seq} of series {snapshot.id.series!r} does not fit the calibration"
    if snapshot.counts.shape != calibration.shape:
        raise CalibrationError(
            what, expected=f"{calibration.shape} pixels, as its masks have", got=snapshot.counts.shape
        )
    if snapshot.n_frames != calibration.n_frames:
        raise CalibrationError(
            what,
            expected=f"{calibration.n_frames} frames per snapshot, one for each of its masks",
            got=f"{snapshot.n_frames} frames",
        )
    if snapshot.calibration_hash != calibration.hash:
        raise CalibrationError(
            what,
            expected=f"hash {calibration.hash} (the engine's)",
            got=f"hash {snapshot.calibration_hash} (the snapshot's)",
            hint="Give the reconstruct node the calibration with which the snapshot was acquired.",
        )
    if snapshot.bayer is not None and snapshot.bayer is not calibration.bayer:
        raise CalibrationError(
            what,
            expected=f"Bayer phase {calibration.bayer or 'none'} (the calibration's)",
            got=f"{snapshot.bayer} (the snapshot's)",
        )
    video_shape = (calibration.n_frames, *calibration.shape)
    if snapshot.truth is not None and snapshot.truth.shape != video_shape:
        raise CalibrationError(
            f"The truth of snapshot {snapshot.id.seq} has a wrong shape",
            expected=video_shape,
            got=snapshot.truth.shape,
        )
