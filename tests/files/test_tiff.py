"""TIFF files are read with the values and in the orientation in which they are stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sci_stream.files.media import read_pages

tifffile = pytest.importorskip("tifffile")
PICTURE = np.arange(12 * 10).reshape(12, 10) * 500
DEEP = PICTURE.astype(np.uint16)


def stored(path: Path, array: np.ndarray, **options: object) -> list[np.ndarray]:
    tifffile.imwrite(path / "a.tif", array, **options)
    return read_pages(path / "a.tif")


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_white_is_zero_is_inverted(tmp_path: Path, dtype: type) -> None:
    picture = PICTURE.astype(dtype)
    (read,) = stored(tmp_path, picture, photometric="miniswhite")
    np.testing.assert_array_equal(read, np.iinfo(dtype).max - picture)
    assert read.dtype == dtype


@pytest.mark.parametrize("orientation", range(2, 9))
def test_orientation_tag_is_ignored_and_named(tmp_path: Path, orientation: int) -> None:
    notes: list[str] = []
    tag = (274, 3, 1, orientation, True)
    tifffile.imwrite(tmp_path / "a.tif", DEEP, extratags=[tag])
    (read,) = read_pages(tmp_path / "a.tif", notes.append)
    np.testing.assert_array_equal(read, DEEP)
    assert notes == ["a.tif is read as it is stored: its tag of the orientation is ignored"]


def test_half_precision_is_read(tmp_path: Path) -> None:
    picture = (PICTURE / 7).astype(np.float16)
    np.testing.assert_array_equal(stored(tmp_path, picture)[0], picture)


@pytest.mark.parametrize("samples", [2, 6])
@pytest.mark.parametrize("planes", ["contig", "separate"])
def test_samples_that_are_no_colours_are_frames(tmp_path: Path, samples: int, planes: str) -> None:
    frames = np.stack([DEEP + n for n in range(samples)])
    array = np.moveaxis(frames, 0, -1) if planes == "contig" else frames
    read = stored(tmp_path, array, photometric="minisblack", planarconfig=planes)
    np.testing.assert_array_equal(np.stack(read), frames)
