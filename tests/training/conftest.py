"""A folder of small images that resemble photographs."""

from __future__ import annotations

from pathlib import Path

import cv2
import pytest

from sci_stream.training.settings import TrainingSettings
from tests.training.pictures import picture


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
