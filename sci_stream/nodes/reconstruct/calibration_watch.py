"""Calibration monitoring in a reconstruct node: check, warn and, if permitted,
correct the masks.
"""

from __future__ import annotations

import dataclasses
import logging
import time

import numpy as np

from sci_stream.calibration.cycle_phase import CyclePhase
from sci_stream.calibration.diagnosis import findings, is_withheld
from sci_stream.calibration.evidence import OF_RIGHT_MASKS, Defect, inspect
from sci_stream.calibration.monitor import CalibrationMonitor
from sci_stream.config import CalibrationSection
from sci_stream.model import Array, Snapshot
from sci_stream.modulation.feedback import (
    CORRECTIONS,
    DELAY,
    FIRST_MASK,
    LATE,
    MOVED_X,
    MOVED_Y,
    SHIFT_X,
    SHIFT_Y,
    STATE,
)
from sci_stream.optics.mask_errors import NO_CORRECTION
from sci_stream.parameters import Value
from sci_stream.quantities import quantities_of
from sci_stream.recon.engine import Engine
from sci_stream.reports import CalibrationHealth

log = logging.getLogger(__name__)

# Looking for defects of the data takes a hundredth of the time.
_PAUSES = 100
# The monitor measures these better, and shifted masks change the slopes that show the others.
_OF_MONITOR = {"mask_match", "mask_shift", "mask_contrast", "mask_number"}
_MOVED_PX = 0.1
# Dead pixels and dark corners are normal; more means that masks and sensor do not fit together.
_MAX_UNMEASURED = 0.01


class CalibrationWatch:
    """Monitor the calibration of one engine, whose masks are corrected if the rig permits it."""

    def __init__(self, section: CalibrationSection, engine: Engine) -> None:
        self._section = section
        self.engine = engine
        self._monitor = self._new_monitor()
        self._unmeasured = float(np.mean(engine.calibration.gram_diag == 0))
        if self._unmeasured > _MAX_UNMEASURED:
            log.warning(
                "%.1f%% of the pixels are not measured (no mask opens them, Σφ² = 0): the prior "
                "fills them in",
                100 * self._unmeasured,
            )
        self._health: CalibrationHealth | None = None
        self._defects: list[Defect] = []
        self._inspect_at_s = 0.0
        self._reported: set[str] = set()
        self._phase = CyclePhase()
        self._corrections: Value = 0
        self._placed: tuple[Value, ...] = ()
        self.first_mask: int | None = None
        """First mask of the last exposure, if a modulator's state came with it and the video shows
        it."""

    def _new_monitor(self) -> CalibrationMonitor | None:
        every, engine = self._section.health_every, self.engine
        correct = self._section.correct_shift
        return (
            CalibrationMonitor(
                engine.calibration, engine.device, every=every, correct=correct, paced=True
            )
            if every
            else None
        )

    def prepare(self, snapshot: Snapshot) -> None:
        """Measure the masks with a snapshot, and correct them: before it is solved, else in
        `check`.
        """
        if self._monitor is None:
            return
        before = self._monitor.correction
        self._inspect(snapshot, self._monitor.measure(snapshot))
        correction = self._monitor.correction
        if correction != before:
            self.engine.correct_masks(correction)
        if before.own.is_none and not correction.own.is_none:
            log.info("correcting errors of single masks: %s", correction.words)

    def _inspect(self, snapshot: Snapshot, health: CalibrationHealth | None) -> None:
        """Look for defects of the data, and leave out stuck pixels."""
        started_s = time.monotonic()
        if self._monitor is None or health is None or started_s < self._inspect_at_s:
            return
        calibration = self.engine.calibration
        defects, stuck = inspect(snapshot.counts, calibration, self._monitor.correction)
        self.engine.left_out = stuck if stuck.any() else None
        others = set(_OF_MONITOR)
        if not health.corrected and (health.shift_px or 0.0) > _MOVED_PX:
            others |= OF_RIGHT_MASKS
        if calibration.saturation_dn is not None:
            others.add("saturation")  # such pixels are known, and left out
        self._defects = [defect for defect in defects if defect.name not in others]
        ended_s = time.monotonic()
        self._inspect_at_s = ended_s + _PAUSES * (ended_s - started_s)

    def check(self, snapshot: Snapshot, video: Array) -> CalibrationHealth | None:
        """Check a reconstructed snapshot; return the calibration health if it was evaluated."""
        self._check_phase(snapshot, video)
        if self._monitor is None:
            return None
        self.prepare(snapshot)
        health = self._monitor.check(snapshot, video)
        if health is not None:
            health = dataclasses.replace(
                health,
                stuck_pixels=0 if self.engine.left_out is None else int(self.engine.left_out.sum()),
                defects="\n".join(
                    f"{defect.name}: {defect.text_for_rig}" for defect in self._defects
                ),
            )
            self._health = health
            self._warn(health)
        return health

    def _check_phase(self, snapshot: Snapshot, video: Array) -> None:
        """Determine the first mask behind a modulator that is corrected by it."""
        self.first_mask = None
        corrections = snapshot.chunks.get(CORRECTIONS)
        if corrections is None:
            return
        if corrections != self._corrections or snapshot.chunks.get(STATE):
            self._corrections = corrections
            self._phase.forget()
        self.first_mask = self._phase.add(video)
        placed = tuple(snapshot.chunks.get(name, 0) for name in (DELAY, SHIFT_X, SHIFT_Y))
        if self._placed not in ((), placed):
            # Shift and gains of the masks are others now, and the earlier estimates do not hold.
            self._monitor = self._new_monitor()
            self.engine.correct_masks(NO_CORRECTION)
        self._placed = placed

    def evidence(self, snapshot: Snapshot, health: CalibrationHealth | None) -> dict[str, Value]:
        """Return the evidence of a checked snapshot about the modulator, for its corrections; empty
        without one.
        """
        if CORRECTIONS not in snapshot.chunks:
            return {}
        known: dict[str, Value] = {name: snapshot.chunks[name] for name in (CORRECTIONS, STATE)}
        if self.first_mask is not None:
            known[FIRST_MASK] = self.first_mask
        if health is not None and health.shift_x_px is not None and health.shift_y_px is not None:
            known |= {MOVED_X: health.shift_x_px, MOVED_Y: health.shift_y_px}
        masks = () if self._monitor is None else self._monitor.correction.masks
        if health is not None and len(masks) > 1:
            # A late exposure takes light from the first mask and none from the last; an early one
            # the other way round.
            known[LATE] = max(-1.0, min((masks[-1].gain - masks[0].gain), 1.0))
        return known

    @property
    def withholds(self) -> bool:
        """Whether the masks fit the snapshots so little that a video would be made up."""
        known = any(defect.fatal for defect in self._defects)
        return known or (self._health is not None and is_withheld(self._health))

    def status(self) -> dict[str, int | float | str]:
        """Return the number of unmeasured pixels and the last calibration health, for the node's
        status.
        """
        if self._monitor is None:
            return {}
        health = self._health
        always: dict[str, int | float | str] = {"unmeasured_fraction": round(self._unmeasured, 4)}
        if health is None:
            return always
        known: dict[str, int | float | str] = {}
        for quantity in quantities_of(CalibrationHealth):
            value = quantity.value_in(health)
            if quantity.column is not None and value is not None:
                known[quantity.column.name] = round(value, 4) if isinstance(value, float) else value
        correction = self._monitor.correction
        corrected: dict[str, int | float | str] = {
            "masks_corrected": int(health.corrected),
            "mask_jitter_px": round(correction.jitter_px, 4),
            "mask_gain_error": round(correction.gain_error, 4),
            "black_level_dn": round(correction.black * self.engine.calibration.full_scale_dn, 2),
        }
        return {**always, **known, **corrected}

    def _warn(self, health: CalibrationHealth) -> None:
        """Log each problem once, when it begins and when it ends."""
        problems = findings(health, self._section.warn_shift_px)
        for name, text in problems.items():
            if name not in self._reported:
                log.warning("%s", text)
        for name in self._reported - problems.keys():
            log.info("calibration: resolved: %s", name)
        self._reported = set(problems)
