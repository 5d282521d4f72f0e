"""Large snapshots from files, tried with small ones."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from sci_stream.errors import FileFormatError
from sci_stream_lab.bench.speed.large_scale import bench, stated_bytes
from sci_stream_lab.bench.speed.solve_times import Size

CPU = torch.device("cpu")


def test_large_bench_measures_memory_time_and_quality(tmp_path: Path) -> None:
    lines: list[str] = []
    result = bench(
        [Size(48, 64, 4, bayer=True), Size(4_000_000, 4_000_000, 8)], "tv", 4, "cpu", lines.append
    )
    solved, skipped = result.rows
    assert solved.iterations == 4
    assert solved.seconds is not None
    assert solved.psnr_db is not None
    assert solved.psnr_db > 20
    assert solved.peak_mib is not None
    assert 50 < solved.peak_mib < 2 * solved.stated_mib
    assert "MiB are free" in skipped.skipped
    assert skipped.peak_mib is None


def test_large_bench_with_a_short_film_names_it(tmp_path: Path) -> None:
    film = tmp_path / "film.avi"
    writer = cv2.VideoWriter(str(film), cv2.VideoWriter.fourcc(*"MJPG"), 25, (32, 24))
    for _ in range(2):
        writer.write(np.zeros((24, 32, 3), np.uint8))
    writer.release()
    with pytest.raises(FileFormatError, match="too short"):
        bench([Size(48, 64, 4, bayer=True)], "tv", 1, "cpu", lambda _line: None, film=film)


def test_stated_memory_grows_with_the_video() -> None:
    small, large = (stated_bytes(Size(h, 3840, 48, bayer=True), CPU, "tv") for h in (1080, 2160))
    assert 1.8 < large / small < 2.2


@pytest.mark.parametrize(
    ("height", "width", "measured_mib"), [(1080, 1920, 2858), (2160, 3840, 10213)]
)
def test_stated_memory_covers_what_was_measured(
    height: int, width: int, measured_mib: float
) -> None:
    """Of mosaics of 24 frames, solved on a CPU with total variation."""
    stated_mib = stated_bytes(Size(height, width, 24, bayer=True), CPU, "tv") / 2**20
    assert measured_mib < stated_mib < 1.2 * measured_mib
