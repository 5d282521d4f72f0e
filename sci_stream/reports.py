"""Reports on a solve and on the calibration; each quantity is declared once, as its field."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Annotated

from sci_stream.field_types import (
    Count,
    Fraction,
    Label,
    Measured,
    NonNegative,
    SmallCount,
    prose,
    text,
)
from sci_stream.quantities import (
    Column,
    InRun,
    Inspected,
    Metric,
    OverSeries,
    PageText,
    Reported,
    float_column,
    text_column,
)


class Start(enum.StrEnum):
    """Initial estimate of a solve."""

    COLD = "cold"
    """From ȳ = y/Σφ, repeated to all B frames."""
    WARM = "warm"
    """From an estimate based on the preceding reconstruction."""


SPREAD = OverSeries.SPREAD
_SHIFT_HELP = "Estimated shift of the masks on the sensor, by axis, px."
_NOISE_HELP = "Estimated noise of the last measurement relative to it, in all and by the masks."


@dataclass(frozen=True, kw_only=True)
class CalibrationHealth:
    """State of the calibration, measured from a snapshot at run time; None where it could not be
    measured.

    ``match`` is None on small sensors, ``gain`` without chunk data or without values in the
    calibration, ``error_log_odds`` (natural logarithm) where errors of single masks are not
    estimated. ``order`` of the masks is ``"forward"``, ``"reversed"``, ``"rotated"``, or
    ``"unknown"`` while nothing moves; ``first_mask`` the index of the calibrated mask that is shown
    first. Earlier versions also recorded ``"shuffled"``. ``corrected`` says whether snapshots are
    reconstructed with corrected masks. ``defects`` of the snapshots
    (`sci_stream.calibration.evidence`) are a line each, ``name: text``. A change of the scene and a
    change of the gain cannot be distinguished by ``brightness``.
    """

    shift_x_px: Annotated[
        Measured,
        float_column(
            "mask_shift_x_px",
            "shift of the masks to the right since calibration; NaN if not measured",
            "pixel",
        ),
        Metric("calibration_shift_px", _SHIFT_HELP, "axis", "x"),
    ]
    shift_y_px: Annotated[
        Measured,
        float_column(
            "mask_shift_y_px",
            "shift of the masks downwards since calibration; NaN if not measured",
            "pixel",
        ),
        Metric("calibration_shift_px", _SHIFT_HELP, "axis", "y"),
    ]
    shift_sd_px: Annotated[
        Measured,
        float_column(
            "mask_shift_sd_px", "standard deviation of the shift; NaN if not measured", "pixel"
        ),
    ]
    error_log_odds: Annotated[
        Measured,
        float_column(
            "mask_error_log_odds",
            "log odds for errors of single masks, corrected from 5 on; NaN if not estimated",
        ),
        Metric(
            "calibration_error_log_odds",
            "Log odds for errors of single masks or the black level; they are corrected from 5 on.",
        ),
        PageText(
            "log odds of errors of single masks",
            digits=0,
        ),
    ] = None
    match: Annotated[
        Measured,
        float_column(
            "mask_match",
            "fraction of the measurement explained by the masks, 0-1; NaN if not measured",
        ),
        Inspected(SPREAD, "masks", "match {min:.2f} lowest"),
        PageText("match", digits=2),
    ]
    contrast: Annotated[
        Measured,
        float_column(
            "mask_contrast", "modulation by the masks relative to calibration; NaN if not measured"
        ),
        Inspected(SPREAD, "masks", "contrast {median:.2f} median"),
        PageText("contrast", digits=2),
    ]
    below_black_fraction: Annotated[
        Fraction,
        float_column(
            "below_black_fraction", "pixels darker than the dark frame; NaN if not measured"
        ),
        Inspected(SPREAD, "masks", "up to {max:.2%} of the pixels below black", usually_zero=True),
        PageText("below black", "%"),
    ] = 0.0
    brightness: Annotated[
        Measured,
        float_column(
            "brightness",
            "mean of the video estimated from the measurement, 0-1; NaN if not measured",
        ),
        Inspected(SPREAD, "masks", "brightness {min:.3f}–{max:.3f}"),
        PageText("brightness", digits=3),
    ] = None
    gain: Annotated[
        Measured,
        float_column(
            "camera_gain", "exposure and amplification relative to calibration; NaN if unknown"
        ),
        Inspected(SPREAD, "masks", "gain {min:.3f}–{max:.3f} of the calibration's"),
        PageText("camera gain", digits=3),
        Reported(key="camera_gain"),
    ] = None
    order: Annotated[
        Label,
        Column(
            "mask_order",
            "u1",
            "0 unknown, 1 forward, 2 reversed, 3 rotated, 4 shuffled",
            words=("unknown", "forward", "reversed", "rotated", "shuffled"),
        ),
        Inspected(OverSeries.TALLY, name="orders"),
    ] = "unknown"
    first_mask: Annotated[SmallCount, Reported()] = 0
    corrected: Annotated[bool, Reported()] = False
    noise_excess: Annotated[
        Measured,
        float_column("noise_excess", "noise relative to the calibration's; NaN if unknown"),
        Inspected(SPREAD, "masks", "noise {max:.2f} times the usual one"),
        Metric("calibration_noise_excess", "Noise relative to that of the calibration."),
        PageText("noise over usual", digits=2),
    ] = None
    stuck_pixels: Annotated[
        SmallCount,
        Column("stuck_pixels", "i4", "pixels brighter or darker than the masks allow, left out"),
        Inspected(SPREAD, "masks", "up to {max:.0f} stuck pixels left out", usually_zero=True),
        Metric(
            "calibration_stuck_pixels", "Pixels brighter or darker than the masks allow, left out."
        ),
        PageText("stuck pixels", digits=0),
    ] = 0
    light_hz: Annotated[
        Measured,
        float_column("light_hz", "frequency of light that changes; NaN if unknown", "Hz"),
        Inspected(SPREAD, "light", "{median:.0f} Hz"),
        PageText("light frequency", "Hz", 0),
    ] = None
    defects: Annotated[str, prose(1024), Reported()] = ""

    @property
    def defect_names(self) -> list[str]:
        """Names of the defects."""
        return [line.split(": ")[0] for line in self.defects.splitlines()]

    @property
    def shift_px(self) -> float | None:
        """Distance of the masks from their calibrated position."""
        if self.shift_x_px is None or self.shift_y_px is None:
            return None
        return math.hypot(self.shift_x_px, self.shift_y_px)


@dataclass(frozen=True, kw_only=True)
class SolveReport:
    """Report of the engine on one solve.

    ``start_reason`` is a word for the choice of the start (``"first"``, ``"gap"``, ``"cut"``, …,
    see `sci_stream.recon.initialization.initializer.Initializer`); ``residual`` is ‖y − Φv‖₂/‖y‖₂
    of the estimate; ``noise`` is the root mean square of the noise of y, as estimated, relative to
    that of y, and ``mismatch`` the part of it that grows with the brightness, as errors of the
    masks do; None if the noise was not estimated; ``solver`` is the id of the settings in the
    status of its node, ``""`` if unknown; ``masks_at`` is the correction of the masks used, ``""``
    for none: see `sci_stream.optics.mask_errors.MaskCorrection.to_text`; ``start_mask`` is looked
    for behind a modulator that the rig commands; ``health`` is set on snapshots that measured the
    calibration.
    """

    iterations: Annotated[
        SmallCount,
        Column("iterations", "i4", "number of iterations", required=True),
        Inspected(SPREAD, "iterations", "{min:.0f}–{max:.0f}, mean {mean:.1f}"),
        InRun(("mean", "min", "max"), 2),
        PageText("iterations", digits=0),
    ]
    budget_limited: Annotated[
        bool,
        Column(
            "budget_limited",
            "u1",
            "1 if there was no time for the requested iterations",
            required=True,
        ),
        Inspected(
            OverSeries.COUNT, "iterations", "{count} with fewer than configured", usually_zero=True
        ),
    ]
    start: Annotated[
        Start,
        Column(
            "start",
            "u1",
            "0 none, 1 cold, 2 warm",
            required=True,
            words=("unknown", "cold", "warm"),
        ),
        Inspected(OverSeries.TALLY, "starts", name="starts"),
    ]
    start_reason: Annotated[
        Label, text_column("start_reason", "S24", "reason for the start", required=True)
    ]
    solve_ns: Annotated[
        Count,
        Column("solve_ns", "i8", "duration of the reconstruction", "ns", required=True),
        Inspected(SPREAD, "solve", "{median:.1f} ms median, {max:.1f} ms longest", name="solve_ms"),
        PageText("solve", "ms", 1),
        Reported(key="solve_ms", divisor=1e6),
    ]
    residual: Annotated[
        NonNegative,
        float_column("residual", "relative residual of the estimate", required=True),
        Inspected(SPREAD),
        PageText("unexplained", "%"),
    ]
    saturated_fraction: Annotated[
        Fraction,
        float_column(
            "saturated_fraction", "fraction of pixels excluded from the data term", required=True
        ),
        Inspected(SPREAD),
        PageText("saturated", "%"),
    ] = 0.0
    noise: Annotated[
        Measured,
        float_column("noise", "estimated noise of the measurement, relative to it; NaN if unknown"),
        Inspected(SPREAD, "noise", "{median:.2%} of the measurement"),
        Metric("measurement_noise", _NOISE_HELP, "part", "all"),
        PageText("noise", "%"),
    ] = None
    mismatch: Annotated[
        Measured,
        float_column(
            "mismatch", "part of the noise that errors of the masks cause; NaN if unknown"
        ),
        Inspected(SPREAD, "noise", "{median:.2%} by the masks"),
        Metric("measurement_noise", _NOISE_HELP, "part", "masks"),
        PageText("mask errors", "%"),
    ] = None
    light_depth: Annotated[
        Measured,
        float_column(
            "light_depth",
            "change of the light within the exposure, (max - min)/(max + min); NaN if unknown",
        ),
        Inspected(
            SPREAD, "light", "changes by up to {max:.0%} within exposures", usually_zero=True
        ),
        Metric("light_depth", "Change of the light within an exposure, (max - min)/(max + min)."),
        PageText("light changes", "%", 0),
    ] = None
    moving_share: Annotated[
        Measured,
        float_column(
            "moving_share",
            "share of the pixels whose frames are one image that moves; NaN if not looked for",
        ),
        Inspected(SPREAD, "moving image", "in up to {max:.0%} of the pixels", usually_zero=True),
        PageText("moves as one", "%", 0),
    ] = None
    moving_x_px: Annotated[
        Measured,
        float_column(
            "moving_x_px", "motion of that image to the right in a frame; NaN without it", "pixel"
        ),
        Inspected(
            SPREAD, "moving image", "by {median:+.2f} px a frame to the right", usually_zero=True
        ),
        PageText("moves right a frame", "px", 2),
    ] = None
    moving_y_px: Annotated[
        Measured,
        float_column(
            "moving_y_px", "motion of that image downwards in a frame; NaN without it", "pixel"
        ),
        Inspected(SPREAD, "moving image", "by {median:+.2f} px downwards", usually_zero=True),
        PageText("moves down a frame", "px", 2),
    ] = None
    psnr_db: Annotated[
        Measured,
        float_column(
            "psnr_db", "PSNR against the ground truth, NaN if unknown", "dB", required=True
        ),
        Inspected(SPREAD, "PSNR", "{mean:.2f} dB mean, {min:.2f} lowest"),
        InRun(("mean", "min"), 3),
        PageText("PSNR", "dB", 1),
    ] = None
    start_mask: Annotated[
        Measured,
        float_column(
            "start_mask",
            "calibrated mask with which the exposure began, by the picture; NaN if unknown",
        ),
        Inspected(SPREAD, "modulator", "began with mask {min:.0f}–{max:.0f}", usually_zero=True),
        PageText("began with mask", digits=0),
    ] = None
    solver: Annotated[
        str,
        text(32, "string, ≤ 32 hexadecimal digits", r"[0-9a-f]*", "hexadecimal digits,"),
        text_column("solver", "S32", "id of the solver settings, see solvers in ledger"),
        Inspected(OverSeries.TALLY, name="by_solver"),
        Reported(live=False),
    ] = ""
    masks_at: Annotated[
        str,
        text(2544),
        text_column("masks_at", "S", "correction of the masks used, empty as calibrated"),
        Reported(live=False),
    ] = ""
    health: CalibrationHealth | None = None

    @property
    def moving_image(self) -> str:
        """The moving image in words; empty if no part of the video is one."""
        if not self.moving_share:
            return ""
        return (
            f"in {self.moving_share:.0%} of the pixels, by {self.moving_x_px:+.2f} px a frame to "
            f"the right, by {self.moving_y_px:+.2f} px downwards"
        )
