"""Scenes from files: a video, a folder of images, or a glob pattern."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import cv2
import numpy as np

from sci_stream.errors import FileFormatError
from sci_stream.files.media import in_natural_order, read_image, video_frames
from sci_stream.plugins import U8
from sci_stream_drivers.simulated.textures import SRGB_TO_LINEAR, Image

_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"}
# The clip is decoded once, up to this size: 1400 images of 512×512.
_MAX_BYTES = 2**30

Picture = U8


class VideoScene:
    """Play images in a loop, one per unit of time, cropped to the sensor's aspect ratio and resized
    to it.

    Between two images the scene is their linear blend, which resembles a long exposure but not
    motion: use footage of a high-speed camera where motion matters. Images are converted from sRGB
    to linear light. A clip of more than 1 GiB is cut.

    The source is a video, a folder or a glob pattern; ``speed`` is in images per unit of time.

    Raises `FileFormatError` if nothing is found, or nothing can be decoded.
    """

    def __init__(self, source: str, shape: tuple[int, int], speed: float) -> None:
        self._speed = speed
        longest = max(2, _MAX_BYTES // (3 * shape[0] * shape[1]))
        self._pictures = [_fit(picture, shape) for picture in islice(_pictures(source), longest)]
        if not self._pictures:
            raise FileFormatError(
                f"{source} contains no image that can be decoded",
                expected="a video or images that OpenCV reads",
            )

    def render(self, t: float) -> Image:
        """Return the image at time ``t``, see `Scene.render`."""
        at = t * self._speed
        i = int(at)
        count = len(self._pictures)
        image = _light(self._pictures[i % count])
        blend = np.float32(at - i)
        if blend > 1e-6:
            image *= 1 - blend
            image += blend * _light(self._pictures[(i + 1) % count])
        return image


def _light(picture: Picture) -> Image:
    """Return 8-bit sRGB as linear light, a new array."""
    return np.asarray(cv2.LUT(picture, SRGB_TO_LINEAR), np.float32)


def _fit(picture: Picture, shape: tuple[int, int]) -> Picture:
    """Crop a BGR image to the aspect ratio of ``shape`` and resize it; return RGB."""
    height, width = picture.shape[:2]
    scale = max(shape[0] / height, shape[1] / width)
    rows = min(height, round(shape[0] / scale))
    columns = min(width, round(shape[1] / scale))
    top = (height - rows) // 2
    left = (width - columns) // 2
    cut = picture[top : top + rows, left : left + columns]
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    fitted = cv2.resize(cut, shape[::-1], interpolation=method)
    return np.asarray(cv2.cvtColor(fitted, cv2.COLOR_BGR2RGB), np.uint8)


def _pictures(source: str) -> Iterator[Picture]:
    """Yield the images of a video, a folder or a glob pattern in order, BGR."""
    path = Path(source).expanduser()
    if path.is_file() and path.suffix.lower() not in _IMAGES:
        return video_frames(path)
    if path.is_dir():
        files = [p for p in path.iterdir() if p.suffix.lower() in _IMAGES]
    elif path.is_file():
        files = [path]
    else:
        files = [Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207 - a whole pattern, maybe absolute
    if not files:
        raise FileFormatError(
            f"The scene {source!r} was not found",
            expected="a video file, a folder with images, or a glob that matches images",
            got=f"no {', '.join(sorted(_IMAGES))} there" if path.is_dir() else "no such file",
        )
    return (
        np.asarray(read_image(file, cv2.IMREAD_COLOR), np.uint8) for file in in_natural_order(files)
    )
