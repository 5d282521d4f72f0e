"""The calibration of a reconstruct node: log of its faults, status, evidence for a modulator."""

from __future__ import annotations

import logging

from sci_stream.calibration.evidence.defect import Defect
from sci_stream.config import CalibrationSection
from sci_stream.delivery.frame_faults import is_whole
from sci_stream.model import Snapshot
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
from sci_stream.parameters import Value
from sci_stream.quantities import quantities_of
from sci_stream.recon.backend.async_solve import AsyncSolve
from sci_stream.recon.engine import Engine
from sci_stream.recon.guarded import Delivered, Guard, GuardedSolver
from sci_stream.reports import CalibrationHealth

log = logging.getLogger(__name__)

# Dead pixels and dark corners are normal; more means that masks and sensor do not fit together.
_MAX_UNMEASURED = 0.01


class CalibrationWatch:
    """The guarded solver of one calibration, with a log of the faults that it finds.

    ``frame_s``: the time from one mask to the next; None if the rig does not set it.
    """

    def __init__(
        self, section: CalibrationSection, engine: Engine, frame_s: float | None = None
    ) -> None:
        self._section = section
        guard = Guard(
            section.health_every,
            section.correct_shift,
            section.warn_shift_px,
            live=True,
            correct_sensor=section.correct_sensor,
            lamps_hz=section.lamps_hz or None,
            frame_s=frame_s,
            is_whole=is_whole,
        )
        self.solver = GuardedSolver(engine, guard, failed=_log_failure)
        self.engine = engine
        self._unmeasured = float(engine.calibration.blind.mean())
        if self._unmeasured > _MAX_UNMEASURED:
            log.warning(
                "%.1f%% of the pixels are not measured (no mask opens them, Σφ² near 0): the prior "
                "fills them in",
                100 * self._unmeasured,
            )
        self._reported: dict[str, Defect] = {}
        self._corrections: Value = 0
        self._placed: tuple[Value, ...] = ()
        self.first_mask: int | None = None
        """First mask of the last exposure, if a modulator's state came with it and the video shows
        it."""

    def begin(self, snapshot: Snapshot, iterations: int) -> AsyncSolve:
        """Start the solve of a snapshot; see `GuardedSolver.begin`."""
        before = self.solver.correction
        pending = self.solver.begin(snapshot, iterations)
        correction = self.solver.correction
        if before.own.is_none and not correction.own.is_none:
            log.info("correcting errors of single masks: %s", correction.words)
        return pending

    def finish(self, snapshot: Snapshot, pending: AsyncSolve) -> Delivered:
        """Wait for a solve; log each fault once, when it begins and when it ends."""
        solved = self.solver.finish(snapshot, pending)
        self._check_phase(snapshot)
        known = {defect.name: defect for defect in solved.defects}
        for name, defect in known.items():
            if name not in self._reported:
                log.warning("%s", defect.text_for_rig)
        for name in self._reported.keys() - known.keys():
            log.info("calibration: resolved: %s", name)
        self._reported = known
        return solved

    def _check_phase(self, snapshot: Snapshot) -> None:
        """Determine the first mask behind a modulator that is corrected by it."""
        self.first_mask = None
        corrections = snapshot.chunks.get(CORRECTIONS)
        order = self.solver.order
        if corrections is None or order is None:
            return
        if corrections != self._corrections or snapshot.chunks.get(STATE):
            self._corrections = corrections
            self.solver.forget_order()
        else:
            self.first_mask = order.first_mask
        placed = tuple(snapshot.chunks.get(name, 0) for name in (DELAY, SHIFT_X, SHIFT_Y))
        if self._placed not in ((), placed):
            # Shift and gains of the masks are others now, and the earlier estimates do not hold.
            self.solver.forget()
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
        masks = self.solver.correction.masks
        if health is not None and len(masks) > 1:
            # A late exposure takes light from the first mask and none from the last; an early one
            # the other way round.
            known[LATE] = max(-1.0, min((masks[-1].gain - masks[0].gain), 1.0))
        return known

    def status(self) -> dict[str, int | float | str]:
        """Return the number of unmeasured pixels and the last calibration health, for the node's
        status.
        """
        if not self._section.health_every:
            return {}
        health = self.solver.health
        always: dict[str, int | float | str] = {"unmeasured_fraction": round(self._unmeasured, 4)}
        if health is None:
            return always
        known: dict[str, int | float | str] = {}
        for quantity in quantities_of(CalibrationHealth):
            value = quantity.value_in(health)
            if quantity.column is not None and value is not None:
                known[quantity.column.name] = round(value, 4) if isinstance(value, float) else value
        correction = self.solver.correction
        corrected: dict[str, int | float | str] = {
            "masks_corrected": int(health.corrected),
            "mask_jitter_px": round(correction.jitter_px, 4),
            "mask_gain_error": round(correction.gain_error, 4),
            "black_level_dn": round(correction.black * self.engine.calibration.full_scale_dn, 2),
        }
        return {**always, **known, **corrected}


def _log_failure(error: Exception, snapshot: Snapshot) -> None:
    log.error(
        "the masks cannot be checked with snapshot %d, which is solved without: %s",
        snapshot.id.seq,
        error,
        exc_info=error,
    )
