"""Decode a folder of clips once, in bounded memory."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sci_stream.errors import ConfigError, FileFormatError
from sci_stream.optional import require_optional
from sci_stream.storage.media_guard import require_video
from sci_stream.training.images import split_indices

_LOG = logging.getLogger(__name__)
_SUFFIXES = frozenset({".mkv", ".mp4", ".mov", ".avi", ".webm", ".m4v"})
LEAST_FRAMES = 8
"""Clips of fewer frames are not used."""

# Frames further apart than this in time rarely show anything new.
_MOST_FRAMES = 400

Clip = npt.NDArray[np.uint8]
"""(N, H, W), grey, 0–255."""


@dataclass(frozen=True, slots=True, eq=False)
class ClipSet:
    """Decoded clips, and files that were not used.

    Parameters
    ----------
    clips, names
        Grey frames, and file names; sorted by name.
    unreadable, too_small
        Skipped files.
    """

    clips: tuple[Clip, ...]
    names: tuple[str, ...]
    unreadable: tuple[str, ...] = ()
    too_small: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits that identify the set, from names, sizes and pixels."""
        digest = hashlib.blake2b(digest_size=8)
        for name, clip in zip(self.names, self.clips, strict=True):
            digest.update(f"{name} {clip.shape}".encode())
            digest.update(np.ascontiguousarray(clip[::4, ::16, ::16]).tobytes())  # a sample identifies the clip
        return digest.hexdigest()

    def split(self, held_out: int) -> tuple[ClipSet, ClipSet]:
        """Return training and validation set; the ``held_out`` clips of the latter are evenly spread over the names.

        Raises
        ------
        ConfigError
            If no clip is left to train on.
        """
        training, validation = split_indices(len(self.clips), held_out, "clips")
        return self._of(training), self._of(validation)

    def _of(self, indices: Sequence[int]) -> ClipSet:
        return ClipSet(tuple(self.clips[k] for k in indices), tuple(self.names[k] for k in indices))


def load_clips(folder: Path, *, least_px: int, memory_bytes: int) -> ClipSet:
    """Decode all clips of a folder and its sub-folders to grey.

    Parameters
    ----------
    folder
        Folder with Matroska, MP4, QuickTime, AVI and WebM files.
    least_px
        Clips with fewer rows or columns, or fewer than `LEAST_FRAMES` frames, are skipped.
    memory_bytes
        Memory limit for all clips. A clip larger than its share of the remaining memory ends early.

    Raises
    ------
    ConfigError
        If the folder is missing, no clip in it is usable, or PyAV is not installed.
    """
    if not folder.is_dir():
        raise ConfigError(f"The folder of clips {folder} does not exist", expected="a folder of video files")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
    clips: list[Clip] = []
    names: list[str] = []
    unreadable: list[str] = []
    too_small: list[str] = []
    left = memory_bytes
    for number, path in enumerate(paths):
        name = path.relative_to(folder).as_posix()
        clip = read_clip(path, left // (len(paths) - number))
        if clip is None:
            _LOG.warning("Skipping %s: not readable as a video", path)
            unreadable.append(name)
        elif min(clip.shape[1:]) < least_px or len(clip) < LEAST_FRAMES:
            least = f"{LEAST_FRAMES} frames of {least_px}×{least_px}"
            _LOG.warning("Skipping %s: %d frames of %d×%d pixels, less than %s", path, *clip.shape, least)
            too_small.append(name)
        else:
            left -= clip.nbytes
            clips.append(clip)
            names.append(name)
    if not clips:
        raise ConfigError(
            f"The folder {folder} contains no usable clip",
            expected=f"clips of at least {LEAST_FRAMES} frames of {least_px}×{least_px} pixels: "
            f"{', '.join(sorted(_SUFFIXES))}",
            got=f"{len(paths)} files, {len(unreadable)} unreadable, {len(too_small)} too small",
        )
    return ClipSet(tuple(clips), tuple(names), tuple(unreadable), tuple(too_small))


def read_clip(path: Path, most_bytes: int) -> Clip | None:
    """Decode the first frames of a clip, at least `LEAST_FRAMES` where it has them; None if it cannot be read.

    Raises
    ------
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
                full = (len(frames) + 1) * frames[0].nbytes > most_bytes
                if len(frames) >= _MOST_FRAMES or (full and len(frames) >= LEAST_FRAMES):
                    break
        return np.stack(frames)
    except (FileFormatError, OSError, ValueError, IndexError, av.FFmpegError):
        # IndexError: no video stream; ValueError: no frame, or frames of several sizes.
        return None
