"""Clips of the kept pictures: MP4 or GIF, at the pace of acquisition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sci_stream.errors import InputError
from sci_stream.imaging.rendering import decode_jpeg, encode_jpeg, resize, shrink
from sci_stream.storage.video_file import MovieFile, write_gif
from sci_stream.web import h264
from sci_stream.web.message import JPEG, Picture

# A GIF is for a message or a slide: larger ones are megabytes for each second.
_GIF_FPS, _GIF_PX, _MOST_GIF_FRAMES = 12.5, 360, 1500
# Players show no more: a clip of a faster camera plays slower.
_MOST_FPS = 240.0
_QUALITY = 90

U8 = npt.NDArray[np.uint8]


def as_jpeg(picture: Picture) -> Picture:
    """Convert an H.264 picture to JPEG, for browsers that cannot decode H.264."""
    width, height = picture.header["shown_px"]
    frames = h264.decode(picture.frames, height, width)
    return Picture(picture.header, JPEG, tuple(encode_jpeg(frame, _QUALITY) for frame in frames), picture.coded)


def write_clip(pictures: list[Picture], folder: Path, kind: str) -> Path:
    """Write kept pictures as MP4 or GIF, at the pace of acquisition.

    Raises
    ------
    InputError
        If there are none.
    ConfigError
        If PyAV is not installed.
    """
    if not pictures:
        raise InputError("There is no video of that time", hint="Wait for the first video, or choose a longer time.")
    first = pictures[0].header
    path = folder / f"{first['series']}_{first['seq']:06d}-{pictures[-1].header['seq']:06d}.{kind}"
    interval_ns = snapshot_interval_ns(pictures)
    if kind == "gif":
        write_gif(path, _gif_frames(pictures, interval_ns), _GIF_FPS)
        return path
    width, height = first["shown_px"]
    uniform = all(each.codec == pictures[0].codec and each.header["shown_px"] == [width, height] for each in pictures)
    if uniform and pictures[0].codec != JPEG:
        snapshots = [(each.header["acquired_ns"] // 1_000_000, each.frames) for each in pictures]
        h264.write_mp4(path, snapshots, height, width, interval_ns / 1e6)
        return path
    n_frames = first["n_frames"]
    with MovieFile(path, min(_MOST_FPS, 1e9 * n_frames / interval_ns), threads=1) as movie:
        for each in pictures:
            for image in _decoded(each):
                movie.write(resize(image, height, width))
    return path


def snapshot_interval_ns(pictures: list[Picture]) -> float:
    """Return the median interval between consecutive snapshots, ns; a second if there is no pair of them."""
    headers = [each.header for each in pictures]
    steps = [
        (after["acquired_ns"] - before["acquired_ns"]) / (after["seq"] - before["seq"])
        for before, after in pairwise(headers)
        if after["seq"] > before["seq"] and after["acquired_ns"] > before["acquired_ns"]
    ]
    return float(np.median(steps)) if steps else 1e9


def _decoded(picture: Picture) -> U8:
    """Return the frames, (B, H, W, 3) RGB."""
    if picture.codec != JPEG:
        width, height = picture.header["shown_px"]
        return h264.decode(picture.frames, height, width)
    return np.stack([decode_jpeg(jpeg) for jpeg in picture.frames])


def _gif_frames(pictures: list[Picture], interval_ns: float) -> Iterator[U8]:
    """Yield the frame that was on the screen at every 80 ms, reduced in size: players do not play GIFs faster."""
    step_ns, begin_ns = 1e9 / _GIF_FPS, pictures[0].header["acquired_ns"]
    due_ns, n_frames = float(begin_ns), 0
    shape: tuple[int, int] | None = None
    for picture, after in zip(pictures, [*pictures[1:], None], strict=True):
        start_ns = picture.header["acquired_ns"]
        end_ns = start_ns + interval_ns if after is None else after.header["acquired_ns"]
        frames = None
        while due_ns < end_ns and n_frames < _MOST_GIF_FRAMES:
            frames = _decoded(picture) if frames is None else frames
            index = min(int(max(due_ns - start_ns, 0) / interval_ns * len(frames)), len(frames) - 1)
            image = shrink(frames[index], _GIF_PX)
            shape = shape or (image.shape[0], image.shape[1])
            yield resize(image, *shape)
            due_ns, n_frames = due_ns + step_ns, n_frames + 1
