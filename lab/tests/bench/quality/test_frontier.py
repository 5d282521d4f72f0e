"""The frontier has a point for each number of steps, cold and warm, and a plot."""

from __future__ import annotations

from pathlib import Path

import pytest

from sci_stream.config import ReconstructSection
from sci_stream.errors import FileFormatError
from sci_stream_lab.bench import datasets
from sci_stream_lab.bench.quality import frontier

TV = ReconstructSection(solver="tv")


def test_frontier_compares_steps_cold_and_warm(tmp_path: Path) -> None:
    footage = [
        datasets.filmed_scene(scene, snapshots=3, width_px=32, height_px=32, n_frames=4)
        for scene in ("slow", "fast")
    ]
    said: list[str] = []
    result = frontier.bench(footage, [TV], "cpu", said.append, steps=(6, 2))
    assert [(point.start, point.steps) for point in result.points] == [
        ("cold", 2), ("cold", 6), ("warm", 2), ("warm", 6),
    ]  # fmt: skip
    fewest, more = result.points[:2]
    assert (fewest.gain_db, fewest.loss_db) == (0.0, 0.0)
    assert more.gain_db == pytest.approx(more.psnr_db - fewest.psnr_db)
    assert more.loss_db >= 0
    assert all(point.lowest_db <= point.psnr_db and point.per_s > 0 for point in result.points)
    assert len(said) == 4
    frontier.plot(result, tmp_path / "frontier.svg")
    assert (tmp_path / "frontier.svg").read_text().count("<use ") >= 4


def test_frontier_needs_a_snapshot_before_another() -> None:
    single = datasets.filmed_scene("slow", snapshots=1, width_px=32, height_px=32, n_frames=4)
    with pytest.raises(FileFormatError, match="two snapshots or more"):
        frontier.bench([single], [TV], "cpu", lambda _line: None)
