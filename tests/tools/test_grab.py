"""Grabbing frames from a camera, and statistics of their timing."""

from __future__ import annotations

import numpy as np
import pytest

from sci_stream.errors import CameraError, InputError
from sci_stream.tools.cameras import Intervals, grab
from tests.drivers.camera_kit import SHOTS, simulated


def test_grab_takes_requested_number_and_closes_camera() -> None:
    camera = simulated(snapshots=10)
    report, frames = grab(camera, 4, keep=True)
    assert report.frames == len(frames) == 4
    assert report.counters["delivered"] == 4
    with pytest.raises(RuntimeError, match="open"):
        camera.start()


def test_exhausted_camera_gives_fewer_frames() -> None:
    report, frames = grab(simulated(), 100)
    assert report.frames == SHOTS
    assert frames == []


def test_gaps_and_repeats_are_counted_over_a_wrap_around() -> None:
    faults = {"drop_probability": 0.3, "duplicate_probability": 0.3, "id_first": 1, "id_last": 50}
    camera = simulated(snapshots=200, faults=faults)
    report, _ = grab(camera, 10_000)
    assert report.repeated == report.counters["duplicated"] > 0
    # Frames that are dropped before the first or after the last leave no gap.
    assert 0 <= report.counters["dropped"] - report.missed <= 3
    assert report.missed > 10
    assert 0 < report.gaps <= report.missed


def test_rate_and_jitter_are_reported_for_both_clocks() -> None:
    report, _ = grab(simulated(snapshot_rate_hz=200, loop_snapshots=1), SHOTS)
    assert report.clock == "simulated"
    assert report.camera is not None
    assert report.camera.median_s == pytest.approx(1 / 200)
    assert report.camera.deviation_s == pytest.approx(0, abs=1e-9)
    assert report.host is not None
    assert report.rate_hz > 0


def test_intervals_are_between_timestamps() -> None:
    assert Intervals.of([0, 1_000_000_000, 3_000_000_000]) == Intervals(1.5, 0.5, 2.0)
    assert Intervals.of([None, 5]) is None


def test_silent_camera_times_out_and_slow_one_does_not() -> None:
    with pytest.raises(CameraError, match=r"No frame within 0\.1 s after 0.*trigger"):
        grab(simulated(trigger="software"), 1, timeout_s=0.1)


def test_too_many_frames_are_refused_before_the_first() -> None:
    with pytest.raises(InputError, match="Too many frames to keep"):
        grab(simulated(), 10**7, keep=True)


def test_progress_is_reported_for_each_frame() -> None:
    result: list[int] = []
    sizes: list[int] = []
    grab(
        simulated(),
        SHOTS,
        progress=result.append,
        opened=lambda found: sizes.append(found.width_px),
    )
    assert result == list(range(1, SHOTS + 1))
    assert sizes == [32]
    assert np.all(np.diff(result) == 1)
