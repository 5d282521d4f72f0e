"""What ``bench page`` measures of a viewer."""

from __future__ import annotations

import pytest

from sci_stream_lab.bench.speed.page import bench


def test_h264_needs_a_fraction_of_jpeg_at_similar_quality() -> None:
    pytest.importorskip("av")
    lines: list[str] = []
    result = bench(
        size_px=128, rate_hz=30.0, snapshots=3, denoiser="tv", device="cpu", progress=lines.append
    )
    jpeg, h264 = result.viewers
    assert len(lines) == 3
    assert h264.total_mbit_s < jpeg.total_mbit_s / 4
    assert h264.coded_mbit_s == pytest.approx(jpeg.coded_mbit_s / 15, rel=0.01)
    assert h264.psnr_db > 33
