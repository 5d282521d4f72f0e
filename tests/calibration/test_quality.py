from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sci_stream.calibration.quality import QualityFigure, Verdict, assess, worst
from sci_stream.model import Array
from sci_stream.optics.calibration import Calibration

SettingChange = Callable[[Array], None]


def calibration(change: SettingChange | None = None, **fields: object) -> Calibration:
    phi = (np.random.default_rng(4).random((6, 32, 40)) < 0.5) * 0.9 + 0.05
    if change is not None:
        change(phi)
    known = {"dark": np.full((), 64.0, np.float32), "saturation_dn": 4095.0, "full_scale_dn": 900.0}
    return Calibration(phi.astype(np.float32), **{**known, **fields})  # type: ignore[arg-type]  # as given


def figure(name: str, judged: Calibration) -> QualityFigure:
    return next(figure for figure in assess(judged) if figure.name == name)


def test_assess_good_calibration_is_ok_in_every_figure() -> None:
    figures = assess(calibration())
    assert worst(figures) is Verdict.OK, [
        figure for figure in figures if figure.verdict is not Verdict.OK
    ]


def copy_a_mask(phi: Array) -> None:
    phi[4] = phi[1]


def repeat_half_a_mask(phi: Array) -> None:
    phi[4, :20] = phi[1, :20]


def open_a_mask(phi: Array) -> None:
    phi[2] = 1.0


def close_a_third(phi: Array) -> None:
    phi[:, :11] = 0.0


def take_contrast(phi: Array) -> None:
    phi[:] = 0.5 + 0.001 * (phi - 0.5)


@pytest.mark.parametrize(
    ("change", "name", "verdict", "words"),
    [
        (copy_a_mask, "likeness", Verdict.BAD, "masks 1 and 4 are duplicates"),
        (copy_a_mask, "condition", Verdict.BAD, "condition number"),
        (repeat_half_a_mask, "likeness", Verdict.WARN, "masks 1 and 4 are the most similar"),
        (open_a_mask, "likeness", Verdict.BAD, "masks 2 are constant across the sensor"),
        (close_a_third, "blind", Verdict.BAD, "440 pixels"),
        (take_contrast, "contrast", Verdict.BAD, "modulate a pixel by 0.00"),
    ],
)
def test_assess_names_faults_of_masks(
    change: SettingChange, name: str, verdict: Verdict, words: str
) -> None:
    found = figure(name, calibration(change))
    assert found.verdict is verdict
    assert words in found.text


def test_assess_warns_of_missing_values() -> None:
    assert (
        figure("black_level_dn", calibration(dark=np.zeros((), np.float32))).verdict is Verdict.WARN
    )
    assert figure("saturation_dn", calibration(saturation_dn=None)).verdict is Verdict.WARN


def test_bad_pixels_do_not_count_as_blind() -> None:
    bad = np.zeros((32, 40), np.bool_)
    bad[:11] = True
    judged = calibration(close_a_third, bad_pixels=bad)
    assert figure("blind", judged).value == 0
    assert figure("bad_pixels", judged).verdict is Verdict.BAD


def test_sensor_of_bad_pixels_only_is_bad() -> None:
    assert worst(assess(calibration(bad_pixels=np.ones((32, 40), np.bool_)))) is Verdict.BAD
