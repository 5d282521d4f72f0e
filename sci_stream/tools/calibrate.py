"""``sci-stream calibrate``: shows darkness, white and each pattern to the camera, and makes a calibration of it.

Where the camera commands its mask modulator (`sci_stream.ports.PatternCamera`) it goes by itself, otherwise someone is
asked to set each up. No node, no network: one process, one camera.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from sci_stream.calibration.measurement import Field, FrameMean, Measured, Setting, check_white, measure
from sci_stream.clock import unix_ns
from sci_stream.errors import CalibrationError, CameraError, ConfigError
from sci_stream.model import CameraCapabilities
from sci_stream.optics.calibration import Calibration
from sci_stream.ports import AdjustableCamera, Camera, Pattern, PatternCamera

_READ_S = 0.5
_DARK_AT_MOST = 0.5
"""A dark frame in the upper half of the range was not taken in the dark."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to calibrate.

    Parameters
    ----------
    frames
        Averaged for each pattern.
    settle
        Frames thrown away after a pattern was set up: they may have begun before.
    n_frames
        B; None for what the camera says.
    automatic
        Let the camera show the patterns; False to have someone asked although it could.
    field, brightness, held
        As in `sci_stream.calibration.measurement.Setting`; brightness None for what the camera says, else 1.
    reverse
        Patterns are set up in reverse order of exposure.
    exposure_ns, gain_db
        For the record, and to notice that they have changed; None for what a GenICam camera says.
    patience_s
        How long to wait for a frame.
    """

    frames: int = 32
    settle: int = 2
    n_frames: int | None = None
    automatic: bool = True
    field: Field = Field.EVEN
    brightness: float | None = None
    held: bool = True
    reverse: bool = False
    exposure_ns: int | None = None
    gain_db: float | None = None
    patience_s: float = 30.0


Ask = Callable[[str], None]
"""Asks someone to set something up, and returns when it is done. May raise KeyboardInterrupt."""
Progress = Callable[[str, int, int], None]
"""Called with what is being taken, and how many frames of how many of it there are."""


def calibrate(camera: Camera, plan: Plan, ask: Ask, progress: Progress) -> tuple[Calibration, Measured]:
    """Take all frames and make a calibration.

    The camera is closed when this returns or raises, also by KeyboardInterrupt.

    Raises
    ------
    ConfigError
        If the number is unknown: patterns there are.
    CameraError
        If the camera cannot be opened or delivers no frames.
    CalibrationError
        If what it sees cannot be a calibration; it is found as early as can be.
    """
    with _running(camera) as capabilities:
        n_frames = plan.n_frames or capabilities.n_frames
        if n_frames is None:
            raise ConfigError(
                f"The camera {capabilities.model} does not know how many patterns its modulator shows",
                hint="Give their number: --masks B.",
            )
        saturation_dn = float((1 << capabilities.bit_depth) - 1)
        shower = camera if plan.automatic and isinstance(camera, PatternCamera) else None

        def take(pattern: Pattern, words: str) -> FrameMean:
            if shower is not None:
                shower.show(pattern)
            else:
                ask(words)
            return _average(camera, plan, words, saturation_dn, progress)

        dark = take("dark", "No light: close the lens, or switch the light off")
        _check_dark(dark, saturation_dn)
        white = take("white", "White: an even bright field, every mask element open")
        check_white(dark, white)
        shown = range(n_frames)[::-1] if plan.reverse else range(n_frames)
        patterns = [take(b, f"Pattern {b} (of 0 to {n_frames - 1}), the same field") for b in shown]
        report = shower.field_brightness if shower is not None else 1.0
        plan = told_by(camera, plan)
        setting = _setting(plan, capabilities, saturation_dn, report if plan.brightness is None else plan.brightness)
        return measure(dark, white, patterns, replace(setting, mask_order=tuple(shown)))


def told_by(camera: Camera, plan: Plan) -> Plan:
    """Take exposure time and gain from a camera that has them by their SFNC names, as far as the plan does not say."""
    if not isinstance(camera, AdjustableCamera):
        return plan
    there = {parameter.name: parameter for parameter in camera.settings()}
    exposure, gain = there.get("ExposureTime"), there.get("Gain")
    if plan.exposure_ns is None and exposure is not None:
        plan = replace(plan, exposure_ns=round(1000 * float(exposure.value)))  # µs
    if plan.gain_db is None and gain is not None and "(dB)" in gain.says:
        plan = replace(plan, gain_db=float(gain.value))
    return plan


def _setting(plan: Plan, capabilities: CameraCapabilities, saturation_dn: float, brightness: float) -> Setting:
    return Setting(
        field=plan.field,
        brightness=brightness,
        held=plan.held,
        saturation_dn=saturation_dn,
        bayer=capabilities.bayer,
        bit_depth=capabilities.bit_depth,
        camera_serial=capabilities.serial,
        exposure_ns=plan.exposure_ns,
        gain_db=plan.gain_db,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        source=f"measured with {capabilities.model} {capabilities.serial}, {plan.frames} frames a pattern",
    )


@contextmanager
def _running(camera: Camera) -> Iterator[CameraCapabilities]:
    """Have a camera open and started; close it whatever happens."""
    try:
        capabilities = camera.open()
        camera.start()
        yield capabilities
    finally:
        camera.stop()
        camera.close()


def _average(camera: Camera, plan: Plan, words: str, saturation_dn: float, progress: Progress) -> FrameMean:
    """Average the next frames that were exposed after now."""
    mean = FrameMean()
    to_settle = plan.settle
    asked_ns = unix_ns()
    heard_s = time.monotonic()
    progress(words, 0, plan.frames)
    while mean.n < plan.frames:
        frame = camera.read(_READ_S)
        if frame is None:
            if camera.exhausted or time.monotonic() - heard_s > plan.patience_s:
                raise CameraError(
                    "The camera delivers no frames",
                    expected=f"{plan.frames} frames for {words!r}",
                    got=f"{mean.n}"
                    + (", then its end" if camera.exhausted else f", then none for {plan.patience_s:g} s"),
                    hint="Does it wait for a trigger? Is a number of snapshots set for it in the rig?",
                )
            continue
        heard_s = time.monotonic()
        if frame.host_time_ns < asked_ns:
            continue  # it waited in a buffer while the pattern was being set up
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
            hint="Cover the lens, and look at the camera's black level.",
        )
