"""What ``masks advise`` says in bright light."""

from __future__ import annotations

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
