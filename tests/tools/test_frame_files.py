"""Grabbed frames in files, read back by another library."""

from __future__ import annotations

import csv
from pathlib import Path

import cv2
import numpy as np
import pytest

from sci_stream.errors import StorageError
from sci_stream.model import CameraFrame
from sci_stream.tools.cameras import write_frames


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_counts_round_trip(tmp_path: Path, dtype: type) -> None:
    counts = np.random.default_rng(1).integers(0, 255, (7, 5), endpoint=True).astype(dtype)
    write_frames(tmp_path / "out", [CameraFrame(counts, 0, 0, 0)])
    read = cv2.imread(str(tmp_path / "out" / "000000.tiff"), cv2.IMREAD_UNCHANGED)
    assert read is not None
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, counts)


def test_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file does not exist"):
        write_frames(tmp_path / "file" / "out", [])


def test_table_lists_ids_times_and_chunk_data(tmp_path: Path) -> None:
    counts = np.zeros((2, 2), np.uint8)
    frames = [
        CameraFrame(counts, 7, 100, 1000, chunks={"ExposureTime": 1.5}),
        CameraFrame(counts, None, None, 2000),
    ]
    write_frames(tmp_path / "out", frames)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "000000.tiff",
        "000001.tiff",
        "frames.csv",
    ]
    with (tmp_path / "out" / "frames.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["frame_id"] for row in rows] == ["7", ""]
    assert rows[0]["ExposureTime"] == "1.5"
    assert [row["host_time_ns"] for row in rows] == ["1000", "2000"]
    write_frames(tmp_path / "out", frames[:1], replace=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "000000.tiff",
        "frames.csv",
    ]
