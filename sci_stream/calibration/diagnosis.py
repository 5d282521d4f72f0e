"""Describe faults of a calibration for the log and the live page."""

from __future__ import annotations

from sci_stream.model import CalibrationHealth

# The right masks give a match near 1; other masks, or too little light, near 0.
_LEAST_MATCH = 0.2
# Mean of the scene, 0–1, below which one count of an 8-bit sensor is more than half of the light.
_DARK = 0.005
# Noise puts few pixels so far below black; a wrong black level many.
_MOST_BELOW_BLACK = 0.01
# Exposure and gain change the brightness of the video by the same factor, hence the narrower range.
_CONTRAST = (0.85, 1.15)
_GAIN = (0.95, 1.05)


def findings(health: CalibrationHealth, warn_shift_px: float) -> dict[str, str]:
    """Return the faults of a calibration by name, each as a sentence."""
    found = {}
    shift = health.shift_px
    if shift is not None and shift > warn_shift_px:
        what = "they are shifted in reconstruction" if health.corrected else "calibrate again, or set correct_shift"
        found["mask_shift"] = (
            f"the masks have moved by {shift:.2f} px ({health.shift_x_px:+.2f}, {health.shift_y_px:+.2f}) since the "
            f"calibration: {what}"
        )
    if health.match is not None and health.match < _LEAST_MATCH:
        found["mask_match"] = (
            f"the masks explain {health.match:.0%} of the variation that they should, so the video is unreliable: "
            f"{_reason_for_mismatch(health)}"
        )
    if health.order not in ("forward", "unknown"):
        found["mask_order"] = (
            f"the masks are shown in {health.order} order, beginning with mask {health.first_mask}, not in the "
            "calibrated one: the frames of each snapshot are in the wrong order"
        )
    if health.contrast is not None and not _CONTRAST[0] <= health.contrast <= _CONTRAST[1]:
        found["mask_contrast"] = (
            f"the masks modulate {health.contrast:.2f} times as much as calibrated: stray light, or another black level"
        )
    if health.gain is not None and not _GAIN[0] <= health.gain <= _GAIN[1]:
        found["camera_gain"] = (
            f"exposure time times gain is {health.gain:.2f} times the calibrated value: the video is brighter or "
            "darker by that factor; set ExposureTime and Gain back, or calibrate again"
        )
    if health.below_black_fraction > _MOST_BELOW_BLACK:
        found["below_black"] = (
            f"{health.below_black_fraction:.1%} of the pixels are darker than the dark frame: another black level"
        )
    return found


def _reason_for_mismatch(health: CalibrationHealth) -> str:
    """Return why the masks explain nothing, and what to do."""
    if health.brightness is None:
        return "no pixel is valid, as all are saturated: shorten the exposure or lower the gain"
    if health.brightness < _DARK:
        return f"there is hardly any light ({health.brightness:.1%} of white): check shutter, lens cap and lamp"
    return "the calibration is not of these masks: load the right one, or calibrate again"
