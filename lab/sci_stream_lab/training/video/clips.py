"""Clips to learn from: decoding to grey."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from sci_stream.errors import FileFormatError, require_optional
from sci_stream.files.media import require_video
from sci_stream_lab.training.media import MediaKind, MediaSet, load_media

CLIPS = MediaKind(
    "clip",
    frozenset({".mkv", ".mp4", ".mov", ".avi", ".webm", ".m4v"}),
    sample=(slice(None, None, 4), slice(None, None, 16), slice(None, None, 16)),
)
LEAST_FRAMES = 8
"""Clips of fewer frames are not used."""

# Frames further apart than this in time rarely show anything new.
_MAX_FRAMES = 400

Clip = npt.NDArray[np.uint8]
"""(N, H, W), grey, 0–255."""


def load_clips(folder: Path, *, least_px: int, memory_bytes: int) -> MediaSet:
    """Decode all clips of a folder and its sub-folders to grey; see
    `sci_stream_lab.training.media.load_media`.

    Clips with fewer than ``least_px`` rows or columns, or fewer than `LEAST_FRAMES` frames, are
    skipped. A clip larger than its share of the memory ends early.
    """
    least = (LEAST_FRAMES, least_px, least_px)
    return load_media(CLIPS, folder, read_clip, least=least, memory_bytes=memory_bytes)


def read_clip(path: Path, most_bytes: int | None) -> Clip:
    """Decode the first frames of a clip, at least `LEAST_FRAMES` where it has them.

    Raises
    ------
    FileFormatError
        If it cannot be read as a video.
    ConfigError
        If PyAV is not installed.
    """
    av = require_optional("av", "video", f"Reading {path.name}")
    frames: list[npt.NDArray[np.uint8]] = []
    try:
        require_video(path)
        with av.open(str(path)) as container:
            for frame in container.decode(video=0):
                frames.append(frame.to_ndarray(format="gray"))
                full = most_bytes is not None and (len(frames) + 1) * frames[0].nbytes > most_bytes
                if len(frames) >= _MAX_FRAMES or (full and len(frames) >= LEAST_FRAMES):
                    break
        return np.stack(frames)
    except (OSError, ValueError, IndexError, av.FFmpegError) as error:
        # IndexError: no video stream; ValueError: no frame, or frames of several sizes.
        raise FileFormatError(
            f"{path} cannot be read as a video", expected="an undamaged video"
        ) from error
