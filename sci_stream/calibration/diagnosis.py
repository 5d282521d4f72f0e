"""Describe faults of a calibration for the log and the live page; withhold videos that would be
false.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.evidence.inspection import OF_RIGHT_MASKS
from sci_stream.model import Snapshot
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.mask_errors import MaskCorrection
from sci_stream.reports import CalibrationHealth, SolveReport

WITHHELD = "mismatch"
"""In place of the reason for the start, in reports of snapshots whose video is withheld."""

DARK = 0.005
"""Mean of the scene, 0–1, below which one count of an 8-bit sensor is more than half of the
light."""
# Noise puts few pixels so far below black; a wrong black level many.
_MAX_BELOW_BLACK = 0.01
MOSTLY_BELOW_BLACK = 0.5
"""Share of such pixels above which nothing else is known of a snapshot."""
# Exposure and gain change the brightness of the video by the same factor, hence the narrower range.
_CONTRAST = (0.85, 1.15)
_GAIN = (0.95, 1.05)
CAUSES = ("mask_orientation", "mask_sign", "scale", "mask_shift")
"""Defects that cause others: one cause has one name."""

# Displacement, off whole pixels, of a region of interest that was moved.
_WHOLE_PX = 0.06
# A rig that warms up has a smaller black level, in units of white.
MAX_BLACK = 0.02
# The light of its patterns differs less.
_MAX_UNEVEN = 0.2
# Its scale changes less.
_MAX_LINEAR = 0.002
# It blurs the masks less.
MAX_BLUR_PX2 = 0.2
# Masks of another contrast cause noise, which a scene of little texture does not.
_LEAST_NOISE = 1.3


def findings(health: CalibrationHealth, warn_shift_px: float) -> dict[str, str]:
    """Return the faults of a calibration by name, each as a sentence."""
    faults = dict[str, str](
        line.split(": ", 1) for line in health.defects.splitlines() if ": " in line
    )
    if (cause := next((name for name in CAUSES if name in faults), None)) is not None:
        return {cause: faults[cause]}
    shift = health.shift_px
    if shift is not None and shift > warn_shift_px and _is_whole(health):
        faults["mask_shift"] = moved_roi(health.shift_x_px or 0.0, health.shift_y_px or 0.0)
    elif shift is not None and shift > warn_shift_px:
        what = (
            "they are shifted in reconstruction"
            if health.corrected
            else "calibrate again, or set correct_shift"
        )
        faults["mask_shift"] = (
            f"the masks have moved by {shift:.2f} px ({health.shift_x_px:+.2f}, "
            f"{health.shift_y_px:+.2f}) since the "
            f"calibration: {what}"
        )
    if health.match == 0:
        faults["mask_match"] = (
            "the masks explain nothing of the snapshots, so that there is no video: "
            f"{_reason_for_mismatch(health)}"
        )
    if health.order not in ("forward", "unknown"):
        faults["mask_order"] = (
            f"the masks are shown in {health.order} order, beginning with mask "
            f"{health.first_mask}, not in the "
            "calibrated one: the frames of each snapshot are in the wrong order"
        )
    # A gamma or a black level changes the contrast, too: one cause has one name.
    explained = OF_RIGHT_MASKS & faults.keys()
    quiet = health.noise_excess is not None and health.noise_excess < _LEAST_NOISE
    contrast = 1.0 if health.contrast is None or explained or quiet else health.contrast
    if not _CONTRAST[0] <= contrast <= _CONTRAST[1]:
        faults["mask_contrast"] = (
            f"the masks modulate {contrast:.2f} times as much as calibrated: stray light, "
            "or another black level"
        )
    if health.gain is not None and not _GAIN[0] <= health.gain <= _GAIN[1]:
        faults["camera_gain"] = (
            f"exposure time times gain is {health.gain:.2f} times the calibrated value: the video "
            "is brighter or "
            "darker by that factor; set ExposureTime and Gain back, or calibrate again"
        )
    if health.below_black_fraction > _MAX_BELOW_BLACK:
        faults["below_black"] = (
            f"{health.below_black_fraction:.1%} of the pixels are darker than the dark frame: "
            "another black level"
        )
    if health.below_black_fraction > MOSTLY_BELOW_BLACK:
        text = ", or another pixel format: set both as in the calibration, or calibrate again"
        return {"below_black": faults["below_black"] + text}
    return faults


def moved_roi(x_px: float, y_px: float) -> str:
    """Return that the sensor reads another region, displaced by whole pixels."""
    return (
        f"picture and masks are displaced by whole pixels, ({x_px:+.0f}, {y_px:+.0f}) in (x, y): "
        "the camera's region of interest was moved, or all masks were; set OffsetX and OffsetY "
        "back, or calibrate again"
    )


def _is_whole(health: CalibrationHealth) -> bool:
    """Return whether the masks are displaced by whole pixels, which optics hardly do."""
    shift_px = np.array([health.shift_x_px, health.shift_y_px], np.float64)
    whole = np.rint(shift_px)
    return bool(whole.any()) and float(np.abs(shift_px - whole).max()) < _WHOLE_PX


def diagnose(health: CalibrationHealth, warn_shift_px: float) -> list[Defect]:
    """Return the faults of a calibration as defects; fatal ones make a video up."""
    fatal = {"mask_match"} if is_withheld(health) else set()
    corrected = {"mask_shift"} if health.corrected else set()
    return [
        Defect(name, text, fatal=name in fatal, corrected=name in corrected)
        for name, text in findings(health, warn_shift_px).items()
    ]


def changes(correction: MaskCorrection) -> list[Defect]:
    """Return what has changed since the calibration, where it is more than a rig's usual drift."""
    defects = []
    if abs(correction.black) > MAX_BLACK:
        text = (
            f"light that no mask codes adds {correction.black:+.2f} of white to each snapshot: it "
            "is subtracted; look for stray light, or another black level"
        )
        defects.append(Defect("stray_light", text, corrected=True))
    gains = [1 + mask.gain for mask in correction.masks]
    if gains and max(gains) - min(gains) > _MAX_UNEVEN:
        text = (
            f"the patterns have {min(gains):.2f} to {max(gains):.2f} times the light of the "
            "calibration: the exposure is not as long as the cycle, a pattern is shown twice, or "
            "the lamp flickers"
        )
        defects.append(Defect("uneven_exposure", text, corrected=True))
    if max(map(abs, correction.displacement.linear)) > _MAX_LINEAR:
        text = f"{correction.displacement.words} since the calibration: corrected"
        defects.append(Defect("mask_geometry", text, corrected=True))
    if (blur_px2 := correction.displacement.blur_px2) > MAX_BLUR_PX2:
        text = (
            f"the masks are {math.sqrt(blur_px2):.1f} px more blurred than calibrated, which is "
            "corrected in part: focus the relay, or calibrate again"
        )
        defects.append(Defect("mask_blur", text, corrected=True))
    return defects


def is_withheld(health: CalibrationHealth) -> bool:
    """Return whether a video would be made up: the masks are others, or there is no light."""
    return health.match == 0


def withhold(
    video: npt.NDArray[np.floating[Any]],
    report: SolveReport,
    snapshot: Snapshot,
    calibration: Calibration,
) -> tuple[npt.NDArray[np.floating[Any]], SolveReport]:
    """Return the snapshot itself, as frames that are all the same, in place of a video, and its
    report.

    It is as bright as a video would be in the mean.
    """
    open_to_light = calibration.phi.sum(0)
    y = calibration.measurement(snapshot.counts) / max(float(open_to_light.mean()), 1e-6)
    frame = np.where(np.abs(y) <= np.finfo(video.dtype).max, y, 0.0).astype(video.dtype)
    return np.broadcast_to(frame, video.shape).copy(), dataclasses.replace(
        report, start_reason=WITHHELD, psnr_db=None
    )


def _reason_for_mismatch(health: CalibrationHealth) -> str:
    """Return why the masks explain nothing, and what to do."""
    if health.brightness is None:
        return "no pixel is valid, as all are saturated: shorten the exposure or lower the gain"
    if health.brightness < DARK:
        return (
            f"there is hardly any light ({health.brightness:.1%} of white): check shutter, "
            "lens cap and lamp"
        )
    return "the calibration is not of these masks: load the right one, or calibrate again"
