"""Frames in buffers equal the exposed frames, in every format."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from drivers.gentl_sim.tests.bench import FORMATS, PATIENCE_S, Bench, encode, ramp
from sci_stream.model import BayerPhase
from sci_stream_gentl_sim.frames import Header, write_frames


def packing_of(pixel_format: str) -> str:
    return (
        pixel_format.removeprefix("Mono") if pixel_format.startswith("Mono") else pixel_format[7:]
    )


@pytest.mark.parametrize("pixel_format", FORMATS)
def test_every_pixel_is_exact_in_every_format(bench: Bench, pixel_format: str) -> None:
    bench.set(
        Width=64,
        Height=22,
        OffsetX=1000,
        OffsetY=998,
        PixelFormat=pixel_format,
        AcquisitionFrameRate=800.0,
    )
    bench.start()
    for index, got in enumerate(bench.take(4)):
        expected = encode(ramp(index, 22, 64, x=1000, y=998), packing_of(pixel_format))
        assert got.data.size == bench.get("PayloadSize") == expected.size
        np.testing.assert_array_equal(got.data.reshape(expected.shape), expected)


def run_at_300_hz(bench: Bench, pixel_format: str, frames: int, buffers: int) -> None:
    """Take frames of 512 × 512 and compare each, by lines that were encoded beforehand."""
    bench.set(Width=512, Height=512, PixelFormat=pixel_format, AcquisitionFrameRate=300.0)
    lines = encode(
        np.arange(4096)[:, None] + np.arange(512)[None, :] & 4095, packing_of(pixel_format)
    )
    bench.start(buffers)
    stamps = []
    for index in range(frames):
        got = bench.next()
        assert got is not None
        assert got.frame_id == index
        starts = (3 * np.arange(512) + 17 * index) % 4096
        assert np.array_equal(got.data.reshape(512, -1), lines[starts])
        stamps.append(got.timestamp_ns)
    assert bench.stream_count("StreamLostFrameCount") == 0
    # By the camera's own clock, which this machine's load does not slow down.
    assert np.ptp(stamps) / (frames - 1) == pytest.approx(1e9 / 300, rel=1e-6)


def test_frames_at_300_hz_come_without_a_gap(bench: Bench) -> None:
    run_at_300_hz(bench, "Mono12", frames=200, buffers=200)


@pytest.mark.parametrize("mode", ["OldestFirst", "NewestOnly"])
def test_buffer_handling_mode_decides_which_frames_wait(bench: Bench, mode: str) -> None:
    bench.set(Width=16, Height=16, AcquisitionFrameRate=500.0)
    handling = bench.acquirer.data_streams[0].node_map.StreamBufferHandlingMode
    handling.value = mode
    bench.start(buffers=4)
    deadline_s = time.monotonic() + PATIENCE_S
    while bench.stream_count("StreamStartedFrameCount") < 20:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    got, lost = bench.next(), bench.stream_count("StreamLostFrameCount")
    assert got is not None
    assert (
        (got.frame_id, lost > 0) == (0, True)
        if mode == "OldestFirst"
        else (got.frame_id > 15, lost) == (True, 0)
    )
    with pytest.raises(Exception, match="not writable"):
        handling.value = "OldestFirst"


@pytest.mark.slow
@pytest.mark.parametrize("pixel_format", FORMATS)
def test_2000_frames_at_300_hz_come_without_a_gap(bench: Bench, pixel_format: str) -> None:
    run_at_300_hz(bench, pixel_format, frames=2000, buffers=300)


def test_frames_of_a_file_are_shown_in_a_loop(bench: Bench, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    frames = rng.integers(0, 1024, (3, 16, 24)).astype(np.uint16)
    header = Header(24, 16, 3, 10, BayerPhase.GBRG, black_dn=16.0, exposure_us=500.0, rate_hz=200.0)
    write_frames(tmp_path / "scene.sciframes", header, frames)
    bench.set(SimFramesFile=str(tmp_path / "scene.sciframes"))
    assert (bench.get("Width"), bench.get("Height"), bench.get("PixelFormat")) == (
        24,
        16,
        "BayerGB10",
    )
    assert (
        bench.get("ExposureTime"),
        bench.get("AcquisitionFrameRate"),
        bench.get("BlackLevel"),
    ) == (500, 200, 16)
    assert set(bench.node_map.PixelFormat.symbolics) == {
        f for f in FORMATS if f.startswith(("Mono", "BayerGB"))
    }
    bench.start()
    for index, got in enumerate(bench.take(7)):
        np.testing.assert_array_equal(got.data.view("<u2").reshape(16, 24), frames[index % 3])


def test_exposure_gain_and_black_level_act_on_frames_and_clip(bench: Bench, tmp_path: Path) -> None:
    counts = np.linspace(0, 4095, 16 * 32).round().astype(np.uint16).reshape(1, 16, 32)
    header = Header(32, 16, 1, 12, None, black_dn=64.0, exposure_us=1000.0, rate_hz=100.0)
    write_frames(tmp_path / "scene.sciframes", header, counts)
    bench.set(
        SimFramesFile=str(tmp_path / "scene.sciframes"),
        ExposureTime=3000.0,
        Gain=6.0,
        BlackLevel=100.0,
    )
    bench.start()
    expected = np.clip(np.rint((counts[0] - 64.0) * 3 * 10 ** (6 / 20) + 100), 0, 4095)
    np.testing.assert_array_equal(bench.take(1)[0].data.view("<u2").reshape(16, 32), expected)


def test_other_patterns_are_black_and_white(bench: Bench) -> None:
    bench.set(Width=16, Height=2, PixelFormat="Mono12", AcquisitionFrameRate=500.0)
    for pattern, level in (("Black", 64), ("White", 4095), ("Off", 64)):
        bench.set(TestPattern=pattern)
        bench.start()
        assert set(bench.take(1)[0].data.view("<u2")) == {level}
        bench.stop()


@pytest.mark.parametrize(("mode", "count", "frames"), [("SingleFrame", 5, 1), ("MultiFrame", 3, 3)])
def test_acquisition_of_limited_length_ends(
    bench: Bench, mode: str, count: int, frames: int
) -> None:
    bench.set(
        Width=16,
        Height=2,
        AcquisitionFrameRate=500.0,
        AcquisitionFrameCount=count,
        AcquisitionMode=mode,
    )
    bench.start()
    assert [got.frame_id for got in bench.take(frames)] == list(range(frames))
    assert bench.next(0.1) is None
    assert bench.get("SimExposedCount") == frames


def test_every_start_begins_with_the_same_frame_and_id(bench: Bench) -> None:
    bench.set(Width=16, Height=2, AcquisitionFrameRate=500.0)
    runs = []
    for _ in range(3):
        bench.start()
        runs.append([(got.frame_id, got.data.tobytes()) for got in bench.take(3)])
        bench.stop()
    assert runs[0] == runs[1] == runs[2]


def test_frames_that_are_not_fetched_are_lost_and_counted(bench: Bench) -> None:
    bench.set(Width=16, Height=2, AcquisitionFrameRate=500.0)
    bench.start(buffers=5)
    while bench.get("SimExposedCount") < 20:
        time.sleep(0.005)
    bench.set(AcquisitionStop=None)
    assert [got.frame_id for got in bench.take(5)] == list(range(5))
    started = bench.stream_count("StreamStartedFrameCount")
    assert started >= 20
    assert bench.stream_count("StreamLostFrameCount") == started - 5


def test_timestamps_count_from_power_on_or_by_ptp_in_unix_time(bench: Bench) -> None:
    bench.set(Width=16, Height=2, AcquisitionFrameRate=500.0, TimestampLatch=None)
    latched = bench.get("TimestampLatchValue")
    assert bench.get("GevTimestampValue") == latched
    bench.start()
    assert latched < bench.take(1)[0].timestamp_ns < latched + 3600 * 10**9
    bench.stop()
    bench.set(PtpEnable=True)
    while bench.get("PtpStatus") != "Slave":
        time.sleep(0.01)
    before_ns = time.time_ns()
    bench.start()
    assert before_ns < bench.take(1)[0].timestamp_ns < time.time_ns()
