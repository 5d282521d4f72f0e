"""The simulated modulator, alone and in front of the simulated camera."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NoReturn

import numpy as np
import pytest

from sci_stream.devices.modulated_camera import ModulatedCamera
from sci_stream.errors import CameraError, CameraLost, ConfigError
from sci_stream.model import CameraFrame
from sci_stream.modulation.feedback import ADVANCE, CORRECTIONS, DELAY, FIRST_MASK, LATE, STATE
from sci_stream.tools.timing_check import measure_delay
from sci_stream_drivers.simulated import SimulatedModulator, SimulatedModulatorOptions
from sci_stream_testing.modulators import ModulatorContract
from tests.tools.modulated import masks, modulated

_BENCHES = itertools.count()


def options(**changes: object) -> SimulatedModulatorOptions:
    small = {"width_px": 16, "height_px": 12, "bench": f"modulator-{next(_BENCHES)}"}
    return SimulatedModulatorOptions.model_validate({**small, **changes})


class TestSimulatedModulator(ModulatorContract):
    def make(self) -> SimulatedModulator:
        return SimulatedModulator(options())


class TestMovingMask(ModulatorContract):
    def make(self) -> SimulatedModulator:
        return SimulatedModulator(options(motion="sine"))


def error_of(both: ModulatedCamera, frame: CameraFrame, rolled: int = 0) -> float:
    """Return how far the truth, through the masks from another one on, is from a frame; RMS,
    of y.
    """
    calibration = both.calibration()
    assert calibration is not None
    assert frame.truth is not None
    model = np.einsum("bhw,bhw->hw", np.roll(calibration.phi, -rolled, 0), frame.truth / 255)
    return float(np.sqrt(np.mean((calibration.measurement(frame.counts) - model) ** 2)))


def frames(both: ModulatedCamera, count: int) -> list[CameraFrame]:
    both.open()
    both.start()
    taken: list[CameraFrame] = []
    while len(taken) < count:
        try:
            frame = both.read(0.01)
        except CameraLost:
            both.close()
            both.open()
            both.start()
            continue
        taken += [frame] if frame is not None else []
    return taken


def test_exposure_in_step_shows_each_mask_once() -> None:
    both = modulated(camera={"noise": False})
    assert all(error_of(both, frame) < 0.005 for frame in frames(both, 3))


def test_lost_pulse_is_corrected_by_its_time_at_once() -> None:
    both = modulated(
        camera={"noise": False, "snapshot_rate_hz": 200.0},
        modulator={"pulse": "per_pattern", "faults": {"lost_pulses": [5]}},
    )
    taken = frames(both, 9)
    right = [error_of(both, frame) < 0.005 for frame in taken]
    assert right == [True] * 5 + [False] + [True] * 3
    assert [frame.chunks[STATE] for frame in taken[4:8]] == [0, 1, 2, 0]
    assert taken[-1].chunks[ADVANCE] == -1


def test_lost_pulse_begins_all_later_exposures_a_mask_later() -> None:
    both = modulated(camera={"noise": False}, modulator={"faults": {"lost_pulses": [2]}})
    taken = frames(both, 4)
    assert [error_of(both, frame) < 0.005 for frame in taken] == [True, True, False, False]
    assert error_of(both, taken[3], rolled=1) < 0.005
    both.modulator.advance(-1)
    assert error_of(both, frames(both, 1)[0]) < 0.005


def test_restart_is_seen_in_the_counters_and_recovered() -> None:
    both = modulated(camera={"noise": False}, modulator={"faults": {"restarts": [1]}})
    taken = frames(both, 4)
    assert [frame.chunks[STATE] for frame in taken] == [0, 1, 0, 0]
    assert [frame.chunks[CORRECTIONS] for frame in taken] == [0, 1, 1, 1]
    assert [error_of(both, frame) < 0.005 for frame in taken] == [True, False, True, True]
    assert both.counters()["modulator_recovered"] == 1


def test_delay_of_the_plan_meets_the_light() -> None:
    late = modulated(camera={"noise": False}, modulator={"latency_us": 300.0})
    assert error_of(late, frames(late, 1)[0]) > 0.01
    right = modulated(camera={"noise": False}, modulator={"latency_us": 300.0}, delay_us=300.0)
    assert error_of(right, frames(right, 1)[0]) < 0.005


def test_patterns_of_another_size_are_refused() -> None:
    both = modulated(masks(4, 32), modulator={"width_px": 16})
    with pytest.raises(ConfigError, match="do not fit the modulator"):
        both.open()


def test_camera_without_pulses_delivers_nothing() -> None:
    both = modulated()
    both.open()
    both.camera.start()
    assert both.camera.read(0.01) is None


@pytest.mark.parametrize("latency_us", [0.0, 130.0, 1700.0, 5000.0, 7900.0])
def test_check_measures_the_delay_with_half_open_patterns(latency_us: float) -> None:
    both = modulated(
        camera={"scene": "static", "noise": False}, modulator={"latency_us": latency_us}
    )
    both.open()
    early_us = -latency_us if latency_us <= 4000 else 8000 - latency_us
    assert measure_delay(both) == pytest.approx(early_us, abs=20.0)


class FailingModulator(SimulatedModulator):
    """Fails in each call of a name from now on."""

    failure: BaseException | None = None
    fails_in = ""

    def __getattribute__(self, name: str) -> object:
        if name == object.__getattribute__(self, "fails_in"):
            return self._fail
        return object.__getattribute__(self, name)

    def _fail(self, *_: object) -> NoReturn:
        assert self.failure is not None
        raise self.failure


def with_failing_modulator() -> tuple[ModulatedCamera, FailingModulator]:
    made: list[FailingModulator] = []

    def driver(options: SimulatedModulatorOptions) -> FailingModulator:
        made.append(FailingModulator(options))
        return made[-1]

    both = modulated(driver=driver)
    return both, made[0]


FAILURES = [
    CameraError("no answer"),
    RuntimeError("not open"),
    ValueError("patterns are numbered from 0"),
    ConfigError("patterns of another size"),
    OSError("USB"),
    SystemExit(0),
]


def use(both: ModulatedCamera) -> None:
    """Make every call of a run."""
    both.read(0.01)
    both.stop()
    both.close()
    both.open()
    both.start()
    both.read(0.01)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("name", ["open", "load", "arm", "start", "counters"])
def test_modulator_that_fails_in_mid_run_is_lost(name: str, failure: BaseException) -> None:
    both, modulator = with_failing_modulator()
    frames(both, 1)
    modulator.failure, modulator.fails_in = failure, name
    with pytest.raises(CameraLost, match="mask modulator"):
        use(both)
    modulator.fails_in = ""
    both.stop()
    both.close()
    assert len(frames(both, 1)) == 1


@pytest.mark.parametrize("name", ["stop", "close"])
def test_modulator_that_fails_to_stop_leaves_no_camera_running(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    both, modulator = with_failing_modulator()
    frames(both, 1)
    modulator.failure, modulator.fails_in = OSError("USB"), name
    both.stop()
    both.close()
    assert "does not respond" in caplog.text
    with pytest.raises(RuntimeError, match="open"):
        both.camera.read(0.01)


def test_wrong_patterns_at_the_first_opening_are_wrong_input() -> None:
    both, modulator = with_failing_modulator()
    modulator.failure, modulator.fails_in = ConfigError("patterns of another size"), "load"
    with pytest.raises(ConfigError, match="another size"):
        both.open()


def test_advance_of_an_earlier_series_does_not_hold_in_the_next() -> None:
    both = modulated(camera={"noise": False}, modulator={"faults": {"lost_pulses": [1]}})
    frames(both, 3)
    for _ in range(2):
        both.observe({CORRECTIONS: 0, STATE: 0, FIRST_MASK: 1})
    assert error_of(both, frames(both, 2)[-1]) < 0.005
    both.stop()
    both.start()
    (again,) = frames(both, 1)
    assert error_of(both, again) < 0.005
    assert (again.chunks[ADVANCE], again.chunks[CORRECTIONS]) == (0, 2)


def test_delay_that_no_device_can_make_is_given_up() -> None:
    both = modulated(camera={"noise": False}, modulator={"latency_us": 100.0})
    timing, opened = both.camera.timing, both.modulator.open
    both.camera.timing = lambda: replace(timing(), max_delay_us=0.0)
    both.modulator.open = lambda: replace(opened(), max_delay_us=0.0)
    frames(both, 1)
    before = both.camera.trigger_now()
    # As a camera whose delay cannot be read while it exposes freely: then the plan fails half way.
    both.camera.timing = lambda: replace(
        timing(), max_delay_us=0.0 if both.camera.trigger_now().source == "free" else 1e6
    )
    for corrections in (0, 0, 0, 0, 0, 1, 1, 1, 1, 1):
        both.observe({CORRECTIONS: corrections, STATE: 0, LATE: -0.1})
    (frame,) = frames(both, 1)
    assert (frame.chunks[DELAY], frame.chunks[CORRECTIONS]) == (0, 1)
    assert both.camera.trigger_now() == before


@pytest.mark.parametrize(("master", "name"), [("modulator", "delay_us"), ("camera", "exposure_us")])
def test_delay_that_the_camera_does_not_keep_is_given_up(master: str, name: str) -> None:
    both = modulated(camera={"noise": False}, master=master)
    arm = both.camera.arm
    both.camera.arm = lambda trigger: replace(
        arm(trigger), **{name: getattr(trigger, name) // 250 * 250}
    )
    frames(both, 1)
    for _ in range(5):
        both.observe({CORRECTIONS: 0, STATE: 0, LATE: -0.1})
    (frame,) = frames(both, 1)
    assert (frame.chunks[DELAY], frame.chunks[CORRECTIONS]) == (0, 1)


def test_corrections_are_switched_off_by_the_rig() -> None:
    both = modulated(
        camera={"noise": False}, modulator={"faults": {"lost_pulses": [1]}}, correct=False
    )
    frames(both, 2)
    for _ in range(4):
        both.observe({CORRECTIONS: 0, STATE: 0, FIRST_MASK: 1})
    (late,) = frames(both, 1)
    assert error_of(both, late, rolled=1) < 0.005
    assert (late.chunks[ADVANCE], late.chunks[CORRECTIONS]) == (0, 0)


def test_readout_is_that_of_the_planned_exposure() -> None:
    both = modulated(modulator={"pulse": "per_cycle"})
    timing, now = both.camera.timing, both.camera.trigger_now
    # A camera that exposes for 100 µs at first and reads out for 5 ms, during the next exposure if
    # that is longer.
    both.camera.timing = lambda: replace(
        timing(), readout_us=max(0.0, 5000.0 - (now().exposure_us or 100.0))
    )
    both.open()
    assert (both.plan.mask.gap_us, both.plan.period_us) == (0.0, 8000.0)


def test_frame_period_is_that_of_the_armed_camera() -> None:
    both = modulated()
    opened, now = both.camera.open, both.camera.trigger_now
    # A camera that runs at 30 Hz until it waits for pulses.
    both.camera.open = lambda: replace(
        opened(), frame_period_ns=33_000_000 if now().source == "free" else None
    )
    assert both.open().frame_period_ns == 8_000_000
