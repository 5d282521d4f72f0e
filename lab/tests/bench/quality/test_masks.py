"""What ``masks advise`` says in bright light."""

from __future__ import annotations

from pathlib import Path

import pytest

from sci_stream.cli import app
from sci_stream.config import parse_rig
from sci_stream_lab.bench.quality.masks import bench

RIG = '[reconstruct]\ndenoiser = "tv"\niterations = 4\ndevices = ["cpu"]\n'


def test_sparse_masks_clip_less_and_win_in_bright_light() -> None:
    lines: list[str] = []
    result = bench(
        parse_rig(RIG), ([8], [0.5, 0.25], [1.0]), ["fast"], exposure=3.0, size_px=64, snapshots=1,
        progress=lines.append,
    )  # fmt: skip
    best, other = result.choices
    assert (best.open_share, other.open_share) == (0.25, 0.5)
    assert best.clipped < other.clipped
    assert best.psnr_db > other.psnr_db
    assert len(lines) == 2


@pytest.mark.parametrize(("exposure", "is_named"), [("10", True), ("0.5", False)])
def test_advice_names_one_hot_masks_where_all_others_clip(
    exposure: str, is_named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rig.toml").write_text(RIG)
    light = ["--exposure", exposure, "--open", "0.5,0.25", "--size", "64", "--snapshots", "1"]
    app(["masks", "advise", str(tmp_path / "rig.toml"), *light], standalone_mode=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "clipped" in said
    assert ("masks make --kind one-hot" in said) == is_named
