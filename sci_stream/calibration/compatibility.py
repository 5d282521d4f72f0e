"""Check that a calibration fits the camera, before a series and in ``sci-stream check``, and each snapshot."""

from __future__ import annotations

from pathlib import Path

from sci_stream.errors import CalibrationError
from sci_stream.model import CameraCapabilities, Snapshot
from sci_stream.optics.calibration import Calibration


def require_compatible_calibration(
    capabilities: CameraCapabilities,
    of_camera: Calibration | None,
    of_rig: Calibration | None,
    file: Path | None,
    *,
    other_camera: bool = False,
) -> Calibration:
    """Return the calibration to use: the rig's file, else the camera's own.

    Raises `CalibrationError` if there is none, its size or number of frames differs from the camera's, or it was
    measured with another camera and ``other_camera`` is not set.
    """
    calibration = of_rig or of_camera
    if calibration is None:
        raise CalibrationError(
            f"The camera {capabilities.model} provides no calibration and the rig names none",
            expected="a calibration file in [calibration] file",
            hint="Set [calibration] file to the calibration of this camera.",
        )
    name = f"The calibration {file or 'of the camera'} does not fit the camera"
    height_px, width_px = calibration.shape
    if (height_px, width_px) != (capabilities.height_px, capabilities.width_px):
        raise CalibrationError(
            name,
            expected=f"{capabilities.height_px}×{capabilities.width_px} pixels, the size of the camera's frames",
            got=f"{height_px}×{width_px}",
            hint="Restore the image size that was calibrated, or calibrate the present one (sci-stream calibrate).",
        )
    if capabilities.n_frames not in (None, calibration.n_frames):
        raise CalibrationError(
            name,
            expected=f"B = {capabilities.n_frames} masks per exposure of the camera",
            got=f"B = {calibration.n_frames}",
            hint="Set the modulator to the number of patterns that was calibrated, or name the matching calibration.",
        )
    if calibration.bayer and capabilities.bayer and calibration.bayer is not capabilities.bayer:
        raise CalibrationError(
            name,
            expected=f"Bayer phase {capabilities.bayer}",
            got=calibration.bayer.value,
            hint="An odd OffsetX or OffsetY, or a flipped image, changes it: restore the settings of the calibration.",
        )
    serials = (calibration.camera_serial, capabilities.serial)
    if all(serials) and serials[0] != serials[1] and not other_camera:
        raise CalibrationError(
            name,
            expected=f"a calibration of the connected camera {capabilities.serial}",
            got=f"one of camera {calibration.camera_serial}",
            hint="Calibrate this camera (sci-stream calibrate), or set [calibration] other_camera = true.",
        )
    return calibration


def require_matching_snapshot(snapshot: Snapshot, calibration: Calibration) -> None:
    """Raise if a snapshot, or the truth in it, does not belong to a calibration.

    Raises `CalibrationError` with the mismatch.
    """
    what = f"Snapshot {snapshot.id.seq} of series {snapshot.id.series!r} does not fit the calibration"
    shape, video_shape = calibration.shape, calibration.phi.shape
    truth_shape = video_shape if snapshot.truth is None else snapshot.truth.shape
    checks = (
        (snapshot.counts.shape, shape, f"{shape} pixels, as its masks have", None),
        (snapshot.n_frames, calibration.n_frames, f"{len(calibration.phi)} frames per snapshot, one per mask", None),
        (
            snapshot.calibration_hash,
            calibration.hash,
            f"hash {calibration.hash} (the engine's)",
            "Give the reconstruct node the calibration with which the snapshot was acquired.",
        ),
        (snapshot.bayer or calibration.bayer, calibration.bayer, f"Bayer phase {calibration.bayer or 'none'}", None),
        (truth_shape, video_shape, f"a truth of shape {video_shape}", None),
    )
    for got, expected, text, hint in checks:
        if got != expected:
            raise CalibrationError(what, expected=text, got=got, hint=hint)
