"""Corrections of the modulator by evidence: bounded, and never by evidence from before the last
one.
"""

from __future__ import annotations

from sci_stream.modulation.feedback import (
    CORRECTIONS,
    FIRST_MASK,
    LATE,
    MOVED_X,
    MOVED_Y,
    STATE,
    MaskFeedback,
)


def began(first: int, corrections: int = 0, state: int = 0) -> dict[str, bool | int | float | str]:
    return {FIRST_MASK: first, CORRECTIONS: corrections, STATE: state}


def test_two_votes_in_a_row_advance_the_cycle() -> None:
    feedback = MaskFeedback(8, 1000.0)
    assert feedback.add(began(3)) is None
    correction = feedback.add(began(3))
    assert correction is not None
    assert (correction.advance, feedback.corrections) == (-3, 1)
    assert feedback.add(began(3)) is None, "evidence from before the correction"


def test_shorter_way_round_the_cycle_is_taken() -> None:
    feedback = MaskFeedback(8, 1000.0)
    feedback.add(began(7))
    correction = feedback.add(began(7))
    assert correction is not None
    assert correction.advance == 1


def test_votes_that_disagree_correct_nothing() -> None:
    feedback = MaskFeedback(8, 1000.0)
    assert [feedback.add(began(first)) for first in (1, 2, 0, 1, 0, 0)] == [None] * 6
    assert feedback.add(began(1, state=2)) is None, "settling"


def test_lost_pulse_in_the_times_is_corrected_at_once() -> None:
    feedback = MaskFeedback(8, 1000.0)
    correction = feedback.late(1, sure=True)
    assert correction is not None
    assert (correction.advance, feedback.corrections) == (-1, 1)
    assert feedback.add(began(1)) is None, "evidence from before the correction"


def test_unsure_lost_pulse_needs_the_votes_of_the_picture() -> None:
    feedback = MaskFeedback(8, 1000.0)
    assert feedback.late(1, sure=False) is None
    assert [feedback.add(began(first)) for first in (0, 1)] == [None, None]
    correction = feedback.add(began(1))
    assert correction is not None
    assert correction.advance == -1


def test_corrections_are_bounded() -> None:
    feedback = MaskFeedback(8, 1000.0)
    for number in range(30):
        for _ in range(2):
            feedback.add(began(2, number))
    assert feedback.corrections == 20
    assert feedback.exhausted


def test_late_exposures_change_the_delay_within_a_mask() -> None:
    feedback = MaskFeedback(8, 1000.0)
    corrections = [feedback.add({LATE: 0.1, CORRECTIONS: 0}) for _ in range(5)]
    assert corrections[:4] == [None] * 4
    assert corrections[4] is not None
    assert corrections[4].delay_us == -100.0
    for number in range(1, 40):
        for _ in range(5):
            feedback.add({LATE: 0.9, CORRECTIONS: number})
    assert feedback.delay_us >= -1000.0


def test_moved_masks_move_the_patterns_back_by_whole_mirrors() -> None:
    feedback = MaskFeedback(8, 1000.0, mirror_px=(2.0, -2.0))
    corrections = [feedback.add({MOVED_X: 4.1, MOVED_Y: 0.3, CORRECTIONS: 0}) for _ in range(5)]
    assert corrections[4] is not None
    assert corrections[4].move == (-2, 0)
    assert feedback.moved == (-2, 0)
