"""NeXus metadata and axes of recordings, and the types of the recorded video."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import h5py
import numpy as np
import pytest

import sci_stream
from sci_stream.config import parse_rig
from sci_stream.errors import ConfigError
from sci_stream.imaging.rendering import render
from sci_stream.recording.repair import repair_recording
from sci_stream.recording.writer import RecordingWriter

RIG = """
[experiment]
title = "Falling drops"
operator = "Ada"
sample = "water, 20 °C"
proposal = "p-42"
pixel_size_um = 5.5
"""


def write(path: Path, series, *, rig: str = RIG, **options: object) -> Path:
    info = dataclasses.replace(series.info, rig_toml=rig)
    with RecordingWriter(path, info, series.calibration, **options) as writer:
        for seq in (0, 2):
            writer.write_reconstruction(series.reconstruction(seq))
        writer.close({"acquired": 2, "closed": True})
    return path


def text(node: h5py.Dataset) -> str:
    return node.asstr()[()]


def test_experiment_is_where_nexus_expects_it(tmp_path: Path, series) -> None:
    with h5py.File(write(tmp_path / "run.h5", series)) as file:
        entry = file["entry"]
        assert text(entry["title"]) == "Falling drops"
        assert text(entry["experiment_identifier"]) == "p-42"
        assert (entry["user"].attrs["NX_class"], text(entry["user/name"])) == ("NXuser", "Ada")
        assert (entry["sample"].attrs["NX_class"], text(entry["sample/name"])) == (
            "NXsample",
            "water, 20 °C",
        )
        detector = entry["instrument/detector"]
        assert (detector["x_pixel_size"][()], detector["x_pixel_size"].attrs["units"]) == (
            5.5,
            "um",
        )
        assert detector["count_time"][()] == 0.001  # as calibrated
        assert text(detector["serial_number"]) == "42"
        assert detector["data"].id == file["raw"].id


def test_data_have_axes(tmp_path: Path, series) -> None:
    with h5py.File(write(tmp_path / "run.h5", series)) as file:
        video = file["entry/video"]
        assert list(video.attrs["axes"]) == [".", "frame", "y", "x"]
        assert [len(video[axis]) for axis in ("frame", "y", "x")] == list(video["data"].shape[1:])
        np.testing.assert_allclose(video["x"][:3], [0, 5.5, 11])
        assert list(video["time"][()]) == list(file["rows/host_time_ns"][()])
        assert list(file["entry/raw"].attrs["axes"]) == [".", "y", "x"]


def test_nexusformat_validates_the_recording(tmp_path: Path, series) -> None:
    nexus, validate = (
        pytest.importorskip("nexusformat.nexus"),
        pytest.importorskip("nexusformat.nexus.validate"),
    )
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    validate.logger.addHandler(handler)
    checked = set()

    def check(group) -> None:
        checked.add(group.nxclass)
        validate.get_validator(group.nxclass).validate(group)
        for child in group.entries.values():
            if getattr(child, "entries", None) is not None:
                check(child)

    try:
        check(nexus.nxload(write(tmp_path / "run.h5", series))["entry"])
    finally:
        validate.logger.removeHandler(handler)
    assert {"NXentry", "NXinstrument", "NXdetector", "NXdata", "NXuser", "NXsample"} <= checked
    assert messages == []


def test_rig_without_an_experiment_has_no_user(tmp_path: Path, series) -> None:
    with h5py.File(write(tmp_path / "run.h5", series, rig="")) as file:
        assert "user" not in file["entry"]
        assert file["entry/video/x"].attrs["units"] == "pixel"


@pytest.mark.parametrize("rig", ["", "not a toml file", "[experiment]\nmood = 'good'"])
def test_other_rig_files_are_recorded_too(tmp_path: Path, series, rig: str) -> None:
    with h5py.File(write(tmp_path / "run.h5", series, rig=rig)) as file:
        assert text(file["entry/title"]) == series.info.series


@pytest.mark.parametrize(("dtype", "error"), [("float16", 0), ("float32", 0), ("uint16", 1.6e-5)])
def test_video_types_come_back_as_floats(tmp_path: Path, series, dtype: str, error: float) -> None:
    path = write(tmp_path / "run.h5", series, video_dtype=dtype)
    with h5py.File(path) as file:
        assert file["video"].dtype == dtype
    with sci_stream.open(path) as recording:
        assert (
            recording.video.dtype
            == recording.video[0].dtype
            == ("float16" if dtype == "float16" else "float32")
        )
        np.testing.assert_allclose(recording.video[1], series.video(2), atol=error)
        np.testing.assert_allclose(recording.video[1, 0, 3:5], series.video(2)[0, 3:5], atol=error)


def test_sixteen_bit_video_keeps_highlights_and_has_its_scale(tmp_path: Path, series) -> None:
    bright = np.full(series.video(0).shape, 1.5, np.float32)
    bright[0, 0, :3] = [-0.1, 2.5, np.nan]
    with RecordingWriter(
        tmp_path / "run.h5", series.info, series.calibration, video_dtype="uint16"
    ) as writer:
        writer.write_reconstruction(series.reconstruction(0, video=bright))
        writer.close({})
    with sci_stream.open(tmp_path / "run.h5") as recording:
        video = recording.video[0]
        np.testing.assert_allclose(video[0, 0, :3], [0, 2, 0], atol=1e-4)
        np.testing.assert_allclose(video[1], 1.5, atol=1e-4)
    with h5py.File(tmp_path / "run.h5") as file:
        values = file["entry/video/data"][0] * file["entry/video/data_scaling_factor"][()]
        np.testing.assert_allclose(values, video)


def test_repaired_recordings_keep_metadata(tmp_path: Path, series) -> None:
    info = dataclasses.replace(series.info, rig_toml=RIG)
    parent = {"file": "first.h5", "series": "run-0"}
    writer = RecordingWriter(
        tmp_path / "run.h5", info, series.calibration, video_dtype="uint16", parent=parent
    )
    writer.write_reconstruction(series.reconstruction(0))
    after = writer.next_segment()
    writer.close(continued=after.path.name)
    after.write_reconstruction(series.reconstruction(1))
    after.flush()
    after._close_file()  # as a crash leaves it: without its end
    assert repair_recording(after.path) is not None
    for path in (tmp_path / "run.h5", after.path):
        with sci_stream.open(path) as recording, h5py.File(path) as file:
            assert recording.parent == parent
            assert file["video"].dtype == np.uint16
            assert text(file["entry/user/name"]) == "Ada"
    with sci_stream.open(tmp_path / "run.h5") as recording:
        np.testing.assert_allclose(recording.video[1], series.video(1), atol=1e-4)


def test_rgb_renders_pictures_on_demand(tmp_path: Path, series) -> None:
    with sci_stream.open(write(tmp_path / "run.h5", series)) as recording:
        pictures = recording.rgb()
        assert (pictures.shape, pictures.dtype) == ((2, 3, 16, 24, 3), np.uint8)
        np.testing.assert_array_equal(pictures[1], render(series.video(2), series.info.bayer))
        assert pictures[0, -1].shape == (16, 24, 3)
    mono = dataclasses.replace(series.info, bayer=None, pixel_format="Mono12")
    calibration = dataclasses.replace(series.calibration, bayer=None)
    with RecordingWriter(tmp_path / "mono.h5", mono, calibration) as writer:
        writer.write_reconstruction(series.reconstruction(0))
        writer.close({})
    with sci_stream.open(tmp_path / "mono.h5") as recording:
        grey = recording.rgb()[0]
    assert grey.shape == (3, 16, 24, 3)
    assert np.array_equal(grey[..., 0], grey[..., 2])


def test_rig_chooses_the_type_of_the_recorded_video() -> None:
    rig = parse_rig('[record]\nvideo_dtype = "uint16"', overrides={})
    assert rig.record.video_dtype == "uint16"
    with pytest.raises(ConfigError, match="video_dtype"):
        parse_rig('[record]\nvideo_dtype = "int8"', overrides={})
    with pytest.raises(ConfigError, match="pixel_size_um"):
        parse_rig("[experiment]\npixel_size_um = 0", overrides={})
