"""Render the clips of the simulated camera: ``python -m sci_stream_lab.scenes [FOLDER]``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sci_stream.files.video_output import VideoFormat, write_film
from sci_stream.model import U8
from sci_stream_drivers.simulated import scenes
from sci_stream_drivers.simulated.textures import SRGB_TO_LINEAR, Image
from sci_stream_lab.scenes.events import make_event

# The largest picture of a demo.
_SIZE_PX = 512
_FPS = 25.0
# Whole snapshots of eight frames. The splash begins again after 200, the balloon after 130.
CLIP_FRAMES = {"splash": 200, "fan": 136, "drops": 120, "balloon": 128}
_BETWEEN_CODES = (SRGB_TO_LINEAR[:-1] + SRGB_TO_LINEAR[1:]) / 2


def frames(name: str, size_px: int = _SIZE_PX) -> Iterator[U8]:
    """Yield the pictures of an event, (size, size, 3) sRGB."""
    scene = make_event(name, (size_px, size_px), 1.0, seed=0)
    for time in range(CLIP_FRAMES[name]):
        yield as_srgb(scene.render(float(time)))


def as_srgb(light: Image) -> U8:
    """Return linear light as 8-bit sRGB."""
    return np.searchsorted(_BETWEEN_CODES, light).astype(np.uint8)


def main() -> None:
    """Write all clips into a folder, by default that of the simulated camera."""
    package = Path(scenes.__file__).parent / "clips"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else package
    for name in CLIP_FRAMES:
        write_film(folder / f"{name}.mp4", frames(name), _FPS, VideoFormat.MP4)


if __name__ == "__main__":
    main()
