"""Monitor the calibration at run time, on every N-th snapshot."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from sci_stream.calibration.diagnosis import DARK
from sci_stream.calibration.evidence.mask_match import CHANCE, distinction
from sci_stream.calibration.mask_errors import MaskErrorEstimator, MaskInformation
from sci_stream.calibration.mask_geometry import MaskGeometry
from sci_stream.calibration.mask_order import UNKNOWN, MaskOrderDetector
from sci_stream.calibration.registration.mask_fitter import MaskFit, MaskFitter
from sci_stream.calibration.registration.response_fit import Cause, response_cause
from sci_stream.calibration.shown_masks import ShownMasks
from sci_stream.model import F32, F64, Array, Flags, Snapshot, SnapshotId
from sci_stream.optics.calibration import Calibration
from sci_stream.optics.displacement import NO_DISPLACEMENT, RIGID, Displacement, Linear
from sci_stream.optics.mask_errors import MAX_MASKS, NO_CORRECTION, MaskCorrection
from sci_stream.optics.mask_warp import warped_masks
from sci_stream.parameters import Value
from sci_stream.reports import CalibrationHealth

# Least gain of a displacement, see `MaskFit`, in pixels that it is not fitted to, to correct it.
# Right masks have at most 0.004, masks that are off by 0.1 px at least 0.13 (seven scenes behind
# four kinds of masks, 64 to 256 px).
_LEAST_GAIN = 0.02
# Gains that rise linearly look like a scene that fades, of which halves say nothing: they gain less
# than this (0.005 for 5 %). Consecutive snapshots tell them apart. Other gains of 5 % gain 0.06 and
# more, those that right masks seem to have at most 0.012 (8 clips, 64 and 128 px).
_NO_GAIN = 0.006
# Share of the least gain that suffices to go on correcting: hysteresis.
_STOP_CORRECTING = 0.5
# Largest standard deviation of a contrast that is reported. Right masks had up to 1.3 ± 0.24 in 4
# blocks of a scene, and 1.06 ± 0.03 in 25.
_MAX_SD_CONTRAST = 0.05
# Texture that the fit does not follow lowers the match and looks like contrast above 1: by up to
# this times the lost match. Right masks had 1.10 at 0.88, 1.26 at 0.83, and 1.29 at 0.78 (14 scenes
# behind random and blurred masks).
_TEXTURE = 1.6
# The engine prepares new masks for every change of the correction: smaller changes are not worth
# it.
_RENEW_PX = 0.003
# Snapshots at the start that are all used to find the errors of single masks.
LEARNING_SNAPSHOTS = 10
# Gauss–Newton steps with a snapshot.
_MAX_STEPS = 10
# A smaller change, in units of usual errors, ends them.
_SETTLED = 0.1
# Least gain of a step with the first snapshot, in the logarithm of the residual's variance.
_STEP_GAIN = 0.002
# Largest loss of a step with a later one.
_STEP_LOSS = 0.02
# Shares of a step that are tried.
_SHARES = (1.0, 0.5, 0.25)
# Errors of single masks and a displacement of all are estimated so many times in turn with the
# first snapshot.
_ROUNDS = 3
# Masks at rest that match better than this share of the match of displaced ones are where to begin.
_NEAR = 0.5
# Errors of single masks must explain more than a displacement alone by this, in the logarithm of
# the residual's variance.
_SIMPLER = 0.03
# Errors of single masks that have this shift in common are a displacement of all, pixels: errors of
# 0.2 px of four masks have 0.1 px in common by chance.
_IN_COMMON_PX = 0.25
# Weight of the newest fit in the running mean while the masks move.
_NEWEST = 0.8
# Its least weight while they do not: a single fit is off by up to 0.05 pixel on fine texture, and
# more smoothing would lag behind a drift.
_NEWEST_AT_REST = 0.2
# Masks are measured `_OFTEN` times as often, until they have moved by less than `_MOVING_PX` in
# `_CALM` measurements.
_MOVING_PX = 0.01
_OFTEN = 4
_CALM = 4
# A fit that is less certain, or explains less, says nothing about the masks: darkness or a flat
# scene.
_MAX_SD_PX = 0.1
_LEAST_MATCH = 0.2
# Masks that explain more than this of a snapshot are right: others explain up to 0.22 by chance (36
# series of 64×64 px behind 2 to 16 random masks).
_RIGHT_MATCH = 0.25
# Least match that is reported of right masks: 0 means that they are others.
_RIGHT_IN_DOUBT = 1e-3
# Search for the masks again when their correlation falls below this fraction of its best value.
_LOST = 0.6
# Least pause between assessments of a monitor that is paced.
_PAUSE_S = 1.0
# Its pauses, in units of the time of an assessment. Masks that match nothing are assessed half of
# the time: nothing is shown until they match again.
_PAUSES = 20
# Exposures are compared behind the correction of so many looks before.
_LOOKED_WITH = 6
# Read noise does not make pixels darker than the dark frame by more.
_BELOW_BLACK_DN = 4.0
# The same as a share of full scale, of which the larger one counts.
_BELOW_BLACK = 0.01


class CalibrationMonitor:
    """Monitor the masks of one calibration during a run.

    Used from one thread.

    Parameters
    ----------
    every
        Assess every N-th snapshot, ≥ 1; more often at the start, and while the masks move.
    correct
        Propose corrected masks, see `correction`.
    paced
        After the first ten assessments, make one in a twentieth of the time, and one a second at
        most where the masks rest: a live run must not wait for them. Results then depend on the
        clock.
    """

    def __init__(
        self,
        calibration: Calibration,
        device: torch.device,
        *,
        every: int,
        correct: bool = False,
        paced: bool = False,
    ) -> None:
        self._calibration = calibration
        self._paced = paced
        self._rests_until_s = -math.inf
        # A read on this stream does not wait for the solve that is under way on another.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._every = every
        with torch.cuda.stream(self._stream):
            self._fitter = MaskFitter(calibration, device) if MaskFitter.fits(calibration) else None
        self.order = MaskOrderDetector(calibration.n_frames)
        """Evidence for the mask with which exposures begin."""
        self.shown = ShownMasks(calibration.n_frames, paced=paced)
        """Evidence for exposures that show other masks than planned."""
        self._looked_with = deque[MaskCorrection](maxlen=_LOOKED_WITH)
        self._seen: SnapshotId | None = None
        self._last_added: SnapshotId | None = None
        self._measured: dict[SnapshotId, CalibrationHealth | None] = {}
        self._displacement: Displacement | None = None
        self._best_match = 0.0
        self._until_assessment = 0
        self._assessments = 0
        self._are_others = False
        self._calm = 0
        self.moves = False
        """Whether the masks moved between the last two measurements."""
        phi = calibration.phi * calibration.good
        self._light = phi.sum(axis=0)
        self._correct = correct = correct and self._fitter is not None and self._fitter.can_correct
        learns = correct and calibration.n_frames <= MAX_MASKS and self._light.any()
        self.errors = MaskErrorEstimator(phi) if learns else None
        """Errors of single masks; None if they are not estimated."""
        self._own = NO_CORRECTION
        self._geometry = MaskGeometry(self._light, calibration.bayer) if correct else None
        self._linear: Linear = RIGID
        self._lamp: Sequence[float] = ()

    @property
    def correction(self) -> MaskCorrection:
        """Proposed correction of the masks; changed by `measure` alone, and only if `correct` is
        set.
        """
        correction = self._own.with_usual_light()
        if self._linear == RIGID:
            return correction
        displacement = replace(correction.displacement, linear=self._linear)
        return replace(correction, displacement=displacement).rounded()

    def check(
        self, snapshot: Snapshot, video: Array, start: str = "warm"
    ) -> CalibrationHealth | None:
        """Process a snapshot of this calibration and its reconstruction, (B, H, W), whose
        ``start`` had this reason (`sci_stream.recon.initialization.initializer.Initializer`).

        Returns
        -------
        State of the calibration if this snapshot was assessed; else None.
        """
        health = self.measure(snapshot)
        del self._measured[snapshot.id]
        self._check_order(snapshot, video, start)
        if health is None:
            return None
        order, first_mask = self.order.order
        return replace(health, order=order, first_mask=first_mask)

    @property
    def measures(self) -> bool:
        """Whether the masks can be measured: not on a small sensor."""
        return self._fitter is not None

    def is_due(self, snapshot: Snapshot) -> bool:
        """Return whether `measure` will assess this snapshot."""
        resting = time.monotonic() < self._rests_until_s
        return snapshot.id not in self._measured and not resting and not self._until_assessment

    def measure(
        self,
        snapshot: Snapshot,
        left_out: Flags | None = None,
        light: Sequence[float] = (),
    ) -> CalibrationHealth | None:
        """Measure the masks with a snapshot, if it is one to assess, and renew `correction`: before
        it is solved.

        ``left_out``, (H, W): pixels that say nothing; ``light`` of each frame, which is none of the
        masks. `check` measures if this was not called.
        Returns the state of the calibration but for the order of the masks.
        """
        if snapshot.id not in self._measured:
            with torch.cuda.stream(self._stream):
                self._measured[snapshot.id] = self._assess_if_due(snapshot, left_out, light)
            if len(self._measured) > LEARNING_SNAPSHOTS:
                del self._measured[next(iter(self._measured))]
        return self._measured[snapshot.id]

    def _assess_if_due(
        self, snapshot: Snapshot, left_out: Flags | None, light: Sequence[float]
    ) -> CalibrationHealth | None:
        began_s = time.monotonic()
        resting = began_s < self._rests_until_s
        if resting or self._until_assessment > 0:
            self._until_assessment = max(self._until_assessment - 1, 0)
            return None
        if self._fitter is not None and light != self._lamp:
            self._lamp = light
            self._fitter.blocks.light(light)
            self._fitter.blocks.correct(self._own)
        health = self._assess(snapshot, left_out)
        self._assessments += 1
        if self._paced and self._assessments >= LEARNING_SNAPSHOTS:
            ended_s = time.monotonic()
            took_s = ended_s - began_s
            pause_s = took_s if health.match == 0 else _PAUSES * took_s
            if not (self.moves or health.match == 0):
                pause_s = max(_PAUSE_S, pause_s)
            self._rests_until_s = ended_s + pause_s
        return health

    def _assess(self, snapshot: Snapshot, left_out: Flags | None) -> CalibrationHealth:
        y, valid = valid_measurement(snapshot, self._calibration, left_out)
        brightness = self._brightness(y, valid)
        lit = brightness is not None and brightness >= DARK
        fit = self._fit_masks(y, valid, lit=lit)
        trusted = fit if fit is not None and self._is_trusted(fit) else None
        self.moves = False
        if trusted is not None:
            self._follow(trusted)
            if self._correct:
                self._update_correction(y, valid, trusted, snapshot)
        match = None if fit is None else 0.0 if self._are_others else fit.match
        if match == 0.0 and lit and not self._are_others:
            match = _RIGHT_IN_DOUBT
        self._plan_next(match)
        shift: tuple[float | None, float | None] = (None, None)
        if trusted is not None and self._displacement is not None:
            shift = self._displacement.shift_px
        return CalibrationHealth(
            shift_x_px=shift[0],
            shift_y_px=shift[1],
            shift_sd_px=None if trusted is None else trusted.shift_sd_px,
            match=match,
            contrast=None if trusted is None else _certain_contrast(trusted),
            corrected=not self.correction.is_none,
            below_black_fraction=self._below_black(snapshot.counts),
            brightness=brightness,
            gain=relative_gain(snapshot.chunks, self._calibration),
            error_log_odds=None if self.errors is None else self.errors.log_odds,
        )

    def _fit_masks(self, y: F32, valid: Flags, *, lit: bool) -> MaskFit | None:
        """Return the fit of the masks, and judge by it whether they are others; None if they
        cannot be measured.
        """
        if self._geometry is not None:
            linear = self._geometry.measure(y, valid, self._linear)
            if linear != self._linear:
                self._turn(linear, y, valid)
        if self._fitter is None:
            return None
        fit = self._evident(y, valid, self._fit(y, valid))
        if lit:
            self._judge(fit.match, y, valid)
        return fit

    def _is_trusted(self, fit: MaskFit) -> bool:
        """Return whether a fit says where the masks are."""
        certain = fit.match >= _LEAST_MATCH and fit.shift_sd_px <= _MAX_SD_PX
        return certain and not self._are_others

    def _plan_next(self, match: float | None) -> None:
        """Decide which snapshot to assess next: often at the start, and while the masks move."""
        often = max(1, self._every // _OFTEN)
        self._until_assessment = (self._every if self._calm >= _CALM else often) - 1
        if self._assessments < LEARNING_SNAPSHOTS or match == 0.0:
            self._until_assessment = 0

    def _turn(self, linear: Linear, y: F32, valid: Flags) -> None:
        """Take the masks after this rotation, magnification and shear if blocks show it, too.

        Tiles behind a pattern that moves are displaced where the scene fades. In blocks, the scene
        may fade.
        """
        assert self._fitter is not None
        phi = warped_masks(torch.from_numpy(self._calibration.phi.copy()), linear).clamp_(0, 1)
        turned = MaskFitter(replace(self._calibration, phi=phi.numpy()), self._fitter.blocks.device)
        turned.blocks.light(self._lamp)
        turned.blocks.correct(self._own)
        before, after = (
            one.fit(y, valid, one.search(y, valid)).misfit for one in (self._fitter, turned)
        )
        if before - after >= _LEAST_GAIN:
            self._fitter = turned
            self._linear = linear
            self._forget()

    def _judge(self, match: float, y: F32, valid: Flags) -> None:
        """Decide whether the masks are others than the calibrated ones."""
        if match > _RIGHT_MATCH:
            self._are_others = False
            return
        measured = np.where(valid, y, np.float32(np.nan))
        if distinction(measured, self._light, self._calibration.bayer) < CHANCE:
            self._are_others = True

    def _fit(self, y: F32, valid: Flags) -> MaskFit:
        assert self._fitter is not None
        known = self._displacement
        if known is not None:
            fit = self._fitter.fit(y, valid, known)
            if fit.match >= _LOST * self._best_match:
                return fit
        new_fit = self._fitter.fit(y, valid, self._fitter.search(y, valid))
        if known is not None:
            return new_fit if new_fit.match > fit.match else fit
        at_rest = replace(new_fit, displacement=NO_DISPLACEMENT)
        if (
            self.errors is None
            or self._fitter.match(y, valid, NO_DISPLACEMENT) < _NEAR * new_fit.match
        ):
            return new_fit
        # Errors of single masks come first, since a displacement would stand for them; but it alone
        # is simpler.
        displaced = self._information(y, valid, new_fit.displacement).misfit
        for _ in range(_ROUNDS):
            misfit = self._learn(y, valid, at_rest.displacement, NO_DISPLACEMENT).misfit
            at_rest = self._fitter.fit(y, valid, at_rest.displacement)
            if not self._own.masks:
                break
        shifts = np.array([(mask.x_px, mask.y_px) for mask in self._own.masks] or [(0.0, 0.0)])
        in_common_px = float(np.abs(shifts.mean(0)).max())
        if misfit < displaced - _SIMPLER and in_common_px < _IN_COMMON_PX:
            return at_rest
        self._correct_masks(NO_CORRECTION)
        return new_fit

    def _evident(self, y: F32, valid: Flags, fit: MaskFit) -> MaskFit:
        """Return a fit, with masks at rest if only the pixels of the fit show a displacement."""
        assert self._fitter is not None
        if self._displacement is not None and not self._displacement.is_none:
            return fit
        elsewhere = self._fitter.gain_elsewhere(y, valid, fit.displacement)
        if min(fit.gain, elsewhere) >= _LEAST_GAIN:
            return fit
        return replace(fit, displacement=NO_DISPLACEMENT, gain=0.0)

    def _follow(self, fit: MaskFit) -> None:
        """Add a fit to the running mean, and update the correction."""
        self._best_match = max(fit.match, 0.98 * self._best_match)
        new = fit.displacement
        known = self._displacement
        if known is not None:
            self.moves = _distance_px(new, known) >= _MOVING_PX + 3 * fit.shift_sd_px
            self._calm = 0 if self.moves else self._calm + 1
            if known.base_px == new.base_px:
                newest = _NEWEST if self.moves else max(_NEWEST_AT_REST, 1 / (self._calm + 1))
                new = known.blended(new, newest)
        self._displacement = new

    def _update_correction(self, y: F32, valid: Flags, fit: MaskFit, snapshot: Snapshot) -> None:
        """Update the correction by a snapshot whose fit was followed."""
        assert self._fitter is not None
        assert self._displacement is not None
        displacement = self._own.displacement
        least = _LEAST_GAIN
        if fit.gain < (least if displacement.is_none else least * _STOP_CORRECTING):
            displacement = NO_DISPLACEMENT
        elif displacement.is_none or _distance_px(self._displacement, displacement) >= _RENEW_PX:
            displacement = self._displacement
        if self.errors is None:
            self._own = MaskCorrection(displacement).rounded()
            return
        at = replace(self._own, displacement=self._displacement)
        learnt = bool(self.errors.snapshots and at.masks)
        holds = not learnt or self._fitter.gain(y, valid, at) >= -_STEP_LOSS
        information = self._learn(y, valid, self._displacement, displacement)
        if not holds:
            self._forget()
            return
        if self._own.masks and not learnt:
            gains = self._gains_elsewhere(y, valid)
            may_fade = max(map(abs, gains)) < _NO_GAIN
            shown = min(gains) >= -_STEP_LOSS and statistics.fmean(gains) >= _LEAST_GAIN
            if not shown and not (may_fade and self.errors.shows_trend):
                # Such as masks that are turned: a displacement of all is closer than none.
                self._correct_masks(MaskCorrection(displacement).rounded())
                if not may_fade:
                    self.errors.forget()
                    return
        self.errors.add(information, continues=_continues(snapshot, self._last_added))
        self._last_added = snapshot.id

    def _gains_elsewhere(self, y: F32, valid: Flags) -> list[float]:
        """Return by how much the errors that each half of the picture shows explain the other half.

        Errors of the masks are the same everywhere; a cut, or a light that changes within an
        exposure, is not.
        """
        assert self._fitter is not None
        assert self.errors is not None
        assert self._displacement is not None
        at = replace(self._own, displacement=self._displacement)
        gains = []
        for one, other in self._fitter.halves():
            errors = self.errors.errors(self.errors.of_one(one.information(y, valid, at)))
            gains.append(other.gain(y, valid, MaskCorrection(at.displacement, *errors)))
        return gains

    def _forget(self) -> None:
        """Begin again with the next snapshot, as if it were the first."""
        self._displacement = None
        if self._fitter is not None:
            self._correct_masks(NO_CORRECTION)
        if self.errors is not None:
            self.errors.forget()

    def _learn(self, y: F32, valid: Flags, at: Displacement, used: Displacement) -> MaskInformation:
        """Correct the errors that a snapshot shows besides the earlier ones, with the masks at this
        displacement.

        Linearised again at the estimate until that settles: gains of a stage that dwells are no
        small errors.
        """
        assert self._fitter is not None
        assert self.errors is not None
        information = self._information(y, valid, at)
        first = not self._own.masks
        self._own = replace(self._own, displacement=used).rounded()
        for _ in range(_MAX_STEPS if first else 1):
            before = self._own
            theta = self.errors.theta_of(before)
            target = self.errors.with_snapshot(information)
            if self.errors.distance(theta, target) < _SETTLED:
                break
            for share in _SHARES:
                errors = self.errors.errors(theta + share * (target - theta))
                self._correct_masks(MaskCorrection(used, *errors).rounded())
                trial = self._information(y, valid, at)
                if trial.misfit <= information.misfit + (-_STEP_GAIN if first else _STEP_LOSS):
                    break
            else:
                self._correct_masks(before)
                break
            information = trial
        return information

    def _information(self, y: F32, valid: Flags, at: Displacement) -> MaskInformation:
        """Return the information of a snapshot with the masks as corrected,
        at this displacement.
        """
        assert self._fitter is not None
        return self._fitter.information(y, valid, replace(self._own, displacement=at))

    def _correct_masks(self, correction: MaskCorrection) -> None:
        """Take the masks with this correction from now on."""
        assert self._fitter is not None
        self._own = correction
        self._fitter.blocks.correct(correction)

    def _check_order(self, snapshot: Snapshot, video: Array, start: str) -> None:
        """Compare a video with the one before it; look at the masks once their order changes."""
        before = self.order.order
        continues = start != "cut" and _continues(snapshot, self._seen)
        self.order.see(video, continues=continues, is_warm=start == "warm")
        self._seen = snapshot.id
        if self.order.order not in (before, (UNKNOWN, 0)):
            self.look_now()

    def look_at_exposure(self, snapshot: Snapshot, left_out: Flags | None) -> None:
        """Compare exposures as they may be by a snapshot, in a part of the time."""
        if self._fitter is None or self._are_others or not self.shown.is_due():
            return
        y, valid = valid_measurement(snapshot, self._calibration, left_out)
        orders = self._misfits(y, valid, self._own, self.shown.orders)
        self._looked_with.append(self._own)
        # Corrections follow what they can follow of another exposure: earlier ones do not.
        earlier = {self._looked_with[0], NO_CORRECTION}
        lights = [self._misfits(y, valid, own, self.shown.lights) for own in earlier]
        least = min(lights, key=lambda misfits: float(misfits.mean(1).min()))
        light = self.shown.light
        if self.shown.add(orders, least):
            self.look_now()
        if self.shown.light != light:
            self._looked_with.clear()

    def response_cause(self, snapshot: Snapshot, left_out: Flags | None) -> Cause:
        """Return the cause of a contrast that is too low: the camera's response, or the masks."""
        if self._fitter is None or self._are_others:
            return Cause("")
        y, valid = valid_measurement(snapshot, self._calibration, left_out)
        # Corrections follow what they can follow of a gamma.
        fitter = self._fitter.behind(self._fitter.blocks.corrected(NO_CORRECTION))
        at = self._looked_with[0].displacement if self._looked_with else NO_DISPLACEMENT
        masks = fitter.fit(y, valid, at).displacement
        return response_cause(fitter, y, valid, at, masks)

    def _misfits(self, y: F32, valid: Flags, own: MaskCorrection, courses: F64) -> F64:
        """Return `MaskFitter.misfits` of masks with this correction, under even light."""
        assert self._fitter is not None
        fitter = self._fitter.behind(self._fitter.blocks.unlit().corrected(own))
        return fitter.misfits(y, valid, own.displacement, courses)

    def begin_anew(self) -> None:
        """Forget all snapshots before a change, and measure the masks as at the start of a run."""
        self._forget()
        self._calm = self._assessments = 0
        self.shown.forget()
        self.look_now()

    def look_now(self) -> None:
        """Assess the next snapshot, whenever the last one was assessed."""
        self._until_assessment = 0
        self._rests_until_s = -math.inf

    def _below_black(self, counts: Array) -> float:
        """Return the fraction of pixels darker than the dark frame by more than the noise."""
        tolerance_dn = max(_BELOW_BLACK_DN, _BELOW_BLACK * self._calibration.full_scale_dn)
        return float(np.mean(counts < self._calibration.dark - np.float32(tolerance_dn)))

    def _brightness(self, y: F32, valid: Flags) -> float | None:
        """Return the mean of the video, 0–1, from the measurement alone: Σy/ΣΣφ over the valid
        pixels.
        """
        light = self._light * valid
        total = float(light.sum(dtype=np.float64))
        return float(y[light > 0].sum(dtype=np.float64)) / total if total > 0 else None


def valid_measurement(
    snapshot: Snapshot, calibration: Calibration, left_out: Flags | None = None
) -> tuple[F32, Flags]:
    """Return y, 0 at invalid pixels, and the valid ones, (H, W) both."""
    y = calibration.measurement(snapshot.counts)
    valid = np.isfinite(y)
    if left_out is not None:
        valid &= ~left_out
    if calibration.saturation_dn is not None:
        valid &= snapshot.counts < calibration.saturation_dn
    if snapshot.counts.max() == snapshot.counts.min() > calibration.dark.max():
        valid[:] = False  # the same everywhere behind any masks: saturated
    if snapshot.counts.min() == 0:
        # Where no light falls, half of the noise is cut off, which looks like a black level.
        valid &= ~calibration.blind
    # NaN at invalid pixels would spread through the sums of a block.
    return np.where(valid, y, np.float32(0)), valid


def _certain_contrast(fit: MaskFit) -> float | None:
    """Return the contrast, less what texture explains; None if it is not certain."""
    if fit.contrast_sd > _MAX_SD_CONTRAST:
        return None
    without_texture = max(1.0, fit.contrast - _TEXTURE * (1 - fit.match))
    return min(fit.contrast, without_texture)


def _continues(snapshot: Snapshot, before: SnapshotId | None) -> bool:
    """Return whether a snapshot directly follows another."""
    id_ = snapshot.id
    return before == SnapshotId(id_.series, id_.epoch, id_.seq - 1) and snapshot.dropped_before == 0


def relative_gain(chunks: Mapping[str, Value], calibration: Calibration) -> float | None:
    """Return exposure time × gain of a frame, relative to the calibration.

    Parameters
    ----------
    chunks
        Chunk data of a snapshot: ``ExposureTime`` in µs, ``Gain`` in dB, following the GenICam
        naming convention.
    calibration
        Calibration with exposure time and gain, if known.

    Returns
    -------
    1 if both are unchanged; None if neither can be compared.
    """
    exposure_us = chunks.get("ExposureTime")
    gain_db = chunks.get("Gain")
    parts = []
    if calibration.exposure_ns and isinstance(exposure_us, int | float):
        parts.append(1e3 * exposure_us / calibration.exposure_ns)
    if calibration.gain_db is not None and isinstance(gain_db, int | float):
        parts.append(10 ** (min(max(gain_db - calibration.gain_db, -200.0), 200.0) / 20))
    return math.prod(parts) if parts else None


def _distance_px(a: Displacement, b: Displacement) -> float:
    """Return the distance of two displacements, or a quarter of the largest difference in weight,
    if that is more.

    A blur leaves masks where they are, but takes weight from the middle.
    """
    far = max(abs(one - other) for one, other in zip(a.shift_px, b.shift_px, strict=True))
    if a.base_px != b.base_px:
        return far
    blurs = (abs(one - other) / 4 for one, other in zip((*a.x, *a.y), (*b.x, *b.y), strict=True))
    return max(far, *blurs)
