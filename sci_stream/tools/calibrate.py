"""``sci-stream calibrate``: show dark, white and each pattern to the camera, and compute a calibration.

A camera that controls its mask modulator (`sci_stream.ports.PatternCamera`) is calibrated automatically; otherwise the
user is asked to set up each pattern. One process, one camera, no network.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from sci_stream.calibration.measurement import FrameMean, Measured, MeasurementConditions, check_white, measure
from sci_stream.clock import unix_ns
from sci_stream.errors import CalibrationError, CameraError, ConfigError
from sci_stream.model import CameraCapabilities
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import AdjustableCamera, Camera, Pattern, PatternCamera

log = logging.getLogger(__name__)

# Short, so that Ctrl-C is answered while the camera is silent.
_READ_S = 0.5
# A dark frame above this fraction of the range was not taken in the dark.
_DARK_AT_MOST = 0.5


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """Settings of a calibration.

    Parameters
    ----------
    frames
        Number of frames averaged per pattern.
    settle
        Number of frames discarded after each pattern change: their exposure may have started before it.
    n_frames
        B; None to use the camera's number.
    automatic
        Let the camera show the patterns; False to ask the user even if it could.
    brightness
        As in `calibration.measurement.MeasurementConditions`; None for the camera's value, else 1.
    reverse
        Patterns are shown in reverse order of exposure.
    timeout_s
        Timeout for a frame.
    conditions
        Conditions that the camera does not tell; exposure time and gain are read from a GenICam camera where None.
    """

    frames: int = 32
    settle: int = 2
    n_frames: int | None = None
    automatic: bool = True
    brightness: float | None = None
    reverse: bool = False
    timeout_s: float = 30.0
    conditions: MeasurementConditions = field(default_factory=MeasurementConditions)


Ask = Callable[[str], None]
"""Asks the user to set something up, and returns when it is done. May raise KeyboardInterrupt."""
Progress = Callable[[str, int, int], None]
"""Called with the present step, the number of frames taken and their total."""


def calibrate(camera: Camera, plan: CalibrationPlan, ask: Ask, progress: Progress) -> tuple[Calibration, Measured]:
    """Acquire all frames and compute the calibration.

    The camera is closed on return and on every exception, including KeyboardInterrupt.

    Raises
    ------
    ConfigError
        If the number of patterns is unknown.
    CameraError
        If the camera cannot be opened or delivers no frames.
    CalibrationError
        If the frames are unsuitable for a calibration; raised as early as possible.
    """
    with _running(camera) as capabilities:
        for text in capabilities.distortions:
            log.warning("the masks will be wrong: %s", text)
        n_frames = plan.n_frames or capabilities.n_frames
        if n_frames is None:
            raise ConfigError(
                f"The camera {capabilities.model} does not report the number of patterns of its modulator",
                hint="Set it with --masks B.",
            )
        saturation_dn = float((1 << capabilities.bit_depth) - 1)
        modulator = camera if plan.automatic and isinstance(camera, PatternCamera) else None

        def take(pattern: Pattern, words: str) -> FrameMean:
            if modulator is not None:
                modulator.show(pattern)
            else:
                ask(words)
            return _average(camera, plan, words, saturation_dn, progress)

        dark = take("dark", "No light: close the lens, or switch the light off")
        # Checked at once: the operator may have forgotten the cap, and the patterns take minutes.
        _check_dark(dark, saturation_dn)
        white = take("white", "White: a uniform bright field, every mask element open")
        check_white(dark, white)
        # The order of exposure is stored; reconstruction needs the masks in the order of time.
        shown = range(n_frames)[::-1] if plan.reverse else range(n_frames)
        patterns = [take(b, f"Pattern {b} (of 0 to {n_frames - 1}), the same field") for b in shown]
        own_brightness = modulator.field_brightness if modulator is not None else 1.0
        conditions = replace(
            with_camera_settings(camera, plan.conditions),
            brightness=own_brightness if plan.brightness is None else plan.brightness,
            saturation_dn=saturation_dn,
            bayer=capabilities.bayer,
            bit_depth=capabilities.bit_depth,
            camera_serial=capabilities.serial,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            source=_source(capabilities, plan.frames),
            mask_order=tuple(shown),
        )
        return measure(dark, white, patterns, conditions)


def with_camera_settings(camera: Camera, conditions: MeasurementConditions) -> MeasurementConditions:
    """Fill in exposure time and gain, unless given, from a camera with the SFNC features."""
    if not isinstance(camera, AdjustableCamera):
        return conditions
    parameters = {parameter.name: parameter for parameter in camera.settings()}
    exposure, gain = parameters.get("ExposureTime"), parameters.get("Gain")
    if conditions.exposure_ns is None and exposure is not None:
        conditions = replace(conditions, exposure_ns=round(1000 * float(exposure.value)))  # µs
    if conditions.gain_db is None and gain is not None and "(dB)" in gain.description:
        conditions = replace(conditions, gain_db=float(gain.value))
    return conditions


def _source(capabilities: CameraCapabilities, frames: int) -> str:
    text = f"measured with {capabilities.model} {capabilities.serial}, {frames} frames per pattern"
    return "; ".join((text, *(distortion.partition(";")[0] for distortion in capabilities.distortions)))


@contextmanager
def _running(camera: Camera) -> Iterator[CameraCapabilities]:
    """Open and start a camera; close it in any case."""
    try:
        capabilities = camera.open()
        camera.start()
        yield capabilities
    finally:
        camera.stop()
        camera.close()


def _average(camera: Camera, plan: CalibrationPlan, words: str, saturation_dn: float, progress: Progress) -> FrameMean:
    """Average the next frames whose exposure starts after this call."""
    mean = FrameMean()
    to_settle = plan.settle
    began_ns = unix_ns()
    received_s = time.monotonic()
    progress(words, 0, plan.frames)
    while mean.n < plan.frames:
        frame = camera.read(_READ_S)
        if frame is None:
            if camera.exhausted or time.monotonic() - received_s > plan.timeout_s:
                raise CameraError(
                    "The camera delivers no frames",
                    expected=f"{plan.frames} frames for {words!r}",
                    got=f"{mean.n}"
                    + (", then its end" if camera.exhausted else f", then none for {plan.timeout_s:g} s"),
                    hint="Check whether it waits for a trigger, or the rig limits its number of snapshots.",
                )
            continue
        received_s = time.monotonic()
        if frame.host_time_ns < began_ns:
            continue  # it was buffered while the pattern was being set up
        if to_settle:
            to_settle -= 1
            continue
        mean.add(frame.counts, saturation_dn)
        progress(words, mean.n, plan.frames)
    return mean


def _check_dark(dark: FrameMean, saturation_dn: float) -> None:
    level = float(np.median(dark.mean))
    if level > _DARK_AT_MOST * saturation_dn:
        raise CalibrationError(
            "The dark frame is not dark",
            expected=f"less than {_DARK_AT_MOST * saturation_dn:g} DN, half of the range",
            got=f"{level:.0f} DN",
            hint="Cover the lens, and check the black level of the camera.",
        )
