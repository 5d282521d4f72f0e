"""The timing plan: exposures that cover B masks, and refusals with the nearest timing that fits."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sci_stream.errors import ConfigError
from sci_stream.modulation.diagram import describe, text_diagram
from sci_stream.modulation.plan import TimingPlan, TimingRequest, plan_timing
from sci_stream.modulation.timing import CameraTiming, ModulatorCapabilities
from tests.modulation.timing_drawings import IMAGES, drawings

DMD = ModulatorCapabilities(
    "dmd",
    "1",
    768,
    1024,
    max_patterns=400,
    min_pattern_us=44.0,
    pulses=("per_pattern",),
    masters=("modulator", "camera", "external"),
    max_delay_us=20_000.0,
)
CAMERA = CameraTiming(
    min_exposure_us=20.0, max_exposure_us=1e6, max_delay_us=1000.0, readout_us=500.0, max_every=255
)
REQUEST = TimingRequest(pattern_us=1000.0)


def nearest(error: ConfigError) -> float:
    return float(str(error.hint).rpartition("pattern_us = ")[2].rstrip("."))


def test_pulse_per_pattern_is_counted_by_the_camera() -> None:
    plan = plan_timing(REQUEST, DMD, dataclasses.replace(CAMERA, readout_us=0.0), 8)
    assert (plan.camera.every, plan.camera.exposure_us, plan.period_us) == (8, 8000.0, 8000.0)
    assert "one in 8 pulses" in describe(plan)


def test_pulse_per_cycle_needs_no_counter() -> None:
    marked = dataclasses.replace(DMD, pulses=("per_pattern", "per_cycle"))
    plan = plan_timing(REQUEST, marked, dataclasses.replace(CAMERA, max_every=1), 8)
    assert (plan.mask.pulse, plan.camera.every) == ("per_cycle", 1)


def test_pulse_per_pattern_without_counter_names_ways_out() -> None:
    with pytest.raises(ConfigError, match=r"CounterDuration.*master = 'camera'.*divider"):
        plan_timing(REQUEST, DMD, dataclasses.replace(CAMERA, max_every=1), 8)


def test_camera_as_master_starts_each_cycle() -> None:
    request = dataclasses.replace(REQUEST, master="camera", delay_us=30.0)
    plan = plan_timing(request, DMD, CAMERA, 8)
    assert (plan.camera.source, plan.mask.pulse) == ("free", "none")
    assert plan.camera.exposure_us == 8030.0
    assert plan.period_us >= 8030.0 + CAMERA.readout_us
    plan = plan_timing(request, DMD, dataclasses.replace(CAMERA, step_us=100.0), 8)
    assert (plan.camera.exposure_us, plan.period_us) == (8100.0, 8100.0 + CAMERA.readout_us)


def test_readout_is_hidden_in_a_gap_or_costs_a_cycle() -> None:
    marked = dataclasses.replace(DMD, pulses=("per_cycle",))
    plan = plan_timing(REQUEST, marked, CAMERA, 8)
    assert plan.period_us == 16_000.0
    assert "one cycle in 2" in plan.notes[0]
    with_gap = plan_timing(REQUEST, dataclasses.replace(marked, gap=True), CAMERA, 8)
    assert (with_gap.mask.gap_us, with_gap.period_us, with_gap.notes) == (500.0, 8500.0, ())


@pytest.mark.parametrize(
    ("request_", "camera"),
    [
        (TimingRequest(pattern_us=20.0), CAMERA),
        (REQUEST, dataclasses.replace(CAMERA, max_exposure_us=5000.0)),
        (REQUEST, dataclasses.replace(CAMERA, step_us=300.0)),
        (REQUEST, dataclasses.replace(CAMERA, min_exposure_us=9000.0)),
    ],
)
def test_refused_timing_names_the_nearest_which_fits(
    request_: TimingRequest, camera: CameraTiming
) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_timing(request_, DMD, camera, 8)
    near = nearest(refused.value)
    plan = plan_timing(dataclasses.replace(request_, pattern_us=near), DMD, camera, 8)
    assert plan.mask.pattern_us == pytest.approx(near, abs=1.0)


def test_long_delay_is_given_to_the_modulator_or_refused() -> None:
    plan = plan_timing(dataclasses.replace(REQUEST, delay_us=5000.0), DMD, CAMERA, 8)
    assert (plan.mask.pulse_delay_us, plan.camera.delay_us) == (5000.0, 0.0)
    with pytest.raises(ConfigError, match="can delay so long"):
        plan_timing(dataclasses.replace(REQUEST, delay_us=50_000.0), DMD, CAMERA, 8)


@given(
    n=st.integers(1, 64),
    pattern_us=st.floats(44, 5000),
    dark_us=st.floats(0, 100),
    readout_us=st.floats(0, 3000),
    step_us=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_each_plan_exposes_exactly_one_cycle(
    n: int, pattern_us: float, dark_us: float, readout_us: float, step_us: float
) -> None:
    camera = dataclasses.replace(CAMERA, readout_us=readout_us, step_us=step_us, max_every=1 << 16)
    plan = plan_timing(TimingRequest(pattern_us=pattern_us, dark_us=dark_us), DMD, camera, n)
    light_us = n * plan.mask.slot_us - plan.mask.dark_us
    assert 0 <= light_us - plan.camera.exposure_us + 1e-6 <= 0.01 * plan.mask.pattern_us + 2e-6
    assert plan.period_us >= plan.camera.exposure_us + readout_us - 1e-6
    assert plan.camera.every % n == 0


@pytest.mark.parametrize("master", ["modulator", "camera"])
def test_diagram_shows_all_masks(master: str) -> None:
    request = dataclasses.replace(REQUEST, master=master, delay_us=20.0)
    plan: TimingPlan = plan_timing(request, DMD, CAMERA, 4)
    text = text_diagram(plan)
    assert all(f"│{b}" in text for b in range(4))


def test_documentation_has_the_drawings_of_the_plans() -> None:
    for name, text in drawings().items():
        assert (IMAGES / name).read_text() == text, (
            "run: python -m tests.modulation.timing_drawings"
        )
