"""Faults of real cameras, on request and counted."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from genicam import gentl
from harvesters.core import Callback

from drivers.gentl_sim.tests.bench import PATIENCE_S, Bench, camera, harvester


def small(bench: Bench) -> None:
    bench.set(Width=16, Height=4, AcquisitionFrameRate=900.0, ExposureTime=100.0)


def count_incomplete(bench: Bench) -> None:
    class Incomplete(Callback):  # type: ignore[misc] # harvesters is untyped
        def emit(self, context: object) -> None:  # noqa: ARG002 - the library passes it
            bench.incomplete += 1

    bench.acquirer.add_callback(bench.acquirer.Events.INCOMPLETE_BUFFER, Incomplete())


def exposed(bench: Bench, count: int) -> None:
    """Wait until a number of frames have been exposed, then stop."""
    while bench.get("SimExposedCount") < count:
        time.sleep(0.01)
    bench.set(AcquisitionStop=None)


def all_that_came(bench: Bench) -> list[int]:
    """Return the ids of the complete frames in the queue."""
    ids = []
    for _ in range(bench.stream_count("StreamOutputBufferCount")):
        got = bench.next()
        if got is not None:
            ids.append(got.frame_id)
    return ids


def test_incomplete_frames_are_marked_and_counted(bench: Bench) -> None:
    small(bench)
    count_incomplete(bench)
    bench.set(SimIncompletePercent=5.0)
    bench.start(buffers=600)
    exposed(bench, 400)
    ids = all_that_came(bench)
    total, broken = bench.get("SimExposedCount"), bench.get("SimIncompleteCount")
    assert bench.incomplete == broken == pytest.approx(0.05 * total, rel=0.5)
    assert len(ids) == len(set(ids)) == total - broken


def test_faults_hit_the_same_frames_in_every_run(bench: Bench) -> None:
    small(bench)
    bench.set(SimIncompletePercent=20.0, SimLostPercent=20.0)
    runs = []
    for _ in range(2):
        bench.start(buffers=200)
        exposed(bench, 60)
        runs.append([frame_id for frame_id in all_that_came(bench) if frame_id < 60])
        bench.stop()
    assert runs[0] == runs[1]
    assert 20 < len(runs[0]) < 55


def test_lost_frames_leave_gaps_in_the_ids_and_in_the_picture(bench: Bench) -> None:
    small(bench)
    bench.set(SimLostPercent=10.0, PixelFormat="Mono12")
    bench.start(buffers=600)
    exposed(bench, 300)
    seen = []
    for _ in range(bench.stream_count("StreamOutputBufferCount")):
        got = bench.next()
        assert got is not None
        assert got.data.view("<u2")[0] == 17 * got.frame_id % 4096  # the scene at that time
        seen.append(got.frame_id)
    gaps = int(np.sum(np.diff([-1, *seen, bench.get("SimExposedCount")]) - 1))
    assert gaps == bench.get("SimLostCount") == pytest.approx(30, rel=0.6)


def test_late_frames_keep_their_timestamps(bench: Bench) -> None:
    small(bench)
    bench.set(AcquisitionFrameRate=500.0, SimDelay=20e3, SimDelayPercent=30.0)
    bench.start(buffers=64)
    stamps = [got.timestamp_ns for got in bench.take(30)]
    assert set(np.diff(stamps)) == {2_000_000}


@pytest.mark.parametrize(
    ("bits", "first", "expected"),
    [("Bits64", 0, [0, 1, 2, 3, 4]), ("Bits64", 65534, [65534, 65535, 65536, 65537, 65538]),
     ("Bits16", 0, [1, 2, 3, 4, 5]), ("Bits16", 65534, [65534, 65535, 1, 2, 3])],
)  # fmt: skip
def test_ids_wrap_as_in_gige_vision(
    bench: Bench, bits: str, first: int, expected: list[int]
) -> None:
    small(bench)
    bench.set(SimFrameIdBits=bits, SimFrameIdFirst=first)
    bench.start()
    assert [got.frame_id for got in bench.take(5)] == expected


def until_back(producer: Path) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        with harvester(producer) as opened:
            if "SIM0001" in [info.serial_number for info in opened.device_info_list]:
                return
    pytest.fail("the camera did not return")


def unplug_after_20_frames(bench: Bench, away_ms: float) -> None:
    small(bench)
    bench.set(SimUnplugAfter=20, SimUnplugTime=away_ms)
    bench.start(buffers=64)
    assert [got.frame_id for got in bench.take(20)] == list(range(20))
    with pytest.raises(gentl.IoException, match="SIM0001 was unplugged"):
        bench.next()


def test_unplugged_camera_fails_and_disappears(own_gentl_producer: Path) -> None:
    with camera(own_gentl_producer) as bench:
        unplug_after_20_frames(
            bench, away_ms=3600e3
        )  # longer than any test: it never returns by itself
        with pytest.raises(gentl.IoException, match="close it, and open it when it is back"):
            bench.get("Width")
        assert bench.acquirer.device.node_map.DeviceIsLost.value is True
        with pytest.raises(gentl.IoException):
            bench.stop()
    with harvester(own_gentl_producer) as opened:
        assert [info.serial_number for info in opened.device_info_list] == ["SIM0002"]


def test_unplugged_camera_returns_restarted(own_gentl_producer: Path) -> None:
    with camera(own_gentl_producer) as bench:
        unplug_after_20_frames(bench, away_ms=100.0)
        with pytest.raises(gentl.IoException):
            bench.stop()
    until_back(own_gentl_producer)
    with camera(own_gentl_producer) as bench:
        assert bench.get("Width") == 1280
        small(bench)
        bench.set(SimUnplugAfter=5)  # it was unplugged as often as SimUnplugLimit allows
        bench.start(buffers=64)
        assert [got.frame_id for got in bench.take(20)] == list(range(20))


def test_undetected_disconnect_delivers_no_frames(gentl_producer: Path) -> None:
    with camera(gentl_producer) as bench:
        small(bench)
        bench.set(SimUnplugSilent=True, SimUnplugTime=0.0)
        bench.start(buffers=64)
        assert bench.next() is not None
        bench.set(SimUnplug=None)
        all_that_came(bench)
        assert bench.next(0.05) is None
        with pytest.raises(gentl.IoException):
            bench.get("Width")
        with pytest.raises(gentl.IoException):
            bench.stop()


def test_reset_camera_returns_with_factory_settings(gentl_producer: Path) -> None:
    with camera(gentl_producer) as bench:
        bench.set(Width=64, DeviceReset=None)
        with pytest.raises(gentl.IoException):
            bench.get("Width")
    until_back(gentl_producer)
    with camera(gentl_producer) as bench:
        assert bench.get("Width") == 1280


@pytest.mark.slow
def test_memory_is_constant_over_starts_and_stops(bench: Bench) -> None:
    process = psutil.Process()
    bench.set(Width=512, Height=512, PixelFormat="Mono12", AcquisitionFrameRate=500.0)

    def cycle() -> int:
        bench.start(buffers=32)
        bench.take(20)
        bench.stop()
        gc.collect()
        return int(process.memory_info().rss)

    for _ in range(5):  # allocators reach their working size
        cycle()
    used = [cycle() for _ in range(20)]
    assert (
        max(used[10:]) - max(used[:10]) < 2 * 2**20
    )  # a leak of one buffer a cycle would be 5 MiB
