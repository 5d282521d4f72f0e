from __future__ import annotations

import numpy as np
import pytest

from sci_stream.model import Array, CameraFrame
from sci_stream.nodes.acquire.trigger_monitor import TriggerMonitor

PERIOD_NS = 10_000_000
RANDOM = np.random.default_rng(8)


def frame(time_ns: int | None, counts: Array | None = None) -> CameraFrame:
    noise = RANDOM.integers(60, 70, (16, 16)).astype(np.uint16) if counts is None else counts
    return CameraFrame(noise, None, time_ns, 0)


def watch(times: list[int], missed: dict[int, int] | None = None) -> dict[str, int]:
    watch = TriggerMonitor()
    for n, time in enumerate(times):
        watch.check(frame(time), (missed or {}).get(n, 0))
    return dict(watch.counts)


def every(n: int, start: int = 0) -> list[int]:
    return [start + i * PERIOD_NS for i in range(n)]


def test_periodic_frames_are_not_reported() -> None:
    jittered = [time + int(0.05 * PERIOD_NS * RANDOM.standard_normal()) for time in every(50)]
    assert watch(jittered) == {}


def test_pause_without_id_gap_is_missed_triggers() -> None:
    times = every(20) + every(5, start=22 * PERIOD_NS)
    assert watch(times) == {"trigger_missed": 2}


def test_pause_with_id_gap_is_not_reported() -> None:
    assert watch(every(20) + every(5, start=22 * PERIOD_NS), missed={20: 2}) == {}


def test_early_exposure_is_reported() -> None:
    assert watch(
        [*every(20), every(20)[-1] + PERIOD_NS // 10, *every(5, start=20 * PERIOD_NS)]
    ) == {"trigger_early": 1}


def test_manually_triggered_frames_have_no_period() -> None:
    times = np.cumsum(RANDOM.integers(1, 100, 40)) * PERIOD_NS
    assert watch([int(time) for time in times]) == {}


def test_restart_is_no_pause() -> None:
    watch = TriggerMonitor()
    for time in every(20):
        watch.check(frame(time), 0)
    watch.restart()
    for time in every(20, start=90 * PERIOD_NS):
        watch.check(frame(time), 0)
    assert not watch.counts


@pytest.mark.parametrize(("counts", "found"), [(None, 1), (np.zeros((16, 16), np.uint16), 0)])
def test_identical_frames_are_counted_unless_black_or_clipped(
    counts: Array | None, found: int
) -> None:
    watch = TriggerMonitor()
    same = frame(None, counts)
    for each in (frame(None), same, same, frame(None)):
        watch.check(each, 0)
    assert watch.counts["identical"] == found
