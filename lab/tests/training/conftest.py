"""Folders of small images that resemble photographs, and of small clips."""

from __future__ import annotations

from pathlib import Path

import cv2
import pytest

from lab.tests.training.pictures import picture
from sci_stream.files.video_output import VideoFormat, write_film
from sci_stream_lab.training.settings import TrainingSettings


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Write five images in the usual formats of photographs."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    for n, suffix in enumerate(["png", "png", "jpg", "webp", "png"]):
        assert cv2.imwrite(str(folder / f"{n}.{suffix}"), picture(n))
    return folder


@pytest.fixture
def small() -> TrainingSettings:
    """Return settings for the small network with steps of a millisecond or two."""
    return TrainingSettings(batch=2, patch_px=16, warmup_steps=2, validate_every=4, ema_decay=0.9)


def write_clip(
    path: Path, seed: int, *, n_frames: int = 24, height: int = 36, width: int = 40
) -> None:
    """Write a clip of a picture that moves to the left, without loss."""
    grey = picture(seed, height, width + n_frames)[..., 1]
    write_film(path, (grey[:, t : t + width] for t in range(n_frames)), 25, VideoFormat.FFV1)


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """Write four clips."""
    pytest.importorskip("av")
    folder = tmp_path / "clips"
    folder.mkdir()
    for n in range(4):
        write_clip(folder / f"{n}.mkv", n)
    return folder
