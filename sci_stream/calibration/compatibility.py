"""Does the calibration fit the camera? Asked before a series starts, and by ``sci-stream check``."""

from __future__ import annotations

from pathlib import Path

from sci_stream.errors import CalibrationError
from sci_stream.model import CameraCapabilities
from sci_stream.optics.calibration import Calibration


def fit_calibration(
    capabilities: CameraCapabilities,
    own: Calibration | None,
    given: Calibration | None,
    file: Path | None,
    *,
    other_camera: bool = False,
) -> Calibration:
    """Return the calibration to use: the one from the rig's file, else the one that the camera knows.

    Raises
    ------
    CalibrationError
        If there is none, it is not of the camera's size or number of frames, or it was made with another camera and
        ``other_camera`` does not allow that.
    """
    calibration = given or own
    if calibration is None:
        raise CalibrationError(
            f"The camera {capabilities.model} brings no calibration and the rig names none",
            expected="a calibration file in [calibration] file",
            hint="Set [calibration] file to the calibration of this camera.",
        )
    name = f"The calibration {file or 'of the camera'} does not fit the camera"
    height_px, width_px = calibration.shape
    if (height_px, width_px) != (capabilities.height_px, capabilities.width_px):
        raise CalibrationError(
            name,
            expected=f"{capabilities.height_px}×{capabilities.width_px} pixels as the camera delivers",
            got=f"{height_px}×{width_px}",
            hint="Set the camera's size back to what was calibrated, or calibrate it as it is (sci-stream calibrate).",
        )
    if capabilities.n_frames not in (None, calibration.n_frames):
        raise CalibrationError(
            name,
            expected=f"B = {capabilities.n_frames} masks as the camera exposes",
            got=f"B = {calibration.n_frames}",
            hint="Have the modulator show as many patterns as were calibrated, or name the calibration of these.",
        )
    if calibration.bayer and capabilities.bayer and calibration.bayer is not capabilities.bayer:
        raise CalibrationError(
            name,
            expected=f"Bayer phase {capabilities.bayer}",
            got=calibration.bayer.value,
            hint="An odd OffsetX or OffsetY, or a flipped image, changes it: set the camera as it was calibrated.",
        )
    serials = (calibration.camera_serial, capabilities.serial)
    if all(serials) and serials[0] != serials[1] and not other_camera:
        raise CalibrationError(
            name,
            expected=f"one of camera {capabilities.serial}, which is connected",
            got=f"one that was made with camera {calibration.camera_serial}",
            hint="Calibrate this camera (sci-stream calibrate), or set [calibration] other_camera = true.",
        )
    return calibration
