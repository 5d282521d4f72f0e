"""Check that a calibration fits the camera, before a series and in ``sci-stream check``, and each
snapshot.
"""

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

    Raises `CalibrationError` if there is none, its size, number of frames, Bayer phase or bit depth
    differs from the camera's, it was measured with other patterns, or with another camera and
    ``other_camera`` is not set.
    """
    calibration = of_rig or of_camera
    if calibration is None:
        raise CalibrationError(
            f"The camera {capabilities.model} provides no calibration and the rig names none",
            expected="a calibration file in [calibration] file",
            hint="Set [calibration] file to the calibration of this camera.",
        )
    name = f"The calibration {file or 'of the camera'} does not fit the camera"
    size = (capabilities.height_px, capabilities.width_px)
    own_size = calibration.shape
    serial = capabilities.serial
    own_serial = calibration.camera_serial
    bits = capabilities.bit_depth
    own_bits = calibration.bit_depth or capabilities.bit_depth
    checks = (
        (
            own_size != size,
            f"{size[0]}×{size[1]} pixels, the size of the camera's frames",
            f"{own_size[0]}×{own_size[1]}",
            "Restore the image size that was calibrated, or calibrate the present one (sci-stream "
            "calibrate).",
        ),
        (
            capabilities.n_frames not in (None, calibration.n_frames),
            f"B = {capabilities.n_frames} masks per exposure of the camera",
            f"B = {calibration.n_frames}",
            "Set the modulator to the number of patterns that was calibrated, or name the "
            "matching calibration.",
        ),
        (
            serial and own_serial not in ("", serial) and not other_camera,
            f"a calibration of the connected camera {serial}",
            f"one of camera {own_serial}",
            "Calibrate this camera (sci-stream calibrate), or set [calibration] other_camera = "
            "true.",
        ),
        (
            capabilities.patterns and calibration.patterns not in ("", capabilities.patterns),
            f"a calibration of the patterns {capabilities.patterns[:12]} that the modulator shows",
            f"one of patterns {calibration.patterns[:12]}",
            "Name the calibrated patterns in [modulator] patterns, or calibrate these ones.",
        ),
        (
            capabilities.bayer not in (None, calibration.bayer),
            f"Bayer phase {capabilities.bayer}",
            calibration.bayer or "none",
            "Restore OffsetX, OffsetY and flips as calibrated, or import the masks with --bayer "
            f"{capabilities.bayer}.",
        ),
        (
            # Imported masks may name the bits of a sensor that sends them in a wider format.
            own_bits > bits or (own_bits < bits and calibration.created),
            f"{bits} bits, those of the camera's {capabilities.pixel_format}",
            f"{own_bits} bits",
            "Restore the PixelFormat that was calibrated, or calibrate the present one "
            "(sci-stream calibrate).",
        ),
    )
    for is_wrong, expected, got, hint in checks:
        if is_wrong:
            raise CalibrationError(name, expected=expected, got=got, hint=hint)
    return calibration


def require_matching_snapshot(snapshot: Snapshot, calibration: Calibration) -> None:
    """Raise if a snapshot, or the truth in it, does not belong to a calibration.

    Raises `CalibrationError` with the mismatch.
    """
    what = (
        f"Snapshot {snapshot.id.seq} of series {snapshot.id.series!r} does not fit the calibration"
    )
    shape = calibration.shape
    video_shape = calibration.phi.shape
    truth_shape = video_shape if snapshot.truth is None else snapshot.truth.shape
    checks = (
        (snapshot.counts.shape, shape, f"{shape} pixels, as its masks have", None),
        (
            snapshot.n_frames,
            calibration.n_frames,
            f"{len(calibration.phi)} frames per snapshot, one per mask",
            None,
        ),
        (
            snapshot.calibration_hash,
            calibration.hash,
            f"hash {calibration.hash} (the engine's)",
            "Give the reconstruct node the calibration with which the snapshot was acquired.",
        ),
        (
            snapshot.bayer or calibration.bayer,
            calibration.bayer,
            f"Bayer phase {calibration.bayer or 'none'}",
            None,
        ),
        (truth_shape, video_shape, f"a truth of shape {video_shape}", None),
    )
    for got, expected, text, hint in checks:
        if got != expected:
            raise CalibrationError(what, expected=text, got=got, hint=hint)
