from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from sci_stream.nodes.acquire.trigger_monitor import TriggerMonitor

PERIOD_NS = 10_000_000
RANDOM = np.random.default_rng(8)


def watch(
    times: list[int | None], missed: dict[int, int] | None = None, announced: int | None = None
) -> dict[str, int]:
    """Return the faults of frames at these times, and the triggers that they missed."""
    monitor, counts = TriggerMonitor(), Counter[str]()
    for n, time in enumerate(times):
        fault, triggers = monitor.check(time, (missed or {}).get(n, 0), announced)
        counts += Counter({fault: 1, "triggers": triggers} if fault else {})
    return dict(counts)


def every(n: int, start: int = 0, periods: int = 1) -> list[int]:
    return [start + i * periods * PERIOD_NS for i in range(n)]


def test_periodic_frames_are_not_reported() -> None:
    jittered = [time + int(0.05 * PERIOD_NS * RANDOM.standard_normal()) for time in every(500)]
    assert watch(jittered) == {}


def test_pause_without_id_gap_is_missed_triggers() -> None:
    times = every(20) + every(5, start=22 * PERIOD_NS)
    assert watch(times) == {"trigger_missed": 1, "triggers": 2}


def test_pause_with_id_gap_is_not_reported() -> None:
    assert watch(every(20) + every(5, start=22 * PERIOD_NS), missed={20: 2}) == {}


def test_pause_of_half_a_period_more_is_no_missed_trigger() -> None:
    assert watch(every(20) + every(5, start=int(21.5 * PERIOD_NS))) == {}


def test_every_second_trigger_missed_is_counted_to_the_end() -> None:
    times = every(20) + every(25, start=21 * PERIOD_NS, periods=2)
    assert watch(times) == {"trigger_missed": 25, "triggers": 25}


def test_missed_triggers_from_the_start_contradict_the_plan() -> None:
    assert watch(every(30, periods=2), announced=PERIOD_NS)["trigger_missed"] == 26


def test_rate_that_stays_lower_is_another_rate(caplog: pytest.LogCaptureFixture) -> None:
    times = every(20) + every(200, start=21 * PERIOD_NS, periods=2)
    assert watch(times)["triggers"] < 40
    assert "frames come every 20 ms and no longer every 10 ms" in caplog.text


def test_early_exposure_is_reported() -> None:
    early = every(20)[-1] + PERIOD_NS // 10
    assert watch([*every(20), early, *every(5, start=20 * PERIOD_NS)]) == {"trigger_early": 1}


def test_frame_in_time_after_a_late_one_is_not_early() -> None:
    times = every(30)
    times[20] += int(0.45 * PERIOD_NS)
    assert watch(times) == {}


@pytest.mark.parametrize("times", [[5, 5, 5], [3 * PERIOD_NS, PERIOD_NS, PERIOD_NS]])
def test_clock_that_does_not_advance_is_reported(times: list[int]) -> None:
    assert watch(times) == {"clock": 2}


def test_manually_triggered_frames_have_no_period() -> None:
    times = np.cumsum(RANDOM.integers(1, 100, 40)) * PERIOD_NS
    assert watch([int(time) for time in times]) == {}


def test_manual_triggers_slower_than_announced_are_not_missed() -> None:
    random = np.random.default_rng(3)
    usual = random.normal(20.0, 0.6, 300)
    paused = np.where(random.random(300) < 0.1, 2.0, 1.0) * usual
    times = [int(time) for time in np.cumsum(PERIOD_NS * paused)]
    assert watch(times, announced=PERIOD_NS) == {}


def test_frames_as_fast_as_the_host_allows_are_no_rhythm() -> None:
    """Bursts at the pace of a loop, and pauses whenever the host does something else."""
    random = np.random.default_rng(1)
    in_burst = random.random(4000) < 0.55
    periods = PERIOD_NS * np.where(in_burst, 1.0, random.uniform(0.3, 3.0, 4000))
    assert watch([int(time) for time in np.cumsum(periods)]) == {}


def test_frames_without_a_time_are_not_checked() -> None:
    assert watch([None] * 20) == {}


@pytest.mark.parametrize("restarts", [True, False])
def test_restart_or_another_announced_period_is_no_pause(restarts: bool) -> None:
    monitor = TriggerMonitor()
    for time in every(20):
        monitor.check(time, 0, None)
    if restarts:
        monitor.restart()
    announced = None if restarts else 3 * PERIOD_NS
    found = [
        monitor.check(time, 0, announced) for time in every(20, start=90 * PERIOD_NS, periods=3)
    ]
    assert set(found) == {("", 0)}
