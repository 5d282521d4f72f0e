"""Check that a calibration fits the camera."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sci_stream.calibration.compatibility import require_compatible_calibration
from sci_stream.errors import CalibrationError
from sci_stream.model import BayerPhase, CameraCapabilities
from sci_stream.optics.calibration import Calibration

FILE = Path("masks.h5")


def camera(n_frames: int | None = 2, bayer: BayerPhase | None = None) -> CameraCapabilities:
    return CameraCapabilities("a camera", "7", 4, 6, "Mono12", 12, n_frames=n_frames, bayer=bayer)


def calibration(B: int = 2, H: int = 4, W: int = 6, bayer: BayerPhase | None = None) -> Calibration:
    phi = np.full((B, H, W), 0.5, np.float32)
    return Calibration(phi=phi, dark=np.zeros((H, W), np.float32), full_scale_dn=100.0, bayer=bayer)


def test_rig_calibration_takes_precedence_over_the_cameras() -> None:
    own, given = calibration(), calibration()
    assert require_compatible_calibration(camera(), own, given, FILE) is given
    assert require_compatible_calibration(camera(), own, None, None) is own


def test_missing_calibration_error_names_the_key() -> None:
    with pytest.raises(CalibrationError, match=r"\[calibration\] file"):
        require_compatible_calibration(camera(), None, None, None)


def test_other_image_size_is_refused_with_both_sizes() -> None:
    with pytest.raises(CalibrationError, match=r"masks\.h5.*expected 4×6.*got 4×8"):
        require_compatible_calibration(camera(), None, calibration(W=8), FILE)


def test_other_number_of_masks_is_refused_with_both_numbers() -> None:
    with pytest.raises(CalibrationError, match=r"masks\.h5.*expected B = 2.*got B = 3"):
        require_compatible_calibration(camera(), None, calibration(B=3), FILE)


def test_camera_without_n_frames_takes_that_of_the_calibration() -> None:
    assert (
        require_compatible_calibration(camera(n_frames=None), None, calibration(B=3), FILE).n_frames
        == 3
    )


def test_other_bayer_phase_is_refused() -> None:
    with pytest.raises(CalibrationError, match="expected Bayer phase RGGB; got BGGR"):
        require_compatible_calibration(
            camera(bayer=BayerPhase.RGGB), None, calibration(bayer=BayerPhase.BGGR), FILE
        )


def test_calibration_without_a_phase_does_not_fit_a_mosaic() -> None:
    with pytest.raises(
        CalibrationError, match=r"expected Bayer phase RGGB; got none.*--bayer RGGB"
    ):
        require_compatible_calibration(camera(bayer=BayerPhase.RGGB), None, calibration(), FILE)
    of_mosaic = calibration(bayer=BayerPhase.RGGB)
    assert require_compatible_calibration(camera(), None, of_mosaic, FILE) is of_mosaic, (
        "sent as a grey format"
    )


@pytest.mark.parametrize(("bits", "serial"), [(14, ""), (10, "7")], ids=["imported", "measured"])
def test_calibration_of_another_bit_depth_is_refused(bits: int, serial: str) -> None:
    created = "2026-01-01T00:00:00Z" if serial else ""
    other = replace(calibration(), bit_depth=bits, camera_serial=serial, created=created)
    with pytest.raises(
        CalibrationError, match=rf"expected 12 bits.*Mono12; got {bits} bits.*PixelFormat"
    ):
        require_compatible_calibration(camera(), None, other, FILE)


@pytest.mark.parametrize(("bits", "serial"), [(None, "7"), (12, "7"), (10, ""), (10, "7")])
def test_calibration_of_no_other_bit_depth_is_used(bits: int | None, serial: str) -> None:
    fitting = replace(calibration(), bit_depth=bits, camera_serial=serial)
    assert require_compatible_calibration(camera(), None, fitting, FILE) is fitting


def test_calibration_of_another_camera_camera_needs_permission() -> None:
    other = replace(calibration(), camera_serial="8")
    with pytest.raises(
        CalibrationError, match=r"connected camera 7; got one of camera 8.*other_camera = true"
    ):
        require_compatible_calibration(camera(), None, other, FILE)
    assert require_compatible_calibration(camera(), None, other, FILE, other_camera=True) is other
    assert (
        require_compatible_calibration(
            camera(), None, replace(other, camera_serial="7"), FILE
        ).camera_serial
        == "7"
    )


def test_calibration_of_other_patterns_is_refused() -> None:
    shown = replace(camera(), patterns="a" * 32)
    fits = replace(calibration(), patterns="a" * 32)
    other = replace(calibration(), patterns="b" * 32)
    assert require_compatible_calibration(shown, None, fits, FILE) is fits
    imported = calibration()
    assert require_compatible_calibration(shown, None, imported, FILE) is imported
    assert require_compatible_calibration(camera(), None, other, FILE) is other
    with pytest.raises(CalibrationError, match=r"patterns aaaaaaaaaaaa.*got one of patterns bbbb"):
        require_compatible_calibration(shown, None, other, FILE)
