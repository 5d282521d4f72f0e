"""The shipped video network is not much better on the clips that it was trained on than on others."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from sci_stream.recon.denoisers.variants import shipped_weights

pytest.importorskip("av")

REPOSITORY = Path(__file__).parents[4]


@pytest.mark.slow
def test_video_lite_gain_on_training_clips_is_as_stated(data_dir: Path) -> None:
    folder = data_dir / "video_train" / "free"
    if not folder.is_dir():
        pytest.skip(f"no clips: {folder}")
    gain_db = runpy.run_path(str(REPOSITORY / "research" / "video_prior.py"))["gain_db"]
    card = shipped_weights("video-lite").with_suffix(".md").read_text()
    stated_db = float(re.findall(r"at most ([\d.]+) dB more on the clips below", card)[0])
    gains: dict[bool, list[float]] = {True: [], False: []}
    for path in sorted(folder.glob("*.mkv")):
        gains[f"`{path.stem}`" in card].append(gain_db(path))
    assert len(gains[True]) == 12
    assert len(gains[False]) >= 5
    assert np.mean(gains[True]) - np.mean(gains[False]) <= stated_db
