"""Single frames in files, read back by other libraries."""

from __future__ import annotations

import csv
from pathlib import Path

import cv2
import numpy as np
import pytest

from sci_stream.errors import InputError, StorageError
from sci_stream.model import Array, CameraFrame
from sci_stream.tools.cameras import write_frame, write_frames


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("form", ["npy", "tiff", "png"])
def test_counts_round_trip(tmp_path: Path, form: str, dtype: type) -> None:
    counts = np.random.default_rng(1).integers(0, np.iinfo(dtype).max, (7, 5), endpoint=True).astype(dtype)
    path = tmp_path / f"a.{form}"
    write_frame(path, counts)
    read: Array | None = np.load(path) if form == "npy" else cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert read is not None
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, counts)


def test_unsupported_counts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"float32 cannot be written to a\.png"):
        write_frame(tmp_path / "a.png", np.zeros((2, 2), np.float32))
    with pytest.raises(InputError, match="expected npy, tiff, png"):
        write_frame(tmp_path / "a.bmp", np.zeros((2, 2), np.uint8))


def test_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file/out cannot be written"):
        write_frames(tmp_path / "file" / "out", [], "npy")


def test_table_lists_ids_times_and_chunk_data(tmp_path: Path) -> None:
    counts = np.zeros((2, 2), np.uint8)
    frames = [
        CameraFrame(counts, 7, 100, 1000, chunks={"ExposureTime": 1.5}),
        CameraFrame(counts, None, None, 2000),
    ]
    write_frames(tmp_path / "out", frames, "npy")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["000000.npy", "000001.npy", "frames.csv"]
    with (tmp_path / "out" / "frames.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["frame_id"] for row in rows] == ["7", ""]
    assert rows[0]["ExposureTime"] == "1.5"
    assert [row["host_time_ns"] for row in rows] == ["1000", "2000"]
