"""One guarded solve: a snapshot in; out comes its video, or the snapshot with the reason why not.

Each door of the product solves here: rigs, replay, ``reconstruct``, ``solve``, benches. The steps:

1. *inspect*: find stuck pixels, which are left out, and defects of the snapshot.
2. *measure*: find by how much the masks are off (`sci_stream.calibration.monitor`).
3. *correct*: take the masks as the snapshots show them.
4. *solve*: `sci_stream.recon.engine.Engine`.
5. *check*: compare the order of the masks with the video; name all defects.
6. *withhold*: if the video would be made up, return the snapshot itself in its place.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sci_stream.calibration.baseline import Baseline
from sci_stream.calibration.brightness_steps import BrightnessSteps
from sci_stream.calibration.diagnosis import (
    CAUSES,
    MAX_BLACK,
    MOSTLY_BELOW_BLACK,
    changes,
    diagnose,
    moved_roi,
    withhold,
)
from sci_stream.calibration.evidence.defect import Defect
from sci_stream.calibration.evidence.inspection import OF_RIGHT_MASKS, inspect, stuck_in
from sci_stream.calibration.evidence.response import gamma_defect
from sci_stream.calibration.mask_order import MaskOrderDetector
from sci_stream.calibration.monitor import CalibrationMonitor, valid_measurement
from sci_stream.calibration.registration.response_fit import GAMMA, Cause
from sci_stream.calibration.sensor.paced import Paced
from sci_stream.calibration.sensor.pixel_defects import PixelDefects, defects_of
from sci_stream.calibration.sensor.sensor_faults import SensorFaults
from sci_stream.model import Flags, Snapshot, SnapshotId
from sci_stream.optics.mask_errors import NO_CORRECTION, MaskCorrection
from sci_stream.optics.sensor_errors import LIGHT, NO_SENSOR_ERRORS, SensorErrors
from sci_stream.recon.backend.async_solve import AsyncSolve
from sci_stream.recon.engine import Engine, Tail, Watch
from sci_stream.recon.light import LightWatch
from sci_stream.reports import CalibrationHealth, SolveReport

Video = npt.NDArray[np.floating[Any]]

# An inspection is followed by so many times its duration without one: it takes 1 % of the time.
_PAUSES = 100
# It takes half of the time while videos are withheld, so that one dark snapshot withholds no later
# ones.
_PAUSES_WITHHELD = 1
# The comparison of pixels over many snapshots takes 5 % of the time.
_PAUSES_PIXELS = 20
# Snapshots whose brightness is compared before and after masks have another light.
_LEVELS = 8
# Masks have the light of their calibration if their gains are off by less.
_EVEN = 0.03
# The brightness has changed by less than this share of the change by the gains: it has not.
_AS_BRIGHT = 0.3
# The monitor measures these better than an inspection.
_OF_MONITOR = {"mask_match", "mask_shift", "mask_contrast", "mask_number"}
NETWORK_MISFIT = "network_misfit"
# Residual of a network's own video beyond the noise, above which it is named. A small U-net leaves
# 3 to 8 % behind masks of the kind that it was trained for, 16 to 25 % behind masks that open one
# frame at a time, and 93 % and more where it has another mask inside (six drawn scenes each).
_MAX_MISFIT = 0.12
# The monitor measures displacements up to this one.
_MAX_SHIFT_PX = 2
# Masks that are off by more, and not corrected, change the slopes that show `OF_RIGHT_MASKS`.
_MOVED_PX = 0.1
# Exposures of another length look like these, most behind masks that are shifts of one another.
_OF_OTHER_EXPOSURES = {"mask_shift", "mask_blur"}
# A gamma looks like these.
_OF_RESPONSE = {*OF_RIGHT_MASKS, "scale"}
# Light, or a gain of masks, that changes by more changes these slopes, too.
_DEEP = 0.3
# A GPU solves two snapshots at once.
_MAX_PENDING = 4


@dataclass(frozen=True)
class Guard:
    """Settings of the checks.

    Parameters
    ----------
    every
        Measure the masks with each N-th snapshot, and more often at the start; 0 for no checks.
    correct
        Correct the masks by what snapshots show.
    warn_shift_px
        Name a shift of the masks above this one as a defect, pixels.
    live
        A camera does not wait: after the first snapshots, measure masks at rest at most once a
        second.
    correct_sensor
        Correct the snapshots by faults of the sensor that they show.
    lamps_hz
        Frequency at which the lamps pulse; None if unknown.
    frame_s
        Time from one mask to the next; None for a B-th of the exposure.
    is_whole
        Whether the frame of a snapshot is whole. Others are solved, and say nothing of the masks.
    """

    every: int = 20
    correct: bool = True
    warn_shift_px: float = 0.1
    live: bool = False
    correct_sensor: bool = True
    lamps_hz: float | None = None
    frame_s: float | None = None
    is_whole: Callable[[Snapshot], bool] = lambda _snapshot: True


NO_GUARD = Guard(every=0)
"""Solve with the masks as they are, whatever the snapshots show."""


class Decision(NamedTuple):
    """An earlier decision on a snapshot: the masks that it was solved with, and its outcome.

    ``before`` is the snapshot before it, if that is known: image lag is a part of it.
    """

    correction: MaskCorrection
    withheld: bool
    before: Snapshot | None = None


class Delivered(NamedTuple):
    """Result of a guarded solve.

    ``video`` (B, H, W): the snapshot itself in each frame where it is withheld; ``defects``
    that are known after this snapshot; ``tail`` of the solve, if the engine keeps it and the video
    is not withheld.
    """

    video: Video
    report: SolveReport
    defects: tuple[Defect, ...]
    tail: Tail | None = None


class _Solved(NamedTuple):
    """A snapshot as it is solved, without these errors of the sensor."""

    snapshot: Snapshot
    errors: SensorErrors


class GuardedSolver:
    """Solve the snapshots of one calibration. Used from one thread.

    Parameters
    ----------
    engine
        The engine, of the calibration as measured. Its masks are corrected here alone.
    guard
        Settings of the checks.
    failed
        Called with an exception of a check; the snapshot is then solved without it. By default the
        exception is raised.
    """

    def __init__(
        self,
        engine: Engine,
        guard: Guard = Guard(),
        *,
        failed: Callable[[Exception, Snapshot], None] | None = None,
    ) -> None:
        self.engine = engine
        # A camera does not wait: the caller, who knows its period, decides for each snapshot.
        engine.seeks_moving_image = not guard.live
        self._guard = guard
        self._failed = failed
        self._monitor = self._new_monitor()
        self._inspected: list[Defect] = []
        self._pixels = PixelDefects(engine.calibration)
        self._sensor = SensorFaults(engine.calibration, correct=guard.correct_sensor)
        self._before: Snapshot | None = None
        self._pending: dict[SnapshotId, _Solved] = {}
        """Snapshots that are being solved."""
        self._is_right = True
        """Whether faults of the sensor explain the snapshots, and not other masks."""
        self._is_gamma = False
        """Whether snapshots show a gamma, also without the light that no mask codes."""
        self._stuck: Flags | None = None
        self._defective: Flags | None = None
        self._pixels_paced = Paced(_PAUSES_PIXELS)
        self._inspect_at_s = 0.0
        self._dark_dn = float(np.mean(engine.calibration.dark))
        self._even_levels = deque[float](maxlen=_LEVELS)
        self._uneven_levels = deque[float](maxlen=_LEVELS)
        self._light = LightWatch(engine.masks, guard.lamps_hz)
        self._light_changes = False
        self._shown: tuple[float, ...] = ()
        """The light of each mask that exposures show; empty if it is as planned."""
        self._baseline = Baseline(engine.calibration)
        self._brightness = BrightnessSteps(engine.calibration)
        self.health: CalibrationHealth | None = None
        """State of the calibration by the last snapshot that was assessed."""
        self._assessed: tuple[Defect, ...] = ()
        self._misfit: tuple[Defect, ...] = ()
        self._moved_before: set[str] = set()
        self._names: set[str] = set()
        """Defects of the last snapshot."""

    @property
    def defects(self) -> tuple[Defect, ...]:
        """All defects that are known."""
        others = (defect for defect in self._assessed if defect.name != NETWORK_MISFIT)
        return (*others, *self._misfit)

    def _new_monitor(self) -> CalibrationMonitor | None:
        if not self._guard.every:
            return None
        return CalibrationMonitor(
            self.engine.calibration,
            self.engine.device,
            every=self._guard.every,
            correct=self._guard.correct,
            paced=self._guard.live,
        )

    @property
    def correction(self) -> MaskCorrection:
        """Correction of the masks that the snapshots show."""
        return NO_CORRECTION if self._monitor is None else self._monitor.correction

    @property
    def order(self) -> MaskOrderDetector | None:
        """Evidence for the mask with which exposures begin; None without checks."""
        return None if self._monitor is None else self._monitor.order

    @property
    def withholds(self) -> bool:
        """Whether the masks fit the snapshots so little that a video would be made up."""
        return any(defect.fatal for defect in self.defects)

    def forget(self) -> None:
        """Measure the masks from the beginning: they were moved on purpose."""
        self._monitor = self._new_monitor()
        self.engine.correct_masks(NO_CORRECTION)

    def forget_order(self) -> None:
        """Determine the order of the masks from the beginning: it was changed on purpose."""
        if self._monitor is not None:
            self._monitor.order.forget()
            self._monitor.shown.begin_anew()

    def measure(self, snapshot: Snapshot) -> None:
        """Inspect a snapshot, and correct the masks by it: before it is solved."""
        if self._monitor is None:
            return
        try:
            self._measure(snapshot, self._monitor)
        except Exception as error:
            if self._failed is None:
                raise
            self._failed(error, snapshot)

    def _measure(self, snapshot: Snapshot, monitor: CalibrationMonitor) -> None:
        began_s = time.monotonic()
        if self._guard.live:
            self._see_level(snapshot)
        if self._guard.live and self._brightness.add(snapshot.id, snapshot.counts):
            monitor.look_now()
        if monitor.shown.light != self._shown:
            # The exposures show other masks from now on.
            self._shown = monitor.shown.light
            monitor.begin_anew()
            self._correct(monitor.correction, ())
        was_fatal = any(defect.fatal for defect in self._inspected)
        is_due = monitor.is_due(snapshot)
        due = (was_fatal or is_due) and began_s >= self._inspect_at_s
        # A camera does not wait: even light is looked at with the masks. Errors of masks that shake
        # look like light.
        follows = (is_due or self._light.seen) and not monitor.moves
        light_due = follows or not self._guard.live
        if not light_due:
            self._light.skip()
        light = self._light_of(snapshot) if light_due else ()
        corrected = monitor.correction.lit(light)
        if due:
            self._stuck = stuck_in(snapshot.counts, self.engine.calibration, corrected)
        self.engine.left_out = self._left_out()
        if self._light.changes != self._light_changes:
            # Gains of the masks count as light now, or the other way round.
            self._light_changes = self._light.changes
            monitor.begin_anew()
        before = monitor.correction
        lamp = np.array(light if self._light_changes and light else (1.0,))
        lamp = lamp * (self._shown or (1.0,))
        health = monitor.measure(
            snapshot, self.engine.left_out, tuple(lamp.tolist()) if len(lamp) > 1 else ()
        )
        if monitor.correction != before:
            self._correct(monitor.correction, ())
            light = self._light_of(snapshot) if light_due else ()
        self._correct(monitor.correction, light)
        health = health or (self.health if due else None)
        if health is None:
            return
        if due:
            self._inspect(snapshot, monitor, health)
            is_fatal = any(defect.fatal for defect in self._inspected)
            ended_s = time.monotonic()
            pauses = _PAUSES_WITHHELD if is_fatal else _PAUSES
            self._inspect_at_s = ended_s + pauses * (ended_s - began_s)
        self._assess(health)

    def _correct(self, correction: MaskCorrection, light: tuple[float, ...]) -> None:
        """Correct the masks, and take them under this light of each frame."""
        of_exposure = bool(light) and self._light.of_exposure
        self._light.of_masks = light if of_exposure else ()
        shown = np.multiply(self._shown or (1.0,), self._light.of_masks or (1.0,))
        if len(shown) > 1:
            correction = correction.exposed(shown.tolist())
        if len(shown) > 1 or max(correction.turns(len(correction.masks)), default=1) > 1:
            correction = self._as_bright_as_before(correction)
        if not of_exposure:
            correction = correction.lit(light)
        self.engine.correct_masks(replace(correction, sensor=self.engine.masks.correction.sensor))

    def _see_level(self, snapshot: Snapshot) -> None:
        """Remember how bright the snapshot is, beside those of masks and light as calibrated."""
        used = self.engine.masks.correction
        is_even = not used.light and used.gain_error < _EVEN
        if is_even:
            self._uneven_levels.clear()
        levels = self._even_levels if is_even else self._uneven_levels
        levels.append(float(snapshot.counts.mean()) - self._dark_dn)

    def _as_bright_as_before(self, correction: MaskCorrection) -> MaskCorrection:
        """Return masks with the light of all masks, if the snapshots are as bright as those behind
        masks as calibrated.

        One snapshot does not tell masks that are shown for longer from others that are shown for
        less.
        """
        if not self._even_levels or not self._uneven_levels:
            return correction
        level = np.median(self._uneven_levels) / np.median(self._even_levels)
        gain = float(np.mean([1 + mask.gain for mask in correction.masks]))
        if not level > 0 or abs(math.log(level)) > _AS_BRIGHT * abs(math.log(gain)):
            return correction
        return correction.exposed([1 / gain] * len(correction.masks)).rounded()

    def _light_of(self, snapshot: Snapshot) -> tuple[float, ...]:
        """Return the light of each frame besides gains of the masks; empty if it is even."""
        calibration = self.engine.calibration
        y, valid = valid_measurement(snapshot, calibration, self.engine.left_out)
        y = np.where(valid, y - np.float32(self.engine.masks.correction.black), np.float32(0))
        exposure_us = snapshot.chunks.get("ExposureTime")
        exposure_s = 1e-9 * (calibration.exposure_ns or 0)
        if isinstance(exposure_us, int | float):
            exposure_s = 1e-6 * exposure_us
        frame_s = self._guard.frame_s or exposure_s / calibration.n_frames or None
        return self._light.measure(snapshot.id, y, valid, frame_s)

    def _left_out(self) -> Flags | None:
        """Return the pixels that one snapshot, or many together, show to be wrong."""
        parts = [part for part in (self._stuck, self._defective) if part is not None]
        flags = np.logical_or.reduce(parts) if parts else None
        return flags if flags is not None and flags.any() else None

    def _inspect(
        self, snapshot: Snapshot, monitor: CalibrationMonitor, health: CalibrationHealth
    ) -> None:
        """Find the defects of a snapshot behind the masks as corrected."""
        calibration = self.engine.calibration
        others = set(_OF_MONITOR) if monitor.measures else set()
        moved = not health.corrected and (health.shift_px or 0.0) > _MOVED_PX
        used = self.engine.masks.correction
        if moved or max(used.light_depth, used.gain_error) > _DEEP:
            others |= OF_RIGHT_MASKS
        if calibration.saturation_dn is not None:
            others.add("saturation")  # such pixels are known, and left out
        if self._guard.live and self._stuck is not None and self._stuck.sum() == 1:
            others.add("stuck_pixels")  # an edge that passes has one at times
        # Corrections follow what they can follow of a fault that is none of the masks.
        as_calibrated = inspect(snapshot.counts, calibration, stuck=self._stuck)
        causes = [cause for defect in as_calibrated if (cause := _cause(defect)) is not None]
        if any(defect.name == "mask_match" for defect in as_calibrated):
            others.add("scale")  # behind other masks, the brightness means nothing
            causes = []
        if causes and self._guard.live:
            first = min(causes, key=lambda cause: CAUSES.index(cause.name))
            self._inspected = self._with_response(snapshot, monitor, [first])
            return
        defects = inspect(snapshot.counts, calibration, self.engine.masks.correction, self._stuck)
        if "scale" in others and any(defect.name == "black_level" for defect in defects):
            defects = as_calibrated  # the black level that was fitted to such masks is none of y
        defects = [defect for defect in defects if defect.name not in others]
        self._inspected = self._with_response(snapshot, monitor, defects)

    def _with_response(
        self, snapshot: Snapshot, monitor: CalibrationMonitor, defects: list[Defect]
    ) -> list[Defect]:
        """Return the defects with the cause of a contrast that is too low, where blocks of a live
        rig tell it.
        """
        suspect = _OF_RESPONSE & {defect.name for defect in defects}
        used = self.engine.masks.correction
        cause = Cause("")
        if self._guard.live and (suspect or abs(used.black) > MAX_BLACK):
            cause = monitor.response_cause(snapshot, self.engine.left_out)
        is_known = self._is_gamma or any(getattr(used.sensor, name) for name in LIGHT)
        self._is_gamma = cause.name == GAMMA and is_known
        if not cause.name:
            return defects
        # Stray light and masks are corrected, and named so.
        wrong = OF_RIGHT_MASKS - {cause.name}
        if cause.name == GAMMA:
            wrong = _OF_RESPONSE - {GAMMA}
        others = [defect for defect in defects if defect.name not in wrong]
        if cause.name == GAMMA and GAMMA not in suspect:
            others.append(gamma_defect(cause.gamma))
        return others

    def _assess(self, health: CalibrationHealth) -> None:
        left_out = self.engine.left_out
        noticed = [*self._inspected, *self._misfit]
        light = self._light.latest
        is_light = self._light.is_told or not self._guard.live
        if light is not None and is_light and not self._light.of_masks:
            noticed.append(light.defect)
        if self._sensor.shows_light and not self._is_gamma:
            # One snapshot shows it, too, and less clearly.
            noticed = [defect for defect in noticed if defect.name not in OF_RIGHT_MASKS]
        is_black = health.below_black_fraction > MOSTLY_BELOW_BLACK
        if is_black:
            noticed = []
        names = {defect.name for defect in noticed}
        if self._guard.live:
            noticed += defects_of(self._defective)
        others = names & (OF_RIGHT_MASKS | set(CAUSES))
        self._is_right = health.match != 0 and not is_black and not others
        if self._guard.live and self._is_right:
            self._baseline.note(health)
            # The corrections follow what they can follow of a fault of the sensor.
            masks_or_light = [
                *changes(self.engine.masks.correction),
                *self._baseline.defects(health),
            ]
            of_sensor = self._sensor.defects
            if not self.engine.masks.correction.is_none:
                # Masks that are off look like pixels whose gains are.
                of_sensor = [defect for defect in of_sensor if defect.name != "pixel_gains"]
            shown = self._monitor.shown if self._monitor is not None else None
            if shown is None or not shown.light:
                noticed += of_sensor or masks_or_light or self._brightness.defects
            if shown is not None:
                noticed += shown.defects
        self.health = replace(
            health,
            stuck_pixels=0 if left_out is None else int(left_out.sum()),
            noise_excess=self._baseline.ratio,
            light_hz=None if light is None else light.hz,
            defects="\n".join(f"{one.name}: {one.text_for_rig}" for one in noticed),
        )
        measured = diagnose(self.health, self._guard.warn_shift_px)
        names = {defect.name for defect in noticed}
        of_masks = (defect for defect in measured if defect.name not in names)
        self._assessed = self._with_one_cause((*noticed, *of_masks))

    def _with_one_cause(self, defects: tuple[Defect, ...]) -> tuple[Defect, ...]:
        """Return defects without masks that seem to move, or to be blurred, since the brightness
        changed at once: an exposure that is longer or shorter than the cycle looks so.
        """
        if self._monitor is not None and self._monitor.shown.light != self._shown:
            # The masks were measured before their light was known.
            return tuple(one for one in defects if one.name not in _OF_OTHER_EXPOSURES)
        moved = {defect.name for defect in defects} & _OF_OTHER_EXPOSURES
        if not self._brightness.has_changed:
            self._moved_before = moved
        hidden = moved - self._moved_before
        return tuple(defect for defect in defects if defect.name not in hidden)

    def begin(
        self, snapshot: Snapshot, iterations: int | None = None, *, watch: Watch | None = None
    ) -> AsyncSolve:
        """Measure the masks with a snapshot and start its solve; parameters as of `Engine.begin`.

        Call `finish` with the result.
        """
        before = self._before
        self._before = snapshot
        errors = self._sensor.errors if self._is_right else NO_SENSOR_ERRORS
        solved = self._without_errors(snapshot, before, errors)
        self._pending[snapshot.id] = solved
        if len(self._pending) > _MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        if self._guard.is_whole(snapshot):
            self.measure(solved.snapshot)
        return self.engine.begin(solved.snapshot, iterations, watch=watch)

    def _without_errors(
        self, snapshot: Snapshot, before: Snapshot | None, errors: SensorErrors
    ) -> _Solved:
        """Return a snapshot without these errors of the sensor, and those that it had.

        Lag is known only beside the snapshot before.
        """
        if before is None or not _follows(snapshot, before):
            errors = errors._replace(lag=0.0)
        errors = errors.rounded()
        used = self.engine.masks.correction
        if used.sensor != errors:
            self.engine.correct_masks(replace(used, sensor=errors))
        corrected = snapshot
        if errors != NO_SENSOR_ERRORS:
            counts = None if before is None else before.counts
            calibration = self.engine.calibration
            corrected = replace(
                snapshot, counts=errors.without(snapshot.counts, counts, calibration)
            )
        return _Solved(corrected, errors)

    def finish(self, snapshot: Snapshot, pending: AsyncSolve) -> Delivered:
        """Wait for a solve, check its video, and deliver or withhold it."""
        video, report = pending.finish()
        known = self._pending.pop(snapshot.id, None)
        solved = _Solved(snapshot, NO_SENSOR_ERRORS) if known is None else known
        health = None
        if self._monitor is not None and self._guard.is_whole(snapshot):
            self._misfit = self._network_misfit(pending.own_residual, report.noise or 0.0)
            # A residual that changes because an image was found says nothing about the masks.
            checked, usual = pending.without_image(video, report)
            try:
                if self._guard.live:
                    self._look_at_sensor(snapshot, solved, checked, self._monitor)
                health = self._check(solved.snapshot, checked, usual, self._monitor)
            except Exception as error:
                if self._failed is None:
                    raise
                self._failed(error, snapshot)
        defects = self._lasting() if self._guard.live else self.defects
        report = replace(report, health=health)
        return self._delivered(snapshot, video, report, self.withholds, defects)

    def _lasting(self) -> tuple[Defect, ...]:
        """Return the defects that the snapshot before showed, too, and those that withhold a video.

        A fault lasts, an error of an estimate does not. After a new one the next snapshot is
        assessed. Rows keep what each snapshot shows.
        """
        defects = self.defects
        names = {defect.name for defect in defects}
        lasting = tuple(one for one in defects if one.fatal or one.name in self._names)
        if names - self._names and self._monitor is not None:
            self._monitor.look_now()
            self._inspect_at_s = 0.0
        self._names = names
        return lasting

    def _look_at_sensor(
        self, snapshot: Snapshot, solved: _Solved, video: Video, monitor: CalibrationMonitor
    ) -> None:
        """Look for faults of the sensor, and measure again if they are others now."""
        counts = solved.snapshot.counts
        used = self.engine.masks.correction
        is_other = self._sensor.add(
            snapshot.id, snapshot.counts, video, solved.errors, solved=counts, masks=used
        )
        if not is_other:
            return
        monitor.look_now()
        if self._sensor.errors != NO_SENSOR_ERRORS or solved.errors != NO_SENSOR_ERRORS:
            # The snapshots are others from now on.
            monitor.begin_anew()
            self._baseline.begin_anew()

    def _find_defective(self, snapshot: Snapshot, video: Video) -> bool:
        """Look for pixels that are wrong in many snapshots, in a twentieth of the time; return
        whether there are any now, or none any more.
        """
        if self.withholds:
            return False
        before = self._defective
        self._pixels_paced(lambda: self._look_at_pixels(snapshot, video))
        return (before is None) != (self._defective is None)

    def _look_at_pixels(self, snapshot: Snapshot, video: Video) -> None:
        used = self.engine.masks.correction
        self._defective = self._pixels.add(snapshot.counts, video, used)

    def _network_misfit(self, residual: float, noise: float) -> tuple[Defect, ...]:
        """Return a defect if a network's own video does not explain the snapshot."""
        if not self.engine.at_once or not residual > _MAX_MISFIT + noise:
            return ()
        text = (
            f"the network's own video leaves {residual:.0%} of the snapshot unexplained: was it "
            "trained for another mask, another scale or other frames? Compare it with another "
            "solver"
        )
        return (Defect(NETWORK_MISFIT, text),)

    def _check(
        self, snapshot: Snapshot, video: Video, report: SolveReport, monitor: CalibrationMonitor
    ) -> CalibrationHealth | None:
        health = monitor.check(snapshot, video, report.start_reason)
        small = monitor.order.latest
        if self._guard.live and small is not None:
            if monitor.order.in_doubt:
                self.engine.forget("order")
                if report.start_reason != "order":
                    # A solve that started from frames in another order leaves them in each frame.
                    self._sensor.forget()
            change = self._baseline.add(report, small.mean(0), snapshot)
            if change == "step":
                monitor.begin_anew()
                self._pixels.forget()
                self._sensor.begin_anew()
            elif change:
                monitor.look_now()
            if change:
                self._inspect_at_s = 0.0
        if self._guard.live and self._find_defective(snapshot, video):
            monitor.look_now()
        if self._guard.live:
            monitor.look_at_exposure(snapshot, self.engine.left_out)
        if health is None:
            return None
        self._assess(health)
        return self.health

    def solve(
        self, snapshot: Snapshot, iterations: int | None = None, *, watch: Watch | None = None
    ) -> Delivered:
        """Measure, correct, solve, check, and deliver or withhold: `begin` and `finish`."""
        return self.finish(snapshot, self.begin(snapshot, iterations, watch=watch))

    def solve_as_decided(
        self, snapshot: Snapshot, decision: Decision, iterations: int | None = None
    ) -> Delivered:
        """Solve a snapshot with the masks that an earlier solve had, and its outcome."""
        self.engine.correct_masks(decision.correction)
        errors = decision.correction.sensor
        solved = self._without_errors(snapshot, decision.before, errors).snapshot
        video, report = self.engine.reconstruct(solved, iterations)
        return self._delivered(snapshot, video, report, decision.withheld, self.defects)

    def _delivered(
        self,
        snapshot: Snapshot,
        video: Video,
        report: SolveReport,
        withheld: bool,
        defects: tuple[Defect, ...],
    ) -> Delivered:
        tail = self.engine.tail
        if withheld:
            tail = None
            video, report = withhold(video, report, snapshot, self.engine.calibration)
        return Delivered(video, report, defects, tail)


def _follows(snapshot: Snapshot, before: Snapshot) -> bool:
    """Return whether no frame is missing between two snapshots."""
    id_ = snapshot.id
    is_next = before.id == SnapshotId(id_.series, id_.epoch, id_.seq - 1)
    return is_next and snapshot.dropped_before == 0


def _cause(defect: Defect) -> Defect | None:
    """Return a defect that causes others; None if it is none."""
    x_px, y_px = defect.shift_px or (0, 0)
    if max(abs(x_px), abs(y_px)) > _MAX_SHIFT_PX:
        return Defect("mask_shift", moved_roi(x_px, y_px))
    return defect if defect.name in CAUSES[:-1] else None
