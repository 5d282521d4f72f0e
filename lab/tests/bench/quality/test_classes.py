"""Solvers side by side, by class of masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io

from lab.tests.training.conftest import write_clip
from sci_stream.errors import ConfigError
from sci_stream_lab.bench.quality.classes import bench, chosen_clips, solvers_of


def test_each_solver_is_measured_in_each_chosen_class(tmp_path: Path) -> None:
    pytest.importorskip("av")
    for n in range(3):
        write_clip(tmp_path / f"{n}.mkv", n)
    masks = np.random.default_rng(0).random((36, 40, 6))
    scipy.io.savemat(tmp_path / "real.mat", {"mask": masks, "meas": (masks * 0.5).sum(-1)})
    solvers = solvers_of(None, ["identity:1", "tv:3"])[1:]
    only = ["random 16", "wrong gain", "measured", "capture"]
    clips = chosen_clips(tmp_path, ["0", "2"], 9)
    result = bench(
        solvers,
        "cpu",
        lambda _line: None,
        clips=clips,
        captures=[tmp_path / "real.mat"],
        size=32,
        only=only,
    )
    assert [(figure.name, figure.snapshots) for figure in result.figures[::2]] == [
        ("random 16", 2),
        ("wrong gain", 2),
        ("measured real", 2),
        ("capture real", 1),
    ]
    for prior, tv in zip(result.figures[::2], result.figures[1::2], strict=True):
        assert (prior.solver, tv.solver) == ("identity:1", "tv:3")
        assert (prior.texture is None) == (prior.psnr_db is not None) == (prior.gain_db is not None)
    assert result.figures[0].gain_db == result.figures[0].psnr_db - result.figures[1].psnr_db  # type: ignore[operator]  # checked above


def test_clips_are_chosen_by_name_or_at_equal_distances(tmp_path: Path) -> None:
    for n in range(5):
        (tmp_path / f"{n}.mkv").touch()
    assert [path.stem for path in chosen_clips(tmp_path, [], 3)] == ["0", "2", "4"]
    with pytest.raises(ConfigError, match="lacks clips"):
        chosen_clips(tmp_path, ["7"], 3)
    with pytest.raises(ConfigError, match="DENOISER:ITERATIONS"):
        solvers_of(None, ["tv"])
