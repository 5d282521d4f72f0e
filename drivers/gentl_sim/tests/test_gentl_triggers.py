"""Triggered frames: by software, by a line, and never while the sensor is busy."""

from __future__ import annotations

import numpy as np
import pytest

from drivers.gentl_sim.tests.bench import Bench


@pytest.fixture(autouse=True)
def small(bench: Bench) -> None:
    bench.set(Width=16, Height=2, ExposureTime=100.0)


def test_software_trigger_gives_one_frame(bench: Bench) -> None:
    bench.trigger(TriggerSource="Software")
    bench.start()
    for index in range(5):
        assert bench.next(0.02) is None
        bench.set(TriggerSoftware=None)
        got = bench.next()
        assert got is not None
        assert got.frame_id == index
    assert bench.get("SimTriggersIgnoredCount") == 0


def test_triggers_during_an_exposure_are_ignored_and_counted(bench: Bench) -> None:
    bench.set(ExposureTime=300e3)
    bench.trigger(TriggerSource="Software")
    bench.start()
    for _ in range(4):
        bench.set(TriggerSoftware=None)
    assert bench.next() is not None
    assert bench.get("SimTriggersIgnoredCount") == 3
    assert bench.next(0.4) is None


@pytest.mark.parametrize(
    ("activation", "frames_per_pulse"), [("RisingEdge", 1), ("FallingEdge", 1), ("AnyEdge", 2)]
)
def test_line_triggers_at_its_edges(bench: Bench, activation: str, frames_per_pulse: int) -> None:
    bench.set(SimLinePeriod=4000.0)
    bench.trigger(TriggerSource="Line1", TriggerActivation=activation)
    bench.start(buffers=32)
    stamps = np.array([got.timestamp_ns for got in bench.take(20)])
    assert set(np.diff(stamps)) == {4_000_000 // frames_per_pulse}
    phase = {"RisingEdge": 0, "FallingEdge": 2_000_000, "AnyEdge": 0}[activation]
    assert set((stamps - phase) % (4_000_000 // frames_per_pulse)) == {0}


def test_delay_moves_the_exposure(bench: Bench) -> None:
    bench.set(SimLinePeriod=4000.0)
    bench.trigger(TriggerSource="Line1", TriggerDelay=250.0)
    bench.start(buffers=32)
    assert {got.timestamp_ns % 4_000_000 for got in bench.take(5)} == {250_000}


def test_exposure_longer_than_the_line_period_skips_pulses(bench: Bench) -> None:
    bench.set(SimLinePeriod=4000.0, ExposureTime=9000.0)  # with its readout this takes 2.3 periods
    bench.trigger(TriggerSource="Line1")
    bench.start(buffers=32)
    stamps = [got.timestamp_ns for got in bench.take(10)]
    assert set(np.diff(stamps)) == {12_000_000}
    bench.set(AcquisitionStop=None)
    exposed = bench.get("SimExposedCount")
    assert bench.get("SimTriggersIgnoredCount") in {
        2 * (exposed - 1),
        2 * exposed,
    }  # one may have just begun


@pytest.mark.parametrize(
    "features", [{"SimLinePeriod": 0.0}, {"LineSelector": "Line1", "LineMode": "Output"}]
)
def test_line_without_pulses_triggers_nothing(bench: Bench, features: dict[str, object]) -> None:
    bench.set(
        SimLinePeriod=4000.0,
        **{key: value for key, value in features.items() if key != "SimLinePeriod"},
    )
    if "SimLinePeriod" in features:
        bench.set(SimLinePeriod=0.0)
    bench.trigger(TriggerSource="Line1")
    bench.start()
    assert bench.next(0.05) is None


def test_pulses_that_start_during_a_run_trigger(bench: Bench) -> None:
    bench.trigger(TriggerSource="Line1")
    bench.start(buffers=32)
    assert bench.next(0.05) is None
    bench.set(TimestampLatch=None)
    bench.set(SimLinePeriod=5000.0)
    first = bench.take(1)[0]
    assert (first.frame_id, first.timestamp_ns > bench.get("TimestampLatchValue")) == (0, True)


def test_trigger_width_exposes_while_the_line_is_high(bench: Bench) -> None:
    bench.set(SimLinePeriod=4000.0, ExposureMode="TriggerWidth", ChunkModeActive=True)
    bench.set(ChunkSelector="ExposureTime", ChunkEnable=True)
    bench.trigger(TriggerSource="Line1")
    bench.start(buffers=32)
    assert bench.take(1)[0].data[-8:].view("<f8")[0] == 2000.0


def test_acquisition_start_trigger_starts_free_running(bench: Bench) -> None:
    bench.set(
        AcquisitionFrameRate=500.0, TriggerSelector="AcquisitionStart", TriggerSource="Software"
    )
    bench.set(TriggerMode="On")
    bench.start()
    assert bench.next(0.05) is None
    bench.set(TriggerSoftware=None)
    assert [got.frame_id for got in bench.take(5)] == list(range(5))


def test_output_line_shows_the_exposure(bench: Bench) -> None:
    bench.set(
        ExposureTime=200e3, LineSelector="Line2", LineMode="Output", LineSource="ExposureActive"
    )
    bench.trigger(TriggerSource="Software")
    bench.start()
    assert bench.get("LineStatus") is False
    bench.set(TriggerSoftware=None)
    while not bench.get("LineStatus"):  # until the exposure has begun
        pass
    assert bench.next() is not None
    assert bench.get("LineStatus") is False
    bench.set(LineInverter=True)
    assert bench.get("LineStatus") is True
