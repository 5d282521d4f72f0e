"""The learning rate over a run, and when a run ends."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.errors import ConfigError
from sci_stream_lab.training.settings import TrainingSettings, Until

SETTINGS = TrainingSettings(learning_rate=1e-3, warmup_steps=9, decay_share=0.25)


def test_rate_rises_stays_and_falls() -> None:
    shares = [SETTINGS.share(step, 100) for step in range(100)]
    assert shares[0] == pytest.approx(0.1)
    assert shares[9:75] == pytest.approx([1.0] * 66)
    assert all(a > b > 0 for a, b in itertools.pairwise(shares[75:]))
    assert shares[-1] < 0.1


@given(steps=st.integers(100, 10**6))
def test_rate_before_the_decay_is_independent_of_the_steps(steps: int) -> None:
    last = SETTINGS.decay_begins(steps) - 1
    assert (
        SETTINGS.share(last, steps) == SETTINGS.share(last, None) == SETTINGS.share(last, 2 * steps)
    )


def test_minutes_fix_the_steps_when_only_the_decay_remains() -> None:
    until = Until(minutes=10)
    assert until.planned_steps(SETTINGS, step=100, step_s=1.0, spent_s=100.0) is None
    assert until.planned_steps(SETTINGS, step=449, step_s=1.0, spent_s=449.0) is None
    assert until.planned_steps(SETTINGS, step=450, step_s=1.0, spent_s=450.0) == 600


def test_minutes_of_a_later_session_count_from_its_start() -> None:
    assert Until(minutes=10).planned_steps(SETTINGS, step=600, step_s=1.0, spent_s=0.0) is None


def test_run_of_given_steps_is_not_planned() -> None:
    assert (
        Until(steps=600, minutes=10).planned_steps(SETTINGS, step=450, step_s=1.0, spent_s=450.0)
        is None
    )


def test_time_is_out_after_the_minutes() -> None:
    assert not Until(minutes=1).out_of_time(59.9)
    assert Until(minutes=1).out_of_time(60.0)
    assert not Until(steps=1).out_of_time(math.inf)


@pytest.mark.parametrize(
    ("until", "said"),
    [
        ({}, "No end"),
        ({"steps": 0}, "steps"),
        ({"minutes": 0.0}, "minutes"),
        ({"minutes": math.inf}, "minutes"),
    ],
)
def test_invalid_end_is_refused(until: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Until(**until)  # type: ignore[arg-type]  # the values are of mixed types, one a case


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"variant": "ffdnet-huge"}, "ffdnet, ffdnet-lite.*'ffdnet-huge'"),
        ({"patch_px": 33}, "even number"),
        (
            {"variant": "unrolled", "clip_px": 32},
            "clip_px is out of range; expected 64 to 1024; got 32",
        ),
        ({"batch": 0}, "batch"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"kernel_rate": 0.0}, "kernel_rate"),
        ({"sigma_most": 75.0}, "sigma_most"),
        ({"ema_decay": 1.0}, "ema_decay"),
        ({"seed": -1}, "seed"),
    ],
)
def test_setting_out_of_range_is_named(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TrainingSettings(**wrong)  # type: ignore[arg-type]  # the values are of mixed types, one a case
