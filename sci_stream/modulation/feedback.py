"""Corrections of a modulator by the picture: decide from evidence, within bounds. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from sci_stream.parameters import Value

# Chunk data that tell with every snapshot how the modulator was corrected until then.
CORRECTIONS = "MaskCorrections"
STATE = "MaskState"
ADVANCE = "MaskAdvance"
DELAY = "MaskDelay"
SHIFT_X = "MaskShiftX"
SHIFT_Y = "MaskShiftY"
UNITS = {
    CORRECTIONS: "",
    STATE: "0 undisturbed, 1 disturbed, 2 settling",
    ADVANCE: "patterns",
    DELAY: "us",
    SHIFT_X: "mirrors",
    SHIFT_Y: "mirrors",
}
FIRST_MASK = "first_mask"
LATE = "late"
MOVED_X = "moved_x_px"
MOVED_Y = "moved_y_px"
"""Evidence of a snapshot: mask with which it began; share of a mask by which it began late; shift
of the masks."""
ASKED = "asked"
"""In place of evidence: an operator or a reaction asks for an advance by one pattern."""

# Votes for another first mask in a row: one may be a cut of the scene.
_VOTES = 2
# Delay and shift are measured with noise, and matter less: the median of so many decides.
_FIGURES = 5
_LEAST_LATE = 0.03
_LEAST_MIRRORS = 0.75
# Bounds. A modulator that needs more has another fault, which an operator must find.
_MAX_IN_ROW = 20
_FORGIVEN_AFTER = 200
_MAX_DELAY_SLOTS = 1.0
_MAX_MIRRORS = 16


@dataclass(frozen=True)
class ModulatorCorrection:
    """A change to make: patterns to advance, µs of delay, mirrors by which to move the patterns,
    and the reason.
    """

    advance: int = 0
    delay_us: float = 0.0
    move: tuple[int, int] = (0, 0)
    why: str = ""


class MaskFeedback:
    """Turn the evidence of snapshots into corrections, of B patterns that follow each other after
    ``slot_us``.

    ``mirror_px`` is the displacement of the masks on the sensor when the patterns move by one
    mirror, (x, y); 0 if it is unknown.
    """

    def __init__(
        self, n_patterns: int = 1, slot_us: float = 1.0, mirror_px: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        self._n = n_patterns
        self._slot_us = slot_us
        self._mirror_px = mirror_px
        self.corrections = self.advance = 0
        self.delay_us = 0.0
        self.moved = (0, 0)
        self.exhausted = False
        """Whether the bounds are reached."""
        self.delays = True
        """Whether a device can delay exposures or pulses."""
        self._in_row = self._calm = 0
        self._votes = deque[int](maxlen=_VOTES)
        self._figures: dict[str, deque[float]] = {
            name: deque(maxlen=_FIGURES) for name in (LATE, MOVED_X, MOVED_Y)
        }

    def add(self, evidence: Mapping[str, Value]) -> ModulatorCorrection | None:
        """Add the evidence of a snapshot; return a correction, which counts as made,
        if it is due.
        """
        if ASKED in evidence:
            self._in_row = 0  # the reaction has its own bounds
            return self._made(ModulatorCorrection(advance=1, why="asked for"))
        if evidence.get(CORRECTIONS) != self.corrections or evidence.get(STATE) == 2:
            return None  # exposed before the last correction
        first = evidence.get(FIRST_MASK)
        if isinstance(first, int) and not isinstance(first, bool):
            self._votes.append(first % self._n)
        for name, figures in self._figures.items():
            value = evidence.get(name)
            if isinstance(value, int | float):
                figures.append(float(value))
        self._calm += 1
        if self._calm > _FORGIVEN_AFTER:
            self._in_row = 0
            self.exhausted = False
        return self._made(self._due())

    def late(self, patterns: int, *, sure: bool) -> ModulatorCorrection | None:
        """Note that exposures begin so many patterns later from now on, as their times show.

        Return a correction, which counts as made, if that is ``sure``. Otherwise the picture has to
        confirm it.
        """
        first = patterns % self._n
        if sure and first:
            why = f"an exposure came {patterns:+d} patterns late: a pulse was lost, or one too many"
            return self._made(ModulatorCorrection(self._steps_to(first), why=why))
        return None

    def _made(self, due: ModulatorCorrection | None) -> ModulatorCorrection | None:
        """Count a correction that is due, within bounds, and return it."""
        if due is None:
            return None
        if self._in_row >= _MAX_IN_ROW:
            self.exhausted = True
            return None
        self._in_row += 1
        self._calm = 0
        self.corrections += 1
        self.advance += due.advance
        self.delay_us += due.delay_us
        self.moved = (self.moved[0] + due.move[0], self.moved[1] + due.move[1])
        self.forget()
        return due

    def _steps_to(self, first: int) -> int:
        """Return by how much to advance exposures that begin with this mask, the shorter way."""
        return -first if first <= self._n // 2 else self._n - first

    def forget(self) -> None:
        """Forget the evidence: the modulator was changed."""
        self._votes.clear()
        for figures in self._figures.values():
            figures.clear()

    def reopened(self, n_patterns: int, slot_us: float) -> None:
        """Note that the modulator begins again: its phase is lost, delay and place of the patterns
        are set again.
        """
        self._n = n_patterns
        self._slot_us = slot_us
        self.advance = 0
        self.forget()

    def restarted(self) -> None:
        """Note that the modulator was started again: snapshots from now on have another number."""
        self.corrections += 1
        self.forget()

    def _due(self) -> ModulatorCorrection | None:
        first = self._votes[-1] if self._votes else 0
        if first and list(self._votes) == [first] * _VOTES:
            why = f"{_VOTES} snapshots began with mask {first}"
            return ModulatorCorrection(advance=self._steps_to(first), why=why)
        late = self._median(LATE)
        if self.delays and late is not None and abs(late) > _LEAST_LATE:
            room_us = _MAX_DELAY_SLOTS * self._slot_us
            wanted_us = min(max(self.delay_us - late * self._slot_us, -room_us), room_us)
            if abs(wanted_us - self.delay_us) > 0.5 * _LEAST_LATE * self._slot_us:
                why = f"exposures began {late:+.1%} of a mask late, the median of {_FIGURES}"
                return ModulatorCorrection(delay_us=wanted_us - self.delay_us, why=why)
        move = tuple(
            -round(shift_px / scale)
            if scale and shift_px is not None and abs(shift_px / scale) > _LEAST_MIRRORS
            else 0
            for shift_px, scale in zip(
                (self._median(MOVED_X), self._median(MOVED_Y)), self._mirror_px, strict=True
            )
        )
        total = [abs(before + step) for before, step in zip(self.moved, move, strict=True)]
        if any(move) and max(total) <= _MAX_MIRRORS:
            return ModulatorCorrection(
                move=(move[0], move[1]), why=f"the masks moved, the median of {_FIGURES}"
            )
        return None

    def _median(self, name: str) -> float | None:
        figures = self._figures[name]
        return median(figures) if len(figures) == _FIGURES else None
