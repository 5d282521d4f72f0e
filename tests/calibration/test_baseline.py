"""The usual figures of solves, and the alarm once others last."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sci_stream.calibration.baseline import Baseline
from sci_stream.optics.calibration import Calibration
from sci_stream.reports import CalibrationHealth, SolveReport, Start

SIZE = 64
RNG = np.random.default_rng(0)
SCENE = RNG.random((8, 8)).astype(np.float32)
OTHER_SCENE = RNG.random((8, 8)).astype(np.float32)
CALIBRATION = Calibration(phi=np.full((2, SIZE, SIZE), 0.5, np.float32))
KNOWN = replace(CALIBRATION, read_noise_dn=0.01)
SNAPSHOT = CALIBRATION.snapshot("s", 0, np.ones((SIZE, SIZE)))
USUAL = [0.02, 0.0202, 0.0198, 0.021, 0.0195, 0.0204, 0.0201, 0.0199, 0.0207, 0.0203]
LOOK = CalibrationHealth(
    shift_x_px=0.0, shift_y_px=0.0, shift_sd_px=0.01, match=0.98, contrast=1.0, brightness=0.4
)


def report(noise: float, saturated: float = 0.0) -> SolveReport:
    return SolveReport(
        iterations=8,
        budget_limited=False,
        start=Start.WARM,
        start_reason="warm",
        solve_ns=1,
        residual=noise,
        saturated_fraction=saturated,
        noise=noise,
    )


def watched(
    *noises: float, scene: np.ndarray = SCENE, calibration: Calibration = CALIBRATION
) -> tuple[Baseline, list[str]]:
    """Return the baseline after the usual figures and these, and its answers to these."""
    baseline = Baseline(calibration)
    for noise in USUAL:
        assert baseline.add(report(noise), SCENE, SNAPSHOT) == ""
        baseline.note(LOOK)
    return baseline, [baseline.add(report(noise), scene, SNAPSHOT) for noise in noises]


def test_usual_noise_is_no_alarm() -> None:
    baseline, answers = watched(*USUAL * 10)
    assert set(answers) == {""}
    assert baseline.excess is None


def test_warm_starts_that_stop_paying_are_a_step() -> None:
    baseline, _ = watched()
    unpaid = replace(report(0.02), start_reason="no_gain")
    answers = [baseline.add(unpaid, SCENE, SNAPSHOT) for _ in range(20)]
    assert answers.index("step") == 1
    assert answers.count("step") == 1


def test_step_that_is_corrected_is_no_alarm() -> None:
    baseline, answers = watched(0.04, 0.04, 0.02, *USUAL)
    assert "step" in answers[:3]
    assert answers.count("step") == 1
    assert baseline.defects(LOOK) == []


@pytest.mark.parametrize(
    ("look", "cause"),
    [
        ({"brightness": 0.5}, "exposure that is not as long as the cycle"),
        ({"match": 0.8}, "masks that are blurred"),
        ({"contrast": 0.8}, "stray light"),
        ({}, "a lamp that flickers"),
    ],
)
def test_lasting_noise_is_one_alarm_with_its_cause(look: dict[str, float], cause: str) -> None:
    baseline, answers = watched(*[0.04] * 10)
    assert answers.count("step") == 1
    (defect,) = baseline.defects(replace(LOOK, **look))  # type: ignore[arg-type] # as the case says
    assert defect.name == "unexplained"
    assert "2.0 times" in defect.text
    assert defect.text.split("likely causes: ")[1].startswith(("an " + cause, cause))


def test_alarm_ends_with_the_usual_noise() -> None:
    baseline, _ = watched(*[0.04] * 10, *USUAL)
    assert baseline.excess is None


@pytest.mark.parametrize(("noise", "answer"), [(0.022, "cut"), (0.04, "step")])
def test_another_scene_has_figures_of_its_own(noise: float, answer: str) -> None:
    """Masks that are suddenly wrong make noise, and a video that looks like another scene."""
    baseline, answers = watched(*[noise] * 10, scene=OTHER_SCENE)
    assert answers == [answer, *[""] * 9]
    assert baseline.excess is None


def test_saturated_pixels_that_appear_are_a_step() -> None:
    baseline, _ = watched()
    answers = [baseline.add(report(0.02, 0.01), SCENE, SNAPSHOT) for _ in range(4)]
    assert "step" in answers


@pytest.mark.parametrize(("noise", "alarm"), [(0.015, False), (0.05, True)])
def test_noise_of_the_calibration_shows_faults_from_the_start(noise: float, alarm: bool) -> None:
    baseline = Baseline(KNOWN)
    for _ in range(10):
        baseline.add(report(noise), SCENE, SNAPSHOT)
    assert (baseline.excess is not None) is alarm
