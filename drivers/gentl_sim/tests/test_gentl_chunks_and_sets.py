"""Chunk data of frames, and user sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from genicam import gentl

from drivers.gentl_sim.tests.bench import PATIENCE_S, Bench, camera
from sci_stream_gentl_sim.frames import Header, write_frames

CHUNKS = ("FrameID", "Timestamp", "ExposureTime", "Gain")


def enable(bench: Bench, *chunks: str) -> None:
    bench.set(Width=16, Height=2, AcquisitionFrameRate=200.0, ChunkModeActive=True)
    for chunk in CHUNKS:
        bench.set(ChunkSelector=chunk, ChunkEnable=chunk in chunks)


def test_chunks_belong_to_their_frame(bench: Bench) -> None:
    enable(bench, *CHUNKS)
    bench.set(ExposureTime=123.0, Gain=4.5, SimFrameIdFirst=77)
    bench.start()
    for index in range(5):
        with bench.acquirer.fetch(timeout=PATIENCE_S) as buffer:
            assert bench.get("ChunkFrameID") == buffer.module.frame_id == 77 + index
            assert bench.get("ChunkTimestamp") == buffer.timestamp_ns
            assert (bench.get("ChunkExposureTime"), bench.get("ChunkGain")) == (123.0, 4.5)


def test_only_enabled_chunks_follow_the_image(bench: Bench) -> None:
    enable(bench, "FrameID", "Gain")
    bench.set(Gain=2.0)
    assert bench.get("PayloadSize") == 16 * 2 + 8 + 8
    bench.start()
    got = bench.take(2)[1]
    assert got.data.size == 16 * 2 + 8 + 8
    assert int(got.data[32:40].view("<u8")[0]) == got.frame_id
    assert float(got.data[40:48].view("<f8")[0]) == 2.0


def test_changed_exposure_time_shows_in_the_chunks(bench: Bench) -> None:
    enable(bench, "ExposureTime")
    bench.start(buffers=64)
    bench.take(1)
    bench.set(ExposureTime=50.0)
    times = [float(got.data[-8:].view("<f8")[0]) for got in bench.take(30)]
    assert times[-1] == 50.0
    assert set(times) <= {1000.0, 50.0}


def test_no_chunks_without_chunk_mode(bench: Bench) -> None:
    enable(bench, *CHUNKS)
    bench.set(ChunkModeActive=False)
    bench.start()
    assert bench.take(1)[0].data.size == 32


def test_image_chunk_cannot_be_disabled(bench: Bench) -> None:
    bench.set(ChunkSelector="Image")
    with pytest.raises(gentl.InvalidValueException, match="cannot be left away"):
        bench.set(ChunkEnable=False)
    assert bench.get("ChunkEnable") is True


def test_user_set_restores_saved_values_across_close(gentl_producer: Path) -> None:
    with camera(gentl_producer, "SIM0002") as bench:
        bench.set(PixelFormat="Mono12p", Width=64, OffsetX=100, ExposureTime=321.0)
        bench.trigger(TriggerSource="Line1")
        bench.set(UserSetSelector="UserSet1", UserSetSave=None, UserSetDefault="UserSet1")
        bench.set(UserSetSelector="Default", UserSetLoad=None)
        assert (bench.get("Width"), bench.get("OffsetX"), bench.get("TriggerMode")) == (
            1280,
            0,
            "Off",
        )
    with camera(gentl_producer, "SIM0002") as bench:  # it starts with the default set
        names = ("PixelFormat", "Width", "OffsetX", "ExposureTime", "TriggerMode", "TriggerSource")
        assert tuple(map(bench.get, names)) == ("Mono12p", 64, 100, 321.0, "On", "Line1")
        bench.set(UserSetDefault="Default")
    with camera(gentl_producer, "SIM0002") as bench:
        assert bench.get("Width") == 1280


def test_factory_set_is_read_only(bench: Bench) -> None:
    bench.set(UserSetSelector="Default")
    with pytest.raises(gentl.AccessDeniedException, match="factory"):
        bench.set(UserSetSave=None)


def test_user_set_of_another_scene_is_refused(bench: Bench, tmp_path: Path) -> None:
    bench.set(UserSetSelector="UserSet2", UserSetSave=None)
    header = Header(32, 16, 1, 12, None, black_dn=64.0, exposure_us=1000.0, rate_hz=100.0)
    write_frames(tmp_path / "scene.sciframes", header, np.zeros((1, 16, 32), np.uint16))
    bench.set(SimFramesFile=str(tmp_path / "scene.sciframes"))
    with pytest.raises(gentl.InvalidValueException, match="another size"):
        bench.set(UserSetLoad=None)
    assert (bench.get("Width"), bench.get("Height")) == (32, 16)
